"""TensorBoard event files beside metrics.jsonl, with the same numbers."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.files import writing_failed
from headrace.run.records import StepRecord

SCALARS = (
    "loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "memory_bytes",
    "validation_loss",
    "validation_bits_per_byte",
)


class TensorBoard:
    """A writer of event files that takes the record of each step.

    It writes when it is called, unlike torch's SummaryWriter, whose thread prints a traceback when it cannot.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
            from torch.utils.tensorboard.summary import scalar
        except ImportError:
            raise UsageError("run.tensorboard needs an extra: pip install 'headrace[tensorboard]'") from None
        self._make_event: Any = Event
        self._make_summary: Any = scalar
        path = folder / "tensorboard" / f"events.out.tfevents.{time.time_ns()}.headrace"
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by __exit__
            self._records = RecordWriter(self._file)
            self._write(file_version="brain.Event:2")
        except OSError as problem:
            raise writing_failed(path, problem) from None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __call__(self, record: StepRecord) -> None:
        """Add the numbers of a step; raise OSError if they cannot be written."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "somebody has removed it")
        for name in SCALARS:
            value = getattr(record, name)
            if value is not None:
                self._write(step=record.step, summary=self._make_summary(name, value))

    def _write(self, **values: Any) -> None:
        self._records.write(self._make_event(wall_time=time.time(), **values).SerializeToString())
