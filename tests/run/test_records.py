"""The records of a run directory: what is written is read again, also by and from other versions, and is documented."""

from __future__ import annotations

import ast
import inspect
import json
import math
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.errors import CheckpointError
from headrace.models.config import ModelConfig
from headrace.report.read import read_run
from headrace.run.directory import read_environment, read_record, read_steps
from headrace.run.records import CheckpointState, Environment, Overfitting, Record, Run, StepRecord, upgraded_config
from headrace.run.resume import read_checkpoint_state
from headrace.stages import Stage
from headrace.training.evaluate import Evaluation
from headrace.training.loop import StepInfo
from tests.run.tiny_run import change_state

Command = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
BEFORE = ROOT / "tests" / "assets" / "before_the_house"
RECORDS: list[type[Record]] = [StepRecord, Run, Overfitting, Environment, CheckpointState]


def step_info(loss: float = 3.0, evaluation: Evaluation | None = None) -> StepInfo:
    seconds = {Stage.DATA_WAIT: 0.25, Stage.FORWARD: 0.5, Stage.EVALUATION: 1.0, Stage.SAVING: 0.25}
    return StepInfo(
        step=7, tokens=70, loss=loss, learning_rate=0.1, gradient_norm=1.0, is_skipped=not math.isfinite(loss),
        elapsed_s=10.0, step_s=2.0, progress=0.5, seconds=dict(seconds), evaluation=evaluation,
    )  # fmt: skip


def test_a_step_is_read_as_it_was_written() -> None:
    record = StepRecord.of(step_info(), queue_depth=0, memory_bytes=1 << 20)
    line = record.as_line()
    assert StepRecord.model_validate_json(line) == record
    assert set(json.loads(line)) == {
        "step", "tokens", "loss", "learning_rate", "gradient_norm", "elapsed_s", "step_s", "seconds", "queue_depth",
        "memory_bytes",
    }  # fmt: skip
    assert record.data_wait_percent == 12.5
    assert record.update_s == step_info().update_s == 0.75


def test_an_evaluation_is_in_its_step() -> None:
    record = StepRecord.of(step_info(evaluation=Evaluation(2.0, 1.5, 10, 20, {"a": 2.0, "b": None})))
    values = json.loads(record.as_line())
    assert values["validation_bits_per_byte"] == 1.5
    assert values["validation_perplexity"] == pytest.approx(math.exp(2.0))
    assert values["validation_loss_by_source"] == {"a": 2.0, "b": None}


def test_figures_that_are_not_finite_are_null() -> None:
    values = json.loads(StepRecord.of(step_info(loss=math.nan)).as_line())
    assert values["loss"] is None
    assert values["skipped"] is True
    assert values["not_finite"] == ["loss"]
    run = Run(folder=Path("runs/one"), train_loss=math.inf, percent_of_peak=math.nan)
    assert run.train_loss is None
    assert run.as_json()["percent_of_peak"] is None
    assert StepRecord.model_validate_json(StepRecord.of(step_info()).as_line().replace("3.0", "NaN")).loss is None


def test_a_summary_names_its_run() -> None:
    run = Run(folder=Path("runs/one"), parameters=3)
    assert run.as_json()["run"] == "runs/one"
    assert Run.model_validate(run.as_json()) == run


