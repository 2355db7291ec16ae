"""Saving beside training: a thread writes one checkpoint at a time, and its failure is told at the next step."""

from __future__ import annotations

import threading
import time
from typing import Any

from headrace.training.checkpoint import Checkpoints, Contents


class Saver:
    """A writer of checkpoints that does not stop whoever calls it.

    `begin` starts to write the tensors; `seal` adds the state, which may be known only later (the last checkpoint is
    written while the run is evaluated). A second save waits for the first. Whoever calls keeps the tensors as they
    are until `wait` returns.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._job: _Job | None = None
        self.written_s = 0.0
        """Seconds that writing the newest sealed checkpoint took."""

    def begin(self, contents: Contents) -> None:
        """Start to write a checkpoint, once the one before is sealed."""
        self.wait()
        self._job = _Job(self._checkpoints, contents)

    def seal(self, step: int, state: dict[str, Any], is_best: bool) -> None:
        """Have the checkpoint that was begun moved to its place, with this state, as soon as it is written."""
        assert self._job is not None, "begin comes first"
        self._job.seal((step, state, is_best))

    def check(self) -> None:
        """Raise the error of a save that failed."""
        if self._job is not None and self._job.is_over:
            self.wait()

    def wait(self) -> None:
        """Wait until the newest checkpoint is in its place; raise the error if that failed."""
        job, self._job = self._job, None
        if job is not None:
            self.written_s = job.finish()

    def close(self) -> None:
        """Wait for a sealed checkpoint, and give up one that nobody will seal; nobody is told of an error any more."""
        job, self._job = self._job, None
        if job is not None:
            job.give_up()


class _Job:
    """One checkpoint and the thread that writes it."""

    def __init__(self, checkpoints: Checkpoints, contents: Contents) -> None:
        self._checkpoints = checkpoints
        self._facts: tuple[int, dict[str, Any], bool] | None = None
        self._can_end = threading.Event()
        self._failure: BaseException | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(contents,), name="headrace-save", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def seal(self, facts: tuple[int, dict[str, Any], bool]) -> None:
        self._facts = facts
        self._can_end.set()

    def finish(self) -> float:
        assert self._can_end.is_set() or self.is_over, "seal comes before waiting"
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._seconds

    def give_up(self) -> None:
        self._can_end.set()
        self._thread.join()

    def _run(self, contents: Contents) -> None:
        try:
            began = time.perf_counter()
            unsealed = self._checkpoints.write(contents)
            del contents  # the tensors may be freed now
            written = time.perf_counter()
            self._can_end.wait()
            sealing = time.perf_counter()
            if self._facts is None:
                self._checkpoints.discard(unsealed)
            else:
                self._checkpoints.seal(unsealed, *self._facts)
            self._seconds = written - began + time.perf_counter() - sealing
        except BaseException as problem:
            self._failure = problem
