"""The records of a run that grow with every step: metrics.jsonl, samples.txt and the trackers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.data.loader import Loader
from headrace.machine.facts import cpu_seconds, memory_bytes
from headrace.run.directory import MetricsFile, RunFolder
from headrace.run.records import Run, StepRecord
from headrace.run.trackers.beside import TrackerThread
from headrace.run.trackers.tracker import step_values, summary_values
from headrace.training.loop import StepInfo


class Recorder:
    """Writes the steps of a run into its directory. Training goes on without what cannot be written."""

    def __init__(
        self, folder: RunFolder, run: Run, loader: Loader, trackers: Sequence[TrackerThread], num_processes: int
    ) -> None:
        self._folder, self._run, self._loader = folder, run, loader
        self._trackers, self._num_processes = trackers, num_processes

    def add(self, info: StepInfo, metrics: MetricsFile) -> None:
        """Write a step."""
        record = StepRecord.of(info, **self._gauges(info))
        if info.sample:
            self.add_text(info.step, info.sample)
        with self._going_on_without("metrics.jsonl"):
            metrics.write(record.as_line())
        values = step_values(record) if self._trackers else {}
        for tracker in self._trackers:
            tracker.tell(lambda told: told.step(record.step, values))
            self._warn(tracker.warning())

    def add_text(self, step: int, text: str) -> None:
        """Write a text of the network after some step."""
        with self._going_on_without("samples.txt"):
            self._folder.add_sample(step, text)
        for tracker in self._trackers:
            tracker.tell(lambda told: told.sample(step, text))

    def finish(self) -> None:
        """Give the summary to the trackers, and close them."""
        values = summary_values(self._run)
        for tracker in self._trackers:
            tracker.tell(lambda told: told.summary(values))
        for tracker in self._trackers:
            tracker.close()
            self._warn(tracker.warning())

    @contextmanager
    def _going_on_without(self, name: str) -> Iterator[None]:
        """Warn once when a record of the run cannot be written: a checkpoint is worth more than it."""
        try:
            yield
        except OSError as problem:
            path = self._folder.path / name
            self._warn(f"{path}: cannot be written ({problem.strerror}). Training goes on without it.")

    def _warn(self, warning: str) -> None:
        if warning and warning not in self._run.warnings:
            self._run.warnings.append(warning)

    def _gauges(self, info: StepInfo) -> dict[str, Any]:
        """Return what the process and the loader show at this moment, by field of a step's record."""
        counters = self._loader.counters()
        return {
            "data_wait_mean_s": None if self._num_processes == 1 else round(info.mean_data_wait_s, 6),
            "tokens_per_second": round(self._run.tokens_per_second, 1),
            "memory_bytes": memory_bytes(),
            "cpu_s": round(cpu_seconds(), 2),
            "energy_joules": {part: round(joules, 1) for part, joules in self._run.energy_joules.items()} or None,
            "loader_cpu_s": round(counters.worker_cpu_s, 4),
            "queue_depth": counters.queue_depth,
            "queue_limit": counters.queue_limit,
            "buffered_bytes": counters.bytes_held,
        }
