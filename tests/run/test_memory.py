"""A run that cannot fit the memory is refused before it starts, unless forced; one that can is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.jobs.train import train
from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES
from headrace.run import memory as recipe
from headrace.run.config import Config, Layers
from headrace.training.execution import Execution
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
RUNTIME = 1 << 20


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 MiB."""
    monkeypatch.setattr(recipe, "memory_bytes", lambda: RUNTIME)


def make(tmp_path: Path, **changes: Any) -> Config:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    values: dict[str, Any] = {
        "model.d_model": 64, "model.num_layers": 6, "model.vocab_size": 257, "training.max_length": 64,
        "training.batch_size": 32, "training.max_steps": 2, "training.threads": 1, "training.precision": "float32",
        "data.sources": [str(tmp_path / "corpus.txt")], "data.tokenizer": "byte", "data.cache_dir": str(tmp_path / "c"),
        "run.out": str(tmp_path / "run"),
    }  # fmt: skip
    layers = Layers()
    layers.add({**values, **changes}, "test")
    return layers.build()


def least(config: Config, micro_batch_size: int, checkpointing: bool) -> int:
    chunk = SMALL_CHUNK_BYTES if checkpointing else CHUNK_BYTES
    how = Execution(micro_batch_size, gradient_checkpointing=checkpointing, head_chunk_bytes=chunk)
    parts = recipe.count_memory(config, how, RUNTIME)
    return parts.total - parts.fragmentation


def test_an_average_of_the_weights_is_counted(tmp_path: Path) -> None:
    how = Execution(32)
    without, averaged = (
        recipe.count_memory(make(tmp_path, **{"training.average": share}), how, RUNTIME) for share in (0, 0.05)
    )
    assert without.average == 0
    assert averaged.average == averaged.weights == averaged.total - without.total
    copies = [recipe.with_snapshot(parts, 1 << 40).snapshot for parts in (without, averaged)]
    assert copies[1] - copies[0] == averaged.average, "it is saved, too"


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Free beside what the process has."""
    monkeypatch.setattr(recipe, "available_memory_bytes", lambda: num_bytes - RUNTIME)


def test_the_smallest_way_of_training_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(tmp_path)
    needed = least(config, 1, True)
    set_free(monkeypatch, needed)
    recipe.check_memory(config)
    assert recipe.memory_limit(config) == needed, "the choice of the micro-batch must know"
    set_free(monkeypatch, needed - 1)
    with pytest.raises(UsageError, match=r"model.num_layers=5 .* fits") as refusal:
        recipe.check_memory(config)
    assert f"{needed:,} bytes" in str(refusal.value)
    assert f"{needed - 1:,} bytes" in str(refusal.value)
    set_free(monkeypatch, 1 << 40)
    assert recipe.memory_limit(config) is None


def test_what_is_given_is_not_changed_but_advised_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(tmp_path, **{"training.micro_batch_size": 32})
    whole, single = least(config, 32, False), least(config, 1, False)
    set_free(monkeypatch, whole)
    recipe.check_memory(config)
    set_free(monkeypatch, single)
    with pytest.raises(UsageError, match=r"help: training.micro_batch_size=1 needs [^;]*\. To start"):
        recipe.check_memory(config)
    set_free(monkeypatch, single - 1)
    with pytest.raises(UsageError, match=r"training.micro_batch_size=1 training.gradient_checkpointing=true needs"):
        recipe.check_memory(config)
    set_free(monkeypatch, RUNTIME + 1000)
    with pytest.raises(UsageError, match="no number of layers fits"):
        recipe.check_memory(config)


def test_training_refuses_before_it_starts_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    config = make(tmp_path)
    set_free(monkeypatch, RUNTIME + 1000)
    with pytest.raises(UsageError, match="or more, and"):
        train(config)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (tmp_path / "config.json").write_text(config.model_dump_json())
    code, _, err = command("train", tmp_path / "config.json")
    assert code == 2
    assert "--force" in err
    code, _, _ = command("train", tmp_path / "config.json", "--force")
    assert code == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_model_in_pieces_is_judged_by_its_piece(tmp_path: Path) -> None:
    how = Execution(1)
    whole = recipe.count_memory(make(tmp_path), how, RUNTIME)
    sharded = make(tmp_path, **{"run.sharding": "fsdp"})
    assert recipe.count_memory(sharded, how, RUNTIME, num_processes=4).optimizer == whole.optimizer // 4
    assert recipe.count_memory(make(tmp_path), how, RUNTIME, num_processes=4) == whole


def test_bfloat16_needs_less_than_float32(tmp_path: Path) -> None:
    config = make(tmp_path)
    full, half = (
        recipe.count_memory(config, Execution(32, precision), RUNTIME) for precision in ("float32", "bfloat16")
    )
    assert 0 == full.weight_copies < half.weight_copies < full.weights / 2
    assert half.activations < full.activations
    assert half.total < full.total


def test_the_given_precision_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits in bfloat16 is not refused for the activations of float32."""
    given = {"training.micro_batch_size": 32, "training.precision": "bfloat16"}
    config = make(tmp_path, **given)
    parts = recipe.count_memory(config, Execution(32, "bfloat16"), RUNTIME)
    set_free(monkeypatch, parts.total - parts.fragmentation)
    recipe.check_memory(config)
    config.training.precision = "float32"
    with pytest.raises(UsageError, match="are free"):
        recipe.check_memory(config)
