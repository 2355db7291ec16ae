"""An execution: from a configuration and back, and as older versions saved it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES, Kernels
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution, upgrade_saved

CHOSEN = Execution(4, "bfloat16", "onednn", gradient_checkpointing=True, threads=3, attention="products")


def test_what_is_written_into_a_configuration_is_read_from_it() -> None:
    training = TrainingConfig()
    CHOSEN.write_into(training)
    assert Execution.from_config(training) == CHOSEN
    replace(CHOSEN, compile=True).write_into(training)
    read = Execution.from_config(training)
    assert read == replace(CHOSEN, compile=True, matmul="default", attention="fused"), (
        "compiled code has kernels of its own"
    )


def test_what_a_configuration_leaves_open_is_the_plainest() -> None:
    assert Execution.from_config(TrainingConfig()) == Execution(1, head_chunk_bytes=CHUNK_BYTES)
    assert Execution.from_config(TrainingConfig(memory_budget="1GB")).head_chunk_bytes == SMALL_CHUNK_BYTES


def test_a_network_gets_its_part() -> None:
    assert CHOSEN.kernels == Kernels(matmul="onednn", attention="products", gradient_checkpointing=True)


def test_executions_of_older_checkpoints_are_read() -> None:
    old = {
        "micro_batch_size": 4,
        "precision": "bfloat16",
        "use_onednn": True,
        "gradient_checkpointing": True,
        "head_chunk_bytes": CHUNK_BYTES,
        "compiled": False,
        "threads": 3,
    }
    assert Execution(**upgrade_saved(old)) == replace(CHOSEN, attention="fused"), "there was no other then"
    assert Execution(**upgrade_saved(asdict(CHOSEN))) == CHOSEN
    assert upgrade_saved(None) is None, "whatever is no execution is for the reader to refuse"


@pytest.mark.parametrize(
    "change", [{"micro_batch_size": 0}, {"threads": -1}, {"precision": "auto"}, {"matmul": "auto"}], ids=str
)
def test_no_reader_accepts_what_cannot_be_computed(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Execution).validate_python({**asdict(CHOSEN), **change})
