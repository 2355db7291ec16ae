"""The progress of tokenising a corpus: a live bar in a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from headrace.cli.display import err
from headrace.units import human_bytes, human_count, human_time

if TYPE_CHECKING:  # it imports numpy, and the first word on the screen comes before that
    from headrace.data.cache.build import Progress as BuildState

PLAIN_SECONDS = 2.0


class BuildDisplay:
    """The progress of tokenising and its rate; subclasses show it."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._building_s = 0.0  # when tokenising began, after files were listed and a tokenizer was learned
        self._state: BuildState | None = None
        self._first_bytes = 0

    def update(self, state: BuildState) -> None:
        if self._state is None:
            self._building_s = time.monotonic()
            self._first_bytes = state.done_bytes
        self._state = state

    def begin(self, doing: str) -> None:
        """Show what begins now."""

    @property
    def bytes_per_second(self) -> float:
        done = self._state.done_bytes - self._first_bytes if self._state else 0
        return done / max(time.monotonic() - self._building_s, 1e-9)

    def summary(self) -> dict[str, Any]:
        state = self._state
        now_s = time.monotonic()
        return {
            "seconds": round(now_s - self._began_s, 3),
            "tokenising_seconds": round(now_s - self._building_s, 3),
            "tokenised_bytes": state.tokenised_bytes if state else 0,
            "tokenised_files": state.tokenised_files if state else 0,
        }


class _Bar(BuildDisplay):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._task = progress.add_task("starting", total=None, tokens="", rate="")

    def begin(self, doing: str) -> None:
        self._progress.update(self._task, description=doing[:1].upper() + doing[1:])

    def update(self, state: BuildState) -> None:
        super().update(state)
        self._progress.update(
            self._task,
            total=state.total_bytes,
            completed=state.done_bytes,
            tokens=f"{human_count(state.num_tokens)} tokens",
            rate=f"{self.bytes_per_second / 1e6:.0f} MB/s",
        )


class _Lines(BuildDisplay):
    def __init__(self) -> None:
        super().__init__()
        self._shown_s = time.monotonic()

    def begin(self, doing: str) -> None:
        err.print(doing, markup=False)

    def update(self, state: BuildState) -> None:
        super().update(state)
        if time.monotonic() - self._shown_s < PLAIN_SECONDS:
            return
        self._shown_s = time.monotonic()
        rate = self.bytes_per_second
        left = (state.total_bytes - state.done_bytes) / rate if rate else float("inf")
        err.print(
            f"tokenising {human_bytes(state.done_bytes)} of {human_bytes(state.total_bytes)}"
            f" ({100 * state.done_bytes / max(state.total_bytes, 1):.0f}%),"
            f" {human_count(state.num_tokens)} tokens, {rate / 1e6:.0f} MB/s, {human_time(left)} left"
        )


class _BytesColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = human_bytes(task.total) if task.total else "?"
        return Text(f"{human_bytes(task.completed)}/{total}")


@contextmanager
def build_progress() -> Iterator[BuildDisplay]:
    """Show the progress of tokenising: a live bar in a terminal, a line every two seconds elsewhere."""
    if not err.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), _BytesColumn(), TextColumn("{task.fields[tokens]}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True) as progress:
        yield _Bar(progress)
