"""What `headrace scale` measured for a configuration on this machine, kept for later runs and reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.errors import CacheError
from headrace.files import canonical_json, digest, read_checked_json, user_cache, write_checked_json
from headrace.machine.contention import is_disturbed
from headrace.machine.hardware import find_hardware
from headrace.run.config import Config
from headrace.run.corpus import expected_vocabulary
from headrace.units import plural

FORMAT = 2
DEFAULT_VOCABULARY = 4096


@dataclass
class Measured:
    """What one division of the cores into processes and threads reached; medians over all its updates."""

    by: str
    cores: int
    processes: int
    threads: int
    tokens_per_second: float
    speedup: float
    """Throughput relative to one core."""
    efficiency_percent: float
    memory_bytes_per_worker: int
    cpu_cores: float
    """Processor time over wall time, all workers together."""
    aggregation_percent: float | None
    """Share of the time spent waiting for gradients; None with one process, and where it is unknown."""
    taken_percent: float | None = None
    """Share of the processor time that the workers wanted and other programs had; None where it is unknown."""
    expected_speedup: float | None = None
    """Speedup by perf/scaling.py, from the step of one core and the measured all-reduce; for processes."""

    @property
    def name(self) -> str:
        return way_name(self.processes, self.threads)


def way_name(processes: int, threads: int) -> str:
    """Return what people call a use of cores by some processes with some threads each.

    >>> [way_name(*way) for way in ((1, 1), (1, 2), (2, 1), (4, 4))]
    ['1 core', '2 threads', '2 processes', '4 proc. x 4 threads']
    """
    if processes == threads == 1:
        return "1 core"
    if threads == 1:
        return plural(processes, "process", "processes")
    return plural(threads, "thread") if processes == 1 else f"{processes} proc. x {plural(threads, 'thread')}"


@dataclass
class Projected:
    """What the model of communication expects of a number of processes, one core each, that was not measured."""

    processes: int
    batch_size: int
    """Sequences per update: the configured number, or the next one that the processes can divide."""
    is_batch_grown: bool
    """Whether the configured number cannot be divided."""
    tokens_per_second: float
    speedup: float
    """Throughput relative to one core."""
    efficiency_percent: float


@dataclass
class Scaling:
    """All measured divisions of the cores; also what `scale --json` prints."""

    cores: int
    tokens_per_update: int
    sharding: str
    measured: list[Measured]
    all_reduce_bytes_per_second: float | None
    measured_at: str
    failures: list[str] = field(default_factory=list)
    """Divisions that could not be measured, and why."""
    projected: list[Projected] = field(default_factory=list)
    """Larger numbers of processes, as far as they were asked for."""

    @property
    def taken_percent(self) -> float:
        """Return the largest share of the processor that other programs took from any measurement."""
        return max((way.taken_percent or 0.0 for way in self.measured), default=0.0)

    @property
    def best(self) -> Measured:
        """Return the fastest; of equally fast ones that with the fewest processes, which takes the least memory."""
        return max(self.measured, key=lambda way: (way.tokens_per_second, -way.processes))

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "best": asdict(self.best)}


def remember_scaling(config: Config, scaling: Scaling) -> None:
    """Keep a measurement for `run.processes=auto` and reports, unless other programs disturbed it."""
    if is_disturbed(scaling.taken_percent):
        return
    path = _path(config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checked_json(path, scaling.as_json())
    except (OSError, CacheError):
        pass  # a home folder that cannot be written costs a measurement each time, nothing else


def remembered_scaling(config: Config) -> Scaling | None:
    """Return what was measured for this network and batch on this very machine, if anything; never measure."""
    try:
        known = read_checked_json(_path(config))
        return TypeAdapter(Scaling).validate_python(known) if known.get("format") == FORMAT else None
    except (OSError, CacheError, ValidationError):
        return None


def _path(config: Config) -> Path:
    """Return the file of a configuration, named by all that changes how long an update takes."""
    heads = config.model.heads  # a run that is under way has written them down
    model = {**config.model.shape(), "num_heads": heads, "vocab_size": vocabulary_of(config), "context": 0}
    keys = (
        "batch_size",
        "max_length",
        "optimizer",
        "gradient_checkpointing",
        "micro_batch_size",
        "precision",
        "matmul",
        "attention",
        "engine",
        "sampled_tokens",
        "related_tokens",
    )
    training = {key: getattr(config.training, key) for key in keys}
    what = canonical_json({"model": model, "training": training, "sharding": config.run.sharding})
    return user_cache() / "scaling" / f"{digest(find_hardware().fingerprint, what)[:16]}.json"


def vocabulary_of(config: Config) -> int:
    """Return the size of the vocabulary, or the expected size where the tokenizer is not there yet."""
    return config.model.vocab_size or expected_vocabulary(config.data.tokenizer or f"bpe:{DEFAULT_VOCABULARY}")
