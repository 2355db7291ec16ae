"""Trackers that fail, hang or are slow: training goes on at its own pace, and says so once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import headrace as hr
from headrace.errors import MissingExtraError
from headrace.run.config import Config, TrackerName
from headrace.run.trackers import beside
from headrace.run.trackers.beside import TrackerThread, open_trackers
from headrace.run.trackers.tracker import STEP_METRICS, SUMMARY_METRICS, TrackedRun, Tracker, read_identity
from tests.conftest import make_text
from tests.run.tiny_run import settings

RUN = TrackedRun(Path("run"), {}, "identity")


class Notebook(Tracker):
    """A tracker that writes down what it is told."""

    def __init__(self, folder: Path = RUN.folder) -> None:
        self.told: list[object] = []

    def begin(self, run: TrackedRun) -> None:
        self.told.append("begin")

    def step(self, step: int, values: dict[str, float]) -> None:
        self.told.append((step, values))

    def sample(self, step: int, text: str) -> None:
        self.told.append(text)

    def summary(self, values: dict[str, float]) -> None:
        self.told.append(values)

    def end(self) -> None:
        self.told.append("end")


class Broken(Notebook):
    """A tracker whose server is dead."""

    def step(self, step: int, values: dict[str, float]) -> None:
        raise ConnectionError("no route to host")


class Hanging(Notebook):
    """A tracker that never comes back until it is released."""

    released = threading.Event()

    def step(self, step: int, values: dict[str, float]) -> None:
        self.released.wait()


@pytest.fixture(autouse=True)
def release() -> Iterator[None]:
    Hanging.released.clear()
    yield
    Hanging.released.set()


def tell_steps(thread: TrackerThread, num_steps: int) -> None:
    for number in range(num_steps):
        thread.tell(lambda tracker, number=number: tracker.step(number, {}))  # type: ignore[misc]


def test_everything_is_told_in_order() -> None:
    tracker = Notebook()
    thread = TrackerThread("notebook", tracker)
    thread.tell(lambda told: told.begin(RUN))
    tell_steps(thread, 3)
    thread.close()
    thread.close()
    assert tracker.told == ["begin", (0, {}), (1, {}), (2, {}), "end"]
    assert thread.warning() == ""


def test_a_failing_tracker_is_left_alone_after_one_warning() -> None:
    thread = TrackerThread("broken", Broken())
    tell_steps(thread, 5)
    thread.close()
    assert thread.warning() == "broken: cannot be written (no route to host). Training goes on without it."
    assert thread.warning() == ""


@pytest.mark.parametrize("problem", [SystemExit(1), ValueError("a\nb"), KeyError()], ids=repr)
def test_whatever_a_package_raises_is_one_line(problem: BaseException) -> None:
    def fail(_: Tracker) -> None:
        raise problem

    thread = TrackerThread("odd", Notebook())
    thread.tell(fail)
    thread.close()
    assert thread.warning().count("\n") == 0
    assert type(problem).__name__ in thread.warning() or not thread.warning()


def test_a_hanging_tracker_takes_bounded_memory_and_is_left_behind() -> None:
    tracker = Hanging()
    thread = TrackerThread("hanging", tracker, most_waiting=4, patience_s=0.05)
    tell_steps(thread, 100)
    assert thread.warning() == "hanging: is slower than training. Steps that it has no time for are left out."
    thread.close()
    assert "end" not in tracker.told


def test_a_tracker_that_does_not_end_is_warned_of() -> None:
    thread = TrackerThread("hanging", Hanging(), patience_s=0.05)
    tell_steps(thread, 1)
    thread.close()
    assert thread.warning().startswith("hanging: did not finish within 0.05 s, and was left behind.")


@pytest.mark.parametrize(("kind", "warning"), [(Broken, "cannot be written"), (Hanging, "did not finish within")])
def test_a_run_goes_on_without_its_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Notebook], warning: str
) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    monkeypatch.setattr(beside, "make_tracker", lambda name, folder: kind(folder))
    monkeypatch.setattr(TrackerThread.__init__, "__defaults__", (10, 0.05))
    changes = {"run.trackers": ["wandb"], "training.max_steps": 3}
    run = hr.train(**settings(tmp_path / "a.txt", tmp_path / "run", **changes))
    assert run.steps == 3
    assert [said.startswith(f"wandb: {warning}") for said in run.warnings] == [True]
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


def test_every_metric_reaches_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    tracker = Notebook()
    monkeypatch.setattr(beside, "make_tracker", lambda name, folder: tracker)
    changes = {"run.trackers": ["wandb"], "training.max_steps": 2, "training.evaluate_every": 1}
    run = hr.train(**settings(tmp_path / "a.txt", tmp_path / "run", **changes))
    begin, sample, *_, summary, end = tracker.told
    assert (begin, sample, end) == ("begin", run.first_sample, "end")
    steps = [told for told in tracker.told if isinstance(told, tuple)]
    assert [set(values) for _, values in steps] == [set(STEP_METRICS)] * 2
    assert isinstance(summary, dict)
    assert set(summary) <= set(SUMMARY_METRICS)
    assert summary["train_loss"] == run.train_loss


def test_every_documented_metric_is_tracked() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "trackers.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in rows if "/" not in name] == list(STEP_METRICS)


@pytest.mark.parametrize("name", get_args(TrackerName))
def test_a_missing_package_names_its_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, extra: str) -> None:
        raise MissingExtraError(f"{module}: {extra}")

    monkeypatch.setattr(f"headrace.run.trackers.{name}.require", missing)
    config = Config()
    config.run.trackers = [name]  # type: ignore[list-item]
    with pytest.raises(MissingExtraError, match=f": {name}$"):
        open_trackers(config, tmp_path)


def test_one_name_is_a_list_of_one() -> None:
    assert Config.model_validate({"run": {"trackers": "wandb"}}).run.trackers == ["wandb"]
    with pytest.raises(ValueError, match="'tensorboard', 'trackio', 'wandb' or 'mlflow'"):
        Config.model_validate({"run": {"trackers": "neptune"}})


def test_a_run_keeps_its_identity(tmp_path: Path) -> None:
    assert read_identity(tmp_path) == read_identity(tmp_path) != ""