def test_other_versions_are_read(tmp_path: Path) -> None:
    line = json.loads(StepRecord.of(step_info()).as_line())
    line["seconds"]["checkpointing"] = line["seconds"].pop("saving")
    line["from_the_future"] = [1]
    assert StepRecord.model_validate(line).seconds[Stage.SAVING] == 0.25
    del line["seconds"]["data wait"]
    with pytest.raises(ValidationError, match="data wait"):
        StepRecord.model_validate(line)
    (tmp_path / "environment.json").write_text('{"cores": 2, "machine": {"hardware": 3}, "peak_flops": "fast"}')
    assert read_environment(tmp_path / "environment.json") == Environment(cores=2)


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, its cache and a run of four steps, as they were written before the records were typed."""
    shutil.copytree(BEFORE, tmp_path / "before", symlinks=True, copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path / "before")
    return tmp_path / "before"


def test_an_earlier_run_is_read(before: Path) -> None:
    steps = [record for _, record in read_steps(before / "run" / "metrics.jsonl")]
    assert [record.step for record in steps if record] == [1, 2, 3, 4]
    assert sum(record.seconds[Stage.SAVING] for record in steps if record) > 0
    summary = read_record(before / "run" / "summary.json", Run)
    assert summary is not None
    assert summary.steps == 4
    assert summary.seconds[Stage.SAVING] > 0
    assert read_environment(before / "run" / "environment.json").memory_parts
    state = read_checkpoint_state(before / "run" / "checkpoints" / "last")
    assert state.position.step == 4
    assert state.environment.versions["headrace"] == "0.1.0"
    read = read_run(before / "run")
    assert not [note for note in read.notes if "left out" in note]
    assert read.corpus is not None
    assert read.ledger


def test_an_earlier_run_goes_on_with_its_cache(command: Command, before: Path) -> None:
    shards = {path: path.stat().st_mtime_ns for path in (before / "cache" / "shards").iterdir()}
    code, out, err = command("train", "--resume", "run", "training.max_steps=6", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["steps"] == 6
    assert {path: path.stat().st_mtime_ns for path in (before / "cache" / "shards").iterdir()} == shards
    assert [record.step for _, record in read_steps(before / "run" / "metrics.jsonl") if record] == [1, 2, 3, 4, 5, 6]
    assert command("generate", "run", "--max-tokens", 3)[0] == 0


def test_generating_ignores_what_a_newer_version_says_beside_the_model(command: Command, before: Path) -> None:
    checkpoint = (before / "run" / "checkpoints" / "last").resolve()

    def from_the_future(state: dict[str, Any]) -> None:
        state["config"]["training"]["future"] = state["config"]["data"]["future"] = state["config"]["future"] = {}
        state["execution"] = {"precision": "float4"}
        del state["position"]

    change_state(checkpoint, from_the_future)
    code, _, err = command("generate", checkpoint, "--max-tokens", 3)
    assert code == 0, err
    with pytest.raises(CheckpointError, match="of another version"):
        read_checkpoint_state(checkpoint)
    change_state(checkpoint, lambda state: state["config"]["model"].update(future=1))
    code, _, err = command("generate", checkpoint, "--max-tokens", 3)
    assert code == 1
    assert "config.model.future" in err, "which may change what the weights compute"


def field_docs(record: type[Record]) -> dict[str, str]:
    """Return the sentence under each field of a record."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            alias = record.model_fields[field.target.id].serialization_alias
            docs[alias or field.target.id] = " ".join(text.split())
    return docs


def table(record: type[Record]) -> str:
    return "\n".join(f"| `{name}` | {text.rstrip('.')} |" for name, text in field_docs(record).items())


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_documented(record: type[Record]) -> None:
    assert all(field_docs(record).values())
    expected = table(record)
    assert expected in (ROOT / "docs" / "run-directory.md").read_text(), f"docs/run-directory.md needs:\n{expected}"


def test_heads_that_a_run_left_open_stay_as_they_were() -> None:
    def heads(num_heads: int, width: int = 256) -> int:
        upgraded = upgraded_config({"model": {"d_model": width, "num_heads": num_heads}})
        return ModelConfig.model_validate(upgraded["model"]).heads

    assert (heads(0), heads(0, 96), heads(8)) == (4, 1, 8)
    assert ModelConfig(d_model=256).heads == 2
    for broken in ("no section", {"num_heads": 0, "d_model": 10**18 + 1}, {"num_heads": 0, "d_model": "wide"}):
        assert upgraded_config({"model": broken})["model"] == broken


def test_the_configuration_of_an_earlier_run_means_what_it_did(command: Command, run: Path) -> None:
    file = run / "config.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "model": {**saved["model"], "d_model": 256, "num_heads": 0}}))
    assert "model.num_heads = 4" in command("config", file)[1]
    elsewhere = run.parent / "config.json"
    shutil.copy(file, elsewhere)
    assert "model.num_heads = 0 → 2" in command("config", elsewhere)[1]
