"""Predicting what a run will cost in time, memory and disk, before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from headrace.distributed.group import ALONE
from headrace.instruments.known_corpus import complete_from_corpus, time_loader
from headrace.instruments.plan import Plan
from headrace.instruments.rehearsal import FEW_LAYERS, quick_execution, rehearse, rehearse_few_layers, warm_up
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.device import best_device
from headrace.machine.facts import memory_bytes
from headrace.machine.hardware import available_memory_bytes, disk_of
from headrace.machine.measure import BUSY_CORES
from headrace.models.counts import Counts, count
from headrace.perf.flops import Work, count_work, least_traffic
from headrace.perf.memory import MemoryParts
from headrace.perf.predict import Bound, Footprint, Rehearsal, find_bound
from headrace.run.config import Config
from headrace.run.corpus import tokenizer_spec
from headrace.run.machine import Machine, know_machine
from headrace.run.memory import count_memory, remedies, with_snapshot
from headrace.run.session.mixture import RunMixture
from headrace.run.start.regime import settle_recipe
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import state_bytes, update_flops
from headrace.training.pauses import MOST_TOKENS, expected_seconds, saves_before_end
from headrace.training.schedule import DEFAULT_MINUTES, Limits

CHECKPOINTS_AT_ONCE = 3  # last, best, and the one being written
LARGEST_REHEARSAL = 0.5  # share of the free memory that a rehearsal may take
# Memory that choosing an execution, instruments, samples and checkpoints leave allocated in a run, beyond a rehearsal:
# 33 to 102 MiB on five presets (docs/LOG.md).
LEFT_BEHIND_BYTES = 65 << 20


def predict_run(config: Config) -> Plan:
    """Predict a run by a rehearsal of a few seconds; nothing is written but the remembered machine."""
    config = config.model_copy(deep=True)
    keeps_memory = keep_freed_memory() and best_device().type == "cpu"
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    warm_up()
    runtime_bytes = memory_bytes()
    machine = know_machine()
    free = available_memory_bytes() + runtime_bytes
    assumptions = list(_left_out(config, machine))
    corpus = complete_from_corpus(config, assumptions)
    mixture = RunMixture.of(config)
    model, training = config.model, config.training
    steps_per_epoch = corpus.tokens * config.data.training_share / training.tokens_per_update
    limits = Limits.from_config(training, max(1, round(steps_per_epoch)))
    text = {"bytes": corpus.num_bytes, "tokenizer": tokenizer_spec(config)}
    has_passes = mixture.weights is None and steps_per_epoch >= 1
    assumptions += settle_recipe(config, None, limits, text, ALONE, lambda: has_passes)
    execution, rehearsal, footprint = _rehearse(config, free, assumptions)
    work = count_work(
        model,
        training.mean_window,
        training.tokens_per_update,
        update_flops(model, training.optimizer, execution.dtype),
        training.gradient_checkpointing,
        training.num_logits(model.vocab_size),
    )
    if footprint is not None and not keeps_memory:  # memory given back to the system is missing from the growth
        footprint = replace(footprint, grown_bytes=None)
    memory = _memory(config, execution, runtime_bytes, footprint)
    seconds = rehearsal.step_seconds(model.num_layers, training.batch_size) if rehearsal else None
    step_s = sum(seconds.values()) if seconds else None
    data_s = None if corpus.cache is None else time_loader(config, corpus.cache)
    if step_s is not None and data_s is not None:
        step_s = max(step_s, data_s)
    evaluation_s, whole_s = _evaluation_seconds(config, seconds, work.counts, corpus.validation_tokens)
    total_s, total_steps = _total(config, step_s, evaluation_s, whole_s, steps_per_epoch)
    if saves_before_end(training, total_s or math.inf, total_steps or math.inf):
        memory = with_snapshot(memory, training.memory_budget or free)
    result = Plan(
        work=work,
        execution=execution,
        step_seconds=seconds,
        tokens_per_second=training.tokens_per_update / step_s if step_s else None,
        step_s=step_s,
        data_s=data_s,
        evaluation_s=evaluation_s,
        epoch_s=step_s * steps_per_epoch if step_s else None,
        total_s=total_s,
        total_steps=total_steps,
        memory=memory,
        free_memory_bytes=free,
        corpus_bytes=corpus.num_bytes,
        corpus_tokens=corpus.tokens,
        cache_bytes=corpus.tokens * (2 if model.vocab_size <= 1 << 16 else 4),
        checkpoint_bytes=CHECKPOINTS_AT_ONCE
        * (memory.weights + memory.average + state_bytes(work.counts, training.optimizer, training.related_tokens)),
        free_disk_bytes=int(disk_of(Path(config.run.out or "."))["free_bytes"]),
        bound=_bound(machine, work, config, memory, execution, seconds, data_s),
        mixture="" if mixture.weights is None else mixture.describe(),
        assumptions=assumptions,
    )
    if not result.fits:

        def needed_bytes(changed: Config, how: Execution) -> int:
            return count_memory(changed, how, memory.runtime).total

        result.remedies = list(remedies(config, execution, needed_bytes, free))
    return result


def _left_out(config: Config, machine: Machine) -> Iterator[str]:
    """Yield what the configuration asks for and the prediction leaves out."""
    if best_device().type != "cpu":
        yield "the memory of the processor: that of an accelerator is not predicted"
    if config.training.memory_budget:
        yield (
            "training without training.memory_budget; to stay below it, a run may choose smaller micro-batches and"
            " gradient checkpointing"
        )
    if config.training.compile:
        yield "training without training.compile, which a rehearsal leaves out"
    if config.run.processes != 1:
        yield "one process: `headrace scale` measures what several give"
    if machine.measurements.busy_cores > BUSY_CORES:
        yield "the peaks of a busy machine: `headrace machine --fresh` measures them again"


def _evaluation_seconds(
    config: Config, seconds: dict[str, float] | None, in_update: Counts, validation_tokens: float
) -> tuple[float | None, float]:
    """Return the seconds of an evaluation, and of one on all such text: a third of forward and backward per token.

    An evaluation compares all tokens of the vocabulary, where an update may compare a part of them.
    """
    if seconds is None:
        return None, 0.0
    training = config.training
    all_flops = count(config.model, training.mean_window).training_flops_per_token
    token_s = seconds["forward and backward"] / 3 / training.tokens_per_update
    token_s *= all_flops / in_update.training_flops_per_token
    wanted = MOST_TOKENS if training.evaluation_tokens == "auto" else training.evaluation_tokens
    return token_s * min(validation_tokens, wanted or validation_tokens), token_s * validation_tokens


def _rehearse(
    config: Config, free: int, assumptions: list[str]
) -> tuple[Execution, Rehearsal | None, Footprint | None]:
    """Rehearse the run, as far as that does not crowd the machine; None for what was not measured."""
    model, training = config.model, config.training
    few = model.model_copy(update={"num_layers": min(FEW_LAYERS, model.num_layers)})
    if 5 * 4 * count(few, training.sequence_length).num_parameters > LARGEST_REHEARSAL * free:
        assumptions.append("too large to rehearse here: speed is unknown, activations and fragmentation are estimated")
        return Execution.from_config(training), None, None
    execution = quick_execution(model, training)
    if not training.micro_batch_size:
        assumptions.append(f"micro-batches of {execution.micro_batch_size}; training measures which is fastest")
    if count_memory(config, execution, memory_bytes()).total > LARGEST_REHEARSAL * free:
        assumptions.append("too large to rehearse whole: fragmentation is estimated")
        return execution, *rehearse_few_layers(model, training, execution)
    return execution, *rehearse(model, training, execution)


def _memory(config: Config, execution: Execution, runtime_bytes: int, footprint: Footprint | None) -> MemoryParts:
    """Return the memory by part, counted, with measured values in the place of estimates."""
    if footprint is None:
        return count_memory(config, execution, runtime_bytes + LEFT_BEHIND_BYTES)
    runtime_bytes = footprint.runtime_bytes + LEFT_BEHIND_BYTES
    parts = count_memory(config, execution, runtime_bytes, footprint.activation_bytes_per_token)
    if footprint.grown_bytes is None:
        return parts
    # A rehearsal reads no text and averages nothing.
    counted = parts.total - parts.fragmentation - parts.loader - parts.runtime - parts.average
    return replace(parts, fragmentation=max(0, footprint.grown_bytes - counted))


def _total(
    config: Config, step_s: float | None, evaluation_s: float | None, whole_s: float, steps_per_epoch: float
) -> tuple[float | None, int | None]:
    """Return the seconds and steps until the first limit is reached."""
    training = config.training
    steps = [float(training.max_steps)] if training.max_steps else []
    if training.num_epochs:
        steps.append(training.num_epochs * steps_per_epoch)
    minutes = training.max_minutes or (0 if steps else DEFAULT_MINUTES)
    if step_s is None or evaluation_s is None:
        return (60 * minutes if minutes and not steps else None), (int(min(steps)) if steps else None)
    every = training.evaluate_every
    per_step = step_s + evaluation_s / every if every else step_s

    def evaluating_s(updates_s: float) -> float:
        return 0.0 if every else expected_seconds(training, updates_s, evaluation_s, whole_s)

    if minutes:
        steps.append((60 * minutes - evaluating_s(60 * minutes)) / per_step)
    number = max(1.0, min(steps))
    seconds = number * per_step + evaluating_s(number * per_step)
    return min(seconds, 60 * minutes) if minutes else seconds, int(number)


def _bound(
    machine: Machine,
    work: Work,
    config: Config,
    memory: MemoryParts,
    execution: Execution,
    seconds: dict[str, float] | None,
    data_s: float | None,
) -> Bound:
    if seconds is None:
        return Bound("unknown", "too large to rehearse on this machine")
    training, step_s = config.training, sum(seconds.values())
    if data_s is not None and data_s > step_s:
        return Bound(
            "data", f"its workers take {1e3 * data_s:,.1f} ms for a batch, computing takes {1e3 * step_s:,.1f}"
        )
    micro_batches = training.batch_size // max(1, execution.micro_batch_size)
    kept = micro_batches * memory.activations
    traffic = sum(least_traffic(work, micro_batches, kept, memory.optimizer).values())
    peak = machine.measurements.peak_flops(execution.precision, torch.get_num_threads())
    return find_bound(sum(work.timed_flops.values()), traffic, step_s, peak, machine.measurements.memory_bandwidth)
