"""Finding what makes a run faster, by short trials that take turns with the configuration as it is.

The options come in a ladder. Those that leave the result of training alone come first, and the ones that are clearly
faster are taken, so that each line is measured on top of the taken ones before it. What would change the result follows
as what-ifs, measured against the tuned configuration and never taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.distributed.cores import share_of_cores
from headrace.errors import HeadraceError, TrainingError
from headrace.instruments.trial import Cost, Trial
from headrace.machine.hardware import available_memory_bytes
from headrace.models.config import heads_of
from headrace.perf.paired import Gain, combined, gain, noise
from headrace.run.config import Config
from headrace.run.records import FindingRecord, TuningRecord
from headrace.training.config import TrainingConfig
from headrace.training.ways.alternatives import candidate_sizes, has_compiler

LEAST_PAIRS, MOST_PAIRS = 3, 9
CLEAR = math.log(1.25)  # a ratio beyond this needs no third pair
WORTHWHILE_PERCENT = 2.0
START_SECONDS = 4.0  # roughly, to start a trial's process
COMPILE_SECONDS = 40.0
FAVOURITE_TOKENS = 1024  # micro-batches of about this many tokens are tried first
NUM_SIZES = 3
NUM_SHARES = 20  # parts that the time is divided into; an option gets one
BATCH_FACTORS = (2, 4, 8)


@dataclass(frozen=True)
class Option:
    """A change of the configuration to try."""

    changes: dict[str, Any]
    """New values by key."""
    changes_result: bool = False
    note: str = ""
    start_seconds: float = START_SECONDS

    @property
    def title(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.changes.items())


@dataclass
class Finding:
    """The result of trying an option."""

    option: Option
    pairs: list[tuple[float, float]] = field(default_factory=list)
    memory_change_bytes: int | None = None
    peak_bytes: int = 0
    is_taken: bool = False
    problem: str = ""
    """Why it could not be measured."""
    gain: Gain | None = None

    def record(self) -> FindingRecord:
        """Return the finding as tune.json holds it."""
        return FindingRecord(
            changes=self.option.changes,
            gain_percent=self.gain.percent if self.gain else None,
            spread_percent=self.gain.spread_percent if self.gain else None,
            memory_change_bytes=self.memory_change_bytes,
            changes_result=self.option.changes_result,
            is_taken=self.is_taken,
            note=self.problem or self.option.note,
        )


@dataclass
class Tuning:
    """All findings and the configuration they lead to; also what `tune --json` prints."""

    given: Config
    """The given configuration, with what training would choose written into it."""
    tuned: Config
    findings: list[Finding]
    tokens_per_second: float
    """Throughput of the given configuration."""
    tuned_tokens_per_second: float
    gain: Gain
    best_batch_size: int | None
    """Batch size beyond which throughput grows no more; None if no other was measured or fits the memory."""
    peak_bytes: int
    """Peak memory of the tuned configuration."""
    seconds: float

    def record(self) -> TuningRecord:
        """Return the result as tune.json holds it."""
        return TuningRecord(
            tokens_per_second=self.tokens_per_second,
            tuned_tokens_per_second=self.tuned_tokens_per_second,
            gain_percent=self.gain.percent,
            spread_percent=self.gain.spread_percent,
            best_batch_size=self.best_batch_size,
            peak_memory_bytes=self.peak_bytes,
            seconds=self.seconds,
            findings=[finding.record() for finding in self.findings],
            changes={key: value for f in self.findings if f.is_taken for key, value in f.option.changes.items()},
        )


class _ReferenceLostError(TrainingError):
    """The trial that everything is compared with has died."""


class Ladder:
    """The reference configuration, which takes turns with one option after another."""

    def __init__(self, config: Config, seconds: float, on_option: Callable[[str], None]) -> None:
        self._deadline, self._on_option = time.perf_counter() + seconds, on_option
        self._share_s = seconds / NUM_SHARES
        self.findings: list[Finding] = []
        training = config.training
        self._budget = training.memory_budget or available_memory_bytes()
        on_option("choosing as training does")
        choices = (training.precision, training.matmul, training.attention, training.engine)
        is_open = training.micro_batch_size == 0 or "auto" in choices
        if not is_open and not training.threads:
            training.threads = share_of_cores(1)
        self._reference = Trial(config, is_chosen=is_open)
        self.config = config.model_copy(deep=True)
        self._reference.execution.write_into(self.config.training)
        self._given = self.config
        costs = [self._reference.measure() for _ in range(2)]
        self._given_cost = min(cost.seconds_per_token for cost in costs)
        self._peak_bytes = costs[-1].peak_bytes

    def __enter__(self) -> Ladder:
        return self

    def __exit__(self, *_: object) -> None:
        self._reference.close()

    def climb(self, group: list[Option]) -> list[Finding]:
        """Try alternatives; take the fastest, if it leaves the result alone and is clearly faster."""
        tried = [self._try(option) for option in group]
        self.findings += tried
        scale = noise([finding.pairs for finding in self.findings])
        for finding in tried:
            finding.gain = gain(finding.pairs, scale) if finding.pairs else None
        takeable = [f for f in tried if f.gain and not f.option.changes_result and f.peak_bytes <= self._budget]
        best = max(takeable, key=lambda finding: finding.gain.percent if finding.gain else 0.0, default=None)
        if best and best.gain and best.gain.percent > WORTHWHILE_PERCENT and best.gain.is_clear:
            best.is_taken = True
            self.config = changed(self.config, best.option.changes)
            self._reference.close()
            self._reference = Trial(self.config)
            self._peak_bytes = best.peak_bytes
        return tried

    def grow_batch(self) -> int | None:
        """Return the batch size beyond which updates get no cheaper per token, within the memory budget."""
        size, best = self.config.training.batch_size, 0.0
        chosen = size if self._peak_bytes <= self._budget else None
        for factor in BATCH_FACTORS:
            found = self.climb([Option({"training.batch_size": size * factor}, True, "fewer updates")])[0]
            if found.gain is None:
                return None if factor == BATCH_FACTORS[0] else chosen
            if found.peak_bytes > self._budget or found.gain.percent < best + WORTHWHILE_PERCENT:
                break
            best, chosen = found.gain.percent, size * factor
        return chosen

    def _try(self, option: Option) -> Finding:
        finding = Finding(option)
        if "training.compile" in option.changes and not has_compiler():
            finding.problem = "not tried: no C++ compiler here"
            return finding
        turn_s = self._given_cost * self.config.training.tokens_per_update
        if time.perf_counter() + option.start_seconds + 2 * turn_s > self._deadline:
            finding.problem = "not tried: no time"
            return finding
        self._on_option(f"trying {option.title}")
        try:
            with Trial(changed(self.config, option.changes)) as trial:
                self._take_turns(trial, finding)
        except _ReferenceLostError:
            raise
        except HeadraceError as problem:
            finding.problem = f"failed: {problem}"
        return finding

    def _take_turns(self, trial: Trial, finding: Finding) -> None:
        until = min(self._deadline, time.perf_counter() + self._share_s)
        while len(finding.pairs) < MOST_PAIRS:
            before, after = self._measure_reference(), trial.measure()
            finding.pairs.append((before.seconds_per_token, after.seconds_per_token))
            finding.peak_bytes = after.peak_bytes
            finding.memory_change_bytes = after.peak_bytes - before.peak_bytes
            logs = [math.log(reference / option) for reference, option in finding.pairs]
            is_clear = min(logs) > CLEAR or max(logs) < -CLEAR
            needed = 2 if is_clear else LEAST_PAIRS
            if len(logs) >= needed and (is_clear or time.perf_counter() > until):
                break

    def _measure_reference(self) -> Cost:
        try:
            return self._reference.measure()
        except HeadraceError as problem:
            raise _ReferenceLostError(f"the configuration as it is could not be measured: {problem}") from None

    def result(self, best_batch_size: int | None, seconds: float) -> Tuning:
        """Return all findings, with spreads estimated from the noise of all measurements together.

        A change that was taken and does not stand out from all that noise is taken back.
        """
        scale = noise([finding.pairs for finding in self.findings])
        self.config = self._given
        for finding in self.findings:
            finding.gain = gain(finding.pairs, scale) if finding.pairs else None
            finding.is_taken = finding.is_taken and finding.gain is not None and finding.gain.is_clear
            if finding.is_taken:
                self.config = changed(self.config, finding.option.changes)
        total = combined([finding.gain for finding in self.findings if finding.is_taken and finding.gain])
        speed = 1 / self._given_cost
        return Tuning(
            self._given,
            self.config,
            self.findings,
            speed,
            speed * (1 + total.percent / 100),
            total,
            best_batch_size,
            self._peak_bytes,
            seconds,
        )


def changed(config: Config, changes: dict[str, Any]) -> Config:
    values = config.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    return Config.model_validate(values)


def same_result_options(config: Config) -> Iterator[list[Option]]:
    """Yield groups of alternatives that change the speed and, but for rounding, nothing else; the likeliest first."""
    training, data = config.training, config.data
    cores = share_of_cores(1)
    threads = [n for n in dict.fromkeys((cores, max(1, cores // 2))) if n != training.threads]
    yield [Option({"training.threads": n}) for n in threads]
    if training.engine != "native":
        yield from _torch_options(training)
    loaders = [{"data.num_workers": workers, "data.prefetch_batches": "auto"} for workers in dict.fromkeys((2, cores))]
    given = {key: getattr(data, key.partition(".")[2]) for key in loaders[0]}
    yield [Option(loader) for loader in loaders if loader != given]
    if training.engine != "native":
        note = "" if training.gradient_checkpointing else "for less memory"
        yield [Option({"training.gradient_checkpointing": not training.gradient_checkpointing}, note=note)]


def _torch_options(training: TrainingConfig) -> Iterator[list[Option]]:
    """Yield groups of alternatives to the kernels and micro-batches of PyTorch; the native library has none."""
    sizes = [
        size
        for size in candidate_sizes(training.batch_size, training.sequence_length)
        if size != training.micro_batch_size
    ]
    sizes.sort(key=lambda size: abs(math.log(size * training.sequence_length / FAVOURITE_TOKENS)))
    others = [size for size in sizes if size != training.micro_batch_size]
    yield [Option({"training.micro_batch_size": size}) for size in others[:NUM_SIZES]]
    other = "default" if training.matmul == "onednn" else "onednn"
    if training.precision == "float32" and not training.compile:
        yield [Option({"training.matmul": other})]
    if not training.compile:
        yield [Option({"training.attention": "fused" if training.attention == "products" else "products"})]


def other_result_options(config: Config) -> Iterator[Option]:
    """Yield changes that would be faster and train another model."""
    model, training = config.model, config.training
    if training.precision == "float32":
        yield Option({"training.precision": "bfloat16"}, True, "lower-precision matrix products")
    else:
        yield Option({"training.precision": "float32"}, True, "higher-precision matrix products")
    if model.init:  # its shape is given
        return
    if model.num_layers > 1:
        yield Option({"model.num_layers": model.num_layers // 2}, True, "a smaller model")
    if model.d_model >= 128 and model.d_model % 4 == 0:
        half = model.d_model // 2
        heads = heads_of(half, model.head_width) if model.num_heads else 0
        halves = {"model.d_model": half, "model.num_heads": heads, "model.d_ff": model.d_ff // 2}
        yield Option({key: value for key, value in halves.items() if value}, True, "a smaller model")
    if model.vocab_size >= 2000:
        size = model.vocab_size // 2
        yield Option({"model.vocab_size": size}, True, f"with data.tokenizer=bpe:{size}: tokens are shorter, too")
    if training.sequence_length >= 64:
        changes = {"training.max_length": training.sequence_length // 2, "training.batch_size": 2 * training.batch_size}
        yield Option(changes, True, "a shorter context")
