"""Plan: what a run will cost in time, memory and disk, told before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headrace.data.cache import Cache
from headrace.data.plan import default_cache_dir
from headrace.data.segments import plan_segments
from headrace.data.sources import Source
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.facts import memory_bytes
from headrace.machine.hardware import available_memory_bytes
from headrace.models.counts import count
from headrace.perf.flops import Work, count_work, least_traffic
from headrace.perf.memory import MemoryParts, optimizer_bytes
from headrace.perf.predict import Bound, Footprint, Rehearsal, find_bound
from headrace.recipes.config import Config
from headrace.recipes.feed import expected_vocabulary, training_sources
from headrace.recipes.machine import Machine, know_machine
from headrace.recipes.memory import count_memory, remedies
from headrace.recipes.pretrain import DEFAULT_MINUTES
from headrace.recipes.rehearse import quick_execution, rehearse, rehearse_few_layers, warm_up
from headrace.training.step import Execution

ASSUMED_BYTES_PER_TOKEN = 3.5
CHECKPOINTS_AT_ONCE = 3  # last, best, and the one being written
LARGEST_REHEARSAL = 0.5  # of the free memory
# What choosing and the instruments of a run leave behind in its process, beyond a rehearsal: 53 and 65 MB were measured
# on the presets shakespeare-char and prototype (docs/LOG.md).
LEFT_BEHIND_BYTES = 59_000_000


@dataclass
class Plan:
    """Also what `plan --json` prints."""

    work: Work
    execution: Execution
    step_seconds: dict[str, float] | None
    """None: too large to rehearse on this machine."""
    tokens_per_second: float | None
    step_s: float | None
    epoch_s: float | None
    total_s: float | None
    total_steps: int | None
    memory: MemoryParts
    free_memory_bytes: int
    corpus_bytes: int
    corpus_tokens: int
    cache_bytes: int
    checkpoint_bytes: int
    bound: Bound
    assumptions: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    """What would make it fit, if it does not."""

    @property
    def headroom_bytes(self) -> int:
        """Negative: this much is missing."""
        return self.free_memory_bytes - self.memory.total

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0

    def as_json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(self).items() if key not in ("work", "memory")}
        counts = self.work.counts
        return {
            "parameters": counts.num_parameters,
            "parameters_by_part": counts.parameters,
            "flops_by_part": self.work.flops,
            "memory_bytes": self.memory.total,
            "memory_by_part": self.memory.as_dict(),
            "headroom_bytes": self.headroom_bytes,
            "fits": self.fits,
            **values,
        }


def plan(config: Config) -> Plan:
    """Predict a run: a few seconds, nothing written but the remembered machine."""
    config = config.model_copy(deep=True)
    keep_freed_memory()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    warm_up()
    runtime_bytes = memory_bytes()
    machine = know_machine()
    free = available_memory_bytes() + runtime_bytes
    assumptions: list[str] = []
    corpus_bytes, corpus_tokens = _complete(config, assumptions)
    model, training = config.model, config.training
    work = count_work(
        model,
        training.max_length,
        training.batch_size * training.max_length,
        training.optimizer,
        training.gradient_checkpointing,
    )
    execution, rehearsal, footprint = _rehearse(config, free, assumptions)
    memory = _memory(config, execution, runtime_bytes, footprint)
    seconds = rehearsal.step_seconds(model.num_layers, training.batch_size) if rehearsal else None
    step_s = sum(seconds.values()) if seconds else None
    steps_per_epoch = corpus_tokens * (1 - config.data.validation_fraction) / training.batch_size / training.max_length
    total_s, total_steps = _total(config, step_s, steps_per_epoch)
    result = Plan(
        work=work,
        execution=execution,
        step_seconds=seconds,
        tokens_per_second=training.batch_size * training.max_length / step_s if step_s else None,
        step_s=step_s,
        epoch_s=step_s * steps_per_epoch if step_s else None,
        total_s=total_s,
        total_steps=total_steps,
        memory=memory,
        free_memory_bytes=free,
        corpus_bytes=corpus_bytes,
        corpus_tokens=corpus_tokens,
        cache_bytes=corpus_tokens * (2 if model.vocab_size <= 1 << 16 else 4),
        checkpoint_bytes=CHECKPOINTS_AT_ONCE
        * (memory.weights + optimizer_bytes(model, work.counts, training.optimizer)),
        bound=_bound(machine, work, config, memory, execution, step_s),
        assumptions=assumptions,
    )
    if not result.fits:
        lost = memory.fragmentation / memory.coming_and_going

        def needed_bytes(changed: Config, how: Execution) -> int:
            return count_memory(changed, how, memory.runtime, fragmentation=lost).total

        result.remedies = list(remedies(config, execution, needed_bytes, free))
    return result


def _complete(config: Config, assumptions: list[str]) -> tuple[int, int]:
    """Fill in the vocabulary and the context; tell the corpus in bytes and tokens."""
    model, data = config.model, config.data
    sources = training_sources(config)
    spec = data.tokenizer or f"bpe:{model.vocab_size or 4096}"
    cache = _finished_cache(sources, spec, data.cache_dir)
    if not model.vocab_size:
        model.vocab_size = cache.tokenizer.vocab_size if cache else expected_vocabulary(spec)
        if cache is None and not spec.startswith("bpe:"):
            assumptions.append(f"a vocabulary of {model.vocab_size:,} tokens: the tokenizer is not there yet")
    model.context = model.context or config.training.max_length
    if cache is not None:
        return cache.num_bytes, cache.num_tokens
    num_bytes = sum(segment.nbytes for segment in plan_segments(sources))
    per_token = 1.0 if spec in ("byte", "char") else ASSUMED_BYTES_PER_TOKEN
    assumptions.append(f"{per_token:g} bytes a token: the corpus is not tokenised yet")
    return num_bytes, int(num_bytes / per_token)


def _finished_cache(sources: list[Source], spec: str, folder: str) -> Cache | None:
    path = Path(folder) if folder else default_cache_dir(sources, spec)
    if not Cache.is_cache(path):
        return None
    cache = Cache.open(path)
    return cache if cache.is_complete else None


def _rehearse(
    config: Config, free: int, assumptions: list[str]
) -> tuple[Execution, Rehearsal | None, Footprint | None]:
    """None for what cannot be measured without crowding the machine."""
    model, training = config.model, config.training
    few = model.model_copy(update={"num_layers": 3})
    if 5 * 4 * count(few, training.max_length).num_parameters > LARGEST_REHEARSAL * free:
        assumptions.append("too large to rehearse here: speed is unknown, activations and fragmentation are estimated")
        size = training.micro_batch_size or 1
        return Execution(size, gradient_checkpointing=training.gradient_checkpointing), None, None
    execution = quick_execution(model, training)
    if not training.micro_batch_size:
        assumptions.append(f"micro-batches of {execution.micro_batch_size}; training measures which is fastest")
    if count_memory(config, execution, memory_bytes()).total > LARGEST_REHEARSAL * free:
        assumptions.append("too large to rehearse whole: activations and fragmentation are estimated")
        return execution, rehearse_few_layers(model, training, execution), None
    return execution, *rehearse(model, training, execution)


def _memory(config: Config, execution: Execution, runtime_bytes: int, footprint: Footprint | None) -> MemoryParts:
    if footprint is None:
        return count_memory(config, execution, runtime_bytes)
    runtime_bytes = footprint.runtime_bytes + LEFT_BEHIND_BYTES
    per_token = footprint.activation_bytes_per_token
    parts = count_memory(config, execution, runtime_bytes, per_token, fragmentation=0.0)
    lost = footprint.grown_bytes - (parts.total - parts.loader - parts.runtime)
    return replace(parts, fragmentation=max(0, lost))


def _total(config: Config, step_s: float | None, steps_per_epoch: float) -> tuple[float | None, int | None]:
    """Seconds and steps until the first limit is reached."""
    training = config.training
    steps = [float(training.max_steps)] if training.max_steps else []
    if training.num_epochs:
        steps.append(training.num_epochs * steps_per_epoch)
    minutes = training.max_minutes or (0 if steps else DEFAULT_MINUTES)
    if step_s is None:
        return (60 * minutes if minutes and not steps else None), (int(min(steps)) if steps else None)
    if minutes:
        steps.append(60 * minutes / step_s)
    return min(steps) * step_s, max(1, int(min(steps)))


def _bound(
    machine: Machine,
    work: Work,
    config: Config,
    memory: MemoryParts,
    execution: Execution,
    step_s: float | None,
) -> Bound:
    if step_s is None:
        return Bound("unknown", "too large to rehearse on this machine")
    training = config.training
    micro_batches = training.batch_size // max(1, execution.micro_batch_size)
    kept = micro_batches * memory.activations
    traffic = sum(least_traffic(work, micro_batches, kept, training.optimizer).values())
    peak = machine.measurements.peak_flops(execution.precision, torch.get_num_threads())
    return find_bound(sum(work.timed_flops.values()), traffic, step_s, peak, machine.measurements.memory_bandwidth)
