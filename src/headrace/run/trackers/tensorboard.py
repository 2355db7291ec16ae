"""TensorBoard event files in the run directory."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from headrace.files import writing_failed
from headrace.interop.extras import require
from headrace.run.trackers.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """A writer of event files.

    It writes when it is called, unlike torch's SummaryWriter, whose thread prints a traceback when it cannot.
    """

    def __init__(self, folder: Path) -> None:
        events = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._make_event: Any = events.Event
        self._make_session_log: Any = events.SessionLog
        self._summaries: Any = require("torch.utils.tensorboard.summary", "tensorboard")
        make_records = require("tensorboard.summary.writer.record_writer", "tensorboard").RecordWriter
        path = folder / "tensorboard" / f"events.out.tfevents.{time.time_ns()}.headrace"
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by end
            self._records = make_records(self._file)
            self._write(file_version="brain.Event:2")
        except OSError as problem:
            raise writing_failed(path, problem) from None

    def begin(self, run: TrackedRun) -> None:
        """Say where this session begins: TensorBoard then forgets later steps of earlier sessions' files."""
        start = self._make_session_log(status=self._make_session_log.START)
        self._write(step=run.num_steps + 1, session_log=start)

    def step(self, step: int, values: dict[str, float]) -> None:
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "somebody has removed it")
        for name, value in values.items():
            self._write(step=step, summary=self._summaries.scalar(name, value))

    def sample(self, step: int, text: str) -> None:
        self._write(step=step, summary=self._summaries.text("sample", text))

    def summary(self, values: dict[str, float]) -> None:
        """Do nothing: event files have no place for the result of a run."""

    def end(self) -> None:
        self._file.close()

    def _write(self, **values: Any) -> None:
        self._records.write(self._make_event(wall_time=time.time(), **values).SerializeToString())


TRACKER = TensorBoard
