"""Processes that cannot train one network together are refused."""

from __future__ import annotations

import pytest

from headrace.distributed.group import Group
from headrace.errors import TrainingError, UsageError
from headrace.run.agreement import check_batch_size, check_same_config, check_same_corpus, check_sharding
from headrace.run.config import Config


class Disagreeing(Group):
    """Two more processes, the last of which has something else."""

    def gather(self, values: list[float], doing: str) -> list[list[float]]:
        return [values, values, [value + 1 for value in values]]


def test_other_configurations_and_corpora_are_refused() -> None:
    with pytest.raises(TrainingError, match="the configuration of rank 2 is not that of rank 0"):
        check_same_config(Config(), Disagreeing())
    with pytest.raises(TrainingError, match="the corpus of rank 2"):
        check_same_corpus({"corpus": "a"}, Disagreeing())


@pytest.mark.parametrize(
    ("batch_size", "micro_batch_size", "num_processes", "use"),
    [(16, 0, 3, "15 or 18"), (16, 3, 2, "12 or 18"), (2, 2, 4, "8"), (16, 4, 2, ""), (7, 3, 1, "")],
)
def test_batches_that_do_not_divide(batch_size: int, micro_batch_size: int, num_processes: int, use: str) -> None:
    config = Config.model_validate({"training": {"batch_size": batch_size, "micro_batch_size": micro_batch_size}})
    if not use:
        check_batch_size(config, num_processes)
        return
    refusal = f"batch_size {batch_size} does not divide among {num_processes} .*use training.batch_size={use}$"
    with pytest.raises(UsageError, match=refusal):
        check_batch_size(config, num_processes)


def test_compiled_code_and_pieces_are_refused_together() -> None:
    config = Config.model_validate({"training": {"compile": True}, "run": {"sharding": "fsdp"}})
    with pytest.raises(UsageError, match=r"training\.compile does not work with run\.sharding=fsdp"):
        check_sharding(config)
