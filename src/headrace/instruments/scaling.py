"""Scaling: the same update measured on 1 to N cores, by threads and by processes.

Every way is measured in processes of its own (scaling_worker.py), which stay on as many cores as it uses. Ways take
turns, so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.distributed.cores import usable_cores
from headrace.distributed.launch import Processes
from headrace.errors import ChildError, TrainingError
from headrace.instruments.rehearsal import quick_execution
from headrace.machine.contention import is_disturbed
from headrace.perf.scaling import Step, expect, project, whole_batch
from headrace.run.config import Config
from headrace.run.remembered_scaling import Measured, Projected, Scaling, vocabulary_of
from headrace.training.ways.alternatives import default_micro_batch
from headrace.units import plural

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Way:
    """A way to use cores: a number of processes, each with a number of threads."""

    processes: int
    threads: int

    @property
    def cores(self) -> int:
        return self.processes * self.threads

    @property
    def by(self) -> str:
        return "processes" if self.processes > 1 else "threads"


def ways_to_scale(num_cores: int, batch_size: int) -> list[Way]:
    """Return the ways to measure: each number of cores by threads and by processes, and all cores by mixtures of both.

    Of more than four cores, the numbers are the powers of two and all.

    >>> [(way.processes, way.threads) for way in ways_to_scale(4, 12)]
    [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2)]
    """
    ways = [Way(1, 1)]
    for cores in _counts(num_cores)[1:]:
        ways.append(Way(1, cores))
        if batch_size % cores == 0:
            ways.append(Way(cores, 1))
    return ways + [way for way in ways_for_all(num_cores, batch_size) if way not in ways]


def ways_for_all(num_cores: int, batch_size: int) -> list[Way]:
    """Return the ways that use all cores, from one process with all of them to one process for each.

    >>> [(way.processes, way.threads) for way in ways_for_all(4, 12)]
    [(1, 4), (2, 2), (4, 1)]
    """
    divisors = [n for n in _counts(num_cores) if num_cores % n == 0 and batch_size % n == 0]
    return [Way(n, num_cores // n) for n in divisors]


def _counts(num_cores: int) -> list[int]:
    if num_cores <= 4:
        return list(range(1, num_cores + 1))
    powers = [1 << n for n in range(num_cores.bit_length())]
    return sorted({*powers, num_cores})


def scale(
    config: Config,
    ways: Sequence[Way],
    num_steps: int = 2,
    num_repeats: int = 3,
    projected: Sequence[int] = (),
    on_run: Callable[[Way, int], None] = lambda way, repeat: None,
) -> Scaling:
    """Measure the ways in turns. Speedups are relative to the first way.

    `projected`: numbers of processes to compute the speedup of; the first way must be one core, and another processes.
    """
    job = _job(config, num_steps)
    seen: dict[Way, list[list[dict[str, Any]]]] = {way: [] for way in ways}
    failures: list[str] = []
    for repeat in range(num_repeats):
        for way in list(seen):
            on_run(way, repeat)
            try:
                seen[way].append(_run(way, job))
            except TrainingError as problem:
                if way == ways[0]:  # what the others are compared with
                    raise
                del seen[way]
                failures.append(str(problem))
    measured = [_summary(way, runs, job["tokens"]) for way, runs in seen.items()]
    first = measured[0]
    for found in measured:
        found.speedup = found.tokens_per_second / first.tokens_per_second
        found.efficiency_percent = 100 * found.speedup * first.cores / found.cores
    rates = [run[0]["all_reduce_bytes_per_second"] for way, runs in seen.items() for run in runs if way.processes > 1]
    rate = statistics.median(rates) if rates else None
    projections: list[Projected] = []
    if rate is not None and ways[0] == Way(1, 1):
        step = _step_of(seen[ways[0]], job)
        _add_expectations(measured, step, rate)
        projections = [_projection(n, first, step, rate, config.training.batch_size) for n in projected]
    return Scaling(
        cores=max(way.cores for way in ways),
        tokens_per_update=job["tokens"],
        sharding=config.run.sharding,
        measured=measured,
        all_reduce_bytes_per_second=rate,
        measured_at=time.strftime("%Y-%m-%d %H:%M"),
        failures=failures,
        projected=projections,
    )


def _job(config: Config, num_steps: int) -> dict[str, Any]:
    """Return what all ways have in common: the network, the batch, and how it is computed."""
    model, training = config.model.model_copy(), config.training
    model.vocab_size = vocabulary_of(config)
    model.context = model.context or training.sequence_length
    if config.run.sharding == "fsdp":  # the native library needs whole weights
        training = training.model_copy(update={"engine": "torch"})
    execution = quick_execution(model, training)
    return {
        "model": model.shape(),
        "training": training.model_dump(),
        "sharding": config.run.sharding,
        "timeout_seconds": config.run.timeout_seconds,
        "execution": asdict(execution),
        "num_steps": num_steps,
        "tokens": training.tokens_per_update,
        "num_logits": training.num_logits(model.vocab_size),  # by the batch of all processes
    }


def _run(way: Way, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each worker of a way has measured, by rank."""
    training = {**job["training"], "batch_size": job["training"]["batch_size"] // way.processes}
    size = _micro_batch_size(training, job["execution"]["engine"])
    execution = {**job["execution"], "threads": way.threads, "micro_batch_size": size}
    question = {**job, "training": training, "execution": execution, "cores": usable_cores()[: way.cores]}
    command = [sys.executable, "-m", "headrace.instruments.scaling_worker"]
    try:
        with Processes(command, way.processes, {"OMP_NUM_THREADS": str(way.threads)}, question) as workers:
            return workers.answers(TIMEOUT_S)
    except TimeoutError:
        raise TrainingError(f"{_name(way)}: not measured within {TIMEOUT_S:.0f} s. Take a smaller batch.") from None
    except ChildError as problem:
        raise TrainingError(f"{_name(way)}: could not be measured: {problem}") from None


def _micro_batch_size(training: dict[str, Any], engine: str) -> int:
    """Return the sequences that are computed at once, as training has it: native threads divide the whole batch."""
    rows = training["batch_size"]
    usual = rows if engine == "native" else default_micro_batch(rows, training["max_length"])
    return int(training["micro_batch_size"] or usual)


def _name(way: Way) -> str:
    return f"{plural(way.processes, 'process', 'processes')} x {plural(way.threads, 'thread')}"


def _summary(way: Way, runs: list[list[dict[str, Any]]], tokens: int) -> Measured:
    """Summarise the runs of one way: the time by rank 0's clock, memory and processor time of all processes.

    Runs that other programs disturbed count only if there are no others.
    """
    runs = [run for run in runs if not is_disturbed(_taken_percent(run))] or runs
    step_s = statistics.median(step for run in runs for step in run[0]["steps_s"])
    waits = [wait for run in runs for worker in run for wait in worker["aggregation_s"]]
    return Measured(
        by=way.by,
        cores=way.cores,
        processes=way.processes,
        threads=way.threads,
        tokens_per_second=tokens / step_s,
        speedup=1.0,
        efficiency_percent=100.0,
        memory_bytes_per_worker=max(worker["peak_memory_bytes"] for run in runs for worker in run),
        cpu_cores=statistics.median(sum(worker["cpu_cores"] for worker in run) for run in runs),
        aggregation_percent=100 * statistics.median(waits) / step_s if waits else None,
        taken_percent=max((taken for run in runs if (taken := _taken_percent(run)) is not None), default=None),
    )


def _taken_percent(run: list[dict[str, Any]]) -> float | None:
    """Return the largest share taken from any worker, since the others wait for it."""
    return max((worker["taken_percent"] for worker in run if worker["taken_percent"] is not None), default=None)


def _step_of(runs: list[list[dict[str, Any]]], job: dict[str, Any]) -> Step:
    """Return the update on one core as the model of scaling (perf/scaling.py) wants it."""
    middle = {
        stage: statistics.median(run[0]["stages_s"][stage] for run in runs)
        for stage in ("forward", "backward", "optimizer")
    }
    training, first = job["training"], runs[0][0]
    return Step(
        passes_s=middle["forward"] + middle["backward"],
        backward_s=middle["backward"],
        optimizer_s=middle["optimizer"],
        num_micro_batches=training["batch_size"] // _micro_batch_size(training, job["execution"]["engine"]),
        gradient_bytes=first["gradient_bytes"],
        last_bytes=first["last_gradient_bytes"],
    )


def _add_expectations(measured: list[Measured], step: Step, bytes_per_second: float) -> None:
    for way in measured:
        if way.processes > 1 and way.threads == 1:
            way.expected_speedup = expect(step, way.processes, bytes_per_second).speedup


def _projection(num_processes: int, first: Measured, step: Step, bytes_per_second: float, batch_size: int) -> Projected:
    """Return what to expect of a number of processes, by the speed of the first way."""
    speedup = project(step, batch_size, num_processes, bytes_per_second)
    return Projected(
        processes=num_processes,
        batch_size=whole_batch(batch_size, num_processes),
        is_batch_grown=batch_size % num_processes != 0,
        tokens_per_second=speedup * first.tokens_per_second,
        speedup=speedup,
        efficiency_percent=100 * speedup / num_processes,
    )


def describe_disturbance(scaling: Scaling) -> str:
    """Return the warning about a measurement that other programs disturbed."""
    return (
        f"other programs had the processor for up to {scaling.taken_percent:.0f}% of the time, so that this measurement"
        " says little and is not remembered. Measure again with `headrace scale` when the machine is quiet."
    )
