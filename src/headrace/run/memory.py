"""Whether a run fits the free memory, estimated from counts before anything is built, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from headrace.distributed.group import ALONE, Group
from headrace.errors import UsageError
from headrace.machine.device import best_device
from headrace.machine.facts import memory_bytes
from headrace.machine.hardware import available_memory_bytes
from headrace.models.counts import count
from headrace.models.kernels import SMALL_CHUNK_BYTES
from headrace.models.memory import checkpointed_bytes_per_token, estimated_activation_bytes_per_token
from headrace.perf.memory import MemoryParts, memory_parts
from headrace.run.config import Config
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import state_bytes
from headrace.training.optimizers.average import average_bytes
from headrace.training.showing.windows import batches_held
from headrace.training.ways.activations import native_bytes_per_token
from headrace.units import human_bytes

BATCHES_HELD = 4  # batches that the loader and the step hold in memory together


def count_memory(
    config: Config,
    execution: Execution,
    runtime_bytes: int,
    activation_bytes_per_token: float | None = None,
    num_processes: int = 1,
) -> MemoryParts:
    """Return the memory of training by part; activations that were not counted on a network are estimated."""
    model, training = config.model, config.training
    per_token = activation_bytes_per_token
    is_native = execution.engine == "native"
    if per_token is None and is_native:
        per_token = native_bytes_per_token(model, execution, training.sequence_length)
    elif per_token is None:
        per_token = estimated_activation_bytes_per_token(
            model, execution.precision, execution.attention, training.sequence_length
        )
        if execution.gradient_checkpointing:
            per_token = checkpointed_bytes_per_token(model, per_token)
    counts = count(model, training.sequence_length)
    num_batches = BATCHES_HELD + batches_held(training.pieces)
    return memory_parts(
        model,
        counts,
        state_bytes(counts, training.optimizer, training.related_tokens),
        execution.micro_batch_size * training.sequence_length,
        per_token,
        execution.head_chunk_bytes,
        num_batches * training.batch_size * (training.sequence_length + 1) * 4,
        runtime_bytes,
        num_shards=num_processes if config.run.sharding == "fsdp" else 1,
        precision=execution.precision,
        is_native=is_native,
        average_bytes=average_bytes(counts.num_parameters, training.average),
    )


def with_snapshot(parts: MemoryParts, limit: int) -> MemoryParts:
    """Return the memory with a copy of all that is saved, where it fits; else saving waits without one."""
    snapshot = parts.weights + parts.average + parts.optimizer
    return replace(parts, snapshot=snapshot) if parts.total + snapshot <= limit else parts


def num_shards(config: Config) -> int:
    """Return the number of processes that weights, gradients and optimizer state are divided among."""
    return int(config.run.processes) if config.run.sharding == "fsdp" else 1


def remedies(
    config: Config, execution: Execution, needed_bytes: Callable[[Config, Execution], int], free_bytes: int
) -> Iterator[str]:
    """Yield changes that would make a run fit: the mildest first, up to the first that is enough."""
    single = replace(execution, micro_batch_size=1)
    checkpointed = replace(single, gradient_checkpointing=True)
    one_by_one = "training.micro_batch_size=1"
    for change, how, before in (
        (one_by_one, single, execution),
        (f"{one_by_one} training.gradient_checkpointing=true", checkpointed, single),
    ):
        if how != before:
            needed = needed_bytes(config, how)
            yield f"{change} needs {human_bytes(needed)}"
            if needed <= free_bytes:
                return
    for layers in range(config.model.num_layers - 1, 0, -1):
        smaller = config.model_copy(deep=True)
        smaller.model.num_layers = layers
        if needed_bytes(smaller, checkpointed) <= free_bytes:
            yield f"model.num_layers={layers} training.micro_batch_size=1 training.gradient_checkpointing=true fits"
            return
    yield "no number of layers fits: choose a smaller model.d_model, model.vocab_size or training.max_length"


def check_memory(config: Config, group: Group = ALONE) -> None:
    """Refuse a run that cannot fit even in the smallest way in which training could compute its steps.

    Fragmentation, which is only an estimate, does not count: what is refused here would not fit.
    """
    if best_device().type != "cpu" or config.run.force:
        return
    runtime_bytes = memory_bytes()
    free = _free_bytes(group, runtime_bytes)

    def least_bytes(changed: Config, how: Execution) -> int:
        parts = count_memory(changed, how, runtime_bytes, num_processes=group.world_size)
        return parts.total - parts.fragmentation

    smallest = _smallest_execution(config.training)
    needed = least_bytes(config, smallest)
    if needed <= free:
        return
    ways = "; ".join(remedies(config, smallest, least_bytes, free))
    raise UsageError(
        f"this run needs {human_bytes(needed)} of memory ({needed:,} bytes) or more, and {human_bytes(free)}"
        f" ({free:,} bytes) are free. What would help: {ways}. To start it as it is: run.force=true or --force."
    )


def memory_limit(config: Config, group: Group = ALONE) -> int | None:
    """Return the memory that the choice of micro-batch and gradient checkpointing must stay below; None for no limit.

    It is the given budget, or without one the free memory, where the whole batch at once would take more.
    """
    training = config.training
    if training.memory_budget:
        return training.memory_budget
    if training.micro_batch_size or config.run.force or best_device().type != "cpu":
        return None
    runtime_bytes = memory_bytes()
    free = _free_bytes(group, runtime_bytes)
    largest = replace(Execution.from_config(training), micro_batch_size=training.batch_size // group.world_size)
    if training.attention == "auto":
        largest = replace(largest, attention="products")
    needed = count_memory(config, largest, runtime_bytes, num_processes=group.world_size).total
    return free if needed > free else None


def _free_bytes(group: Group, runtime_bytes: int) -> int:
    """Return the memory that one of the processes on this machine may have, with what it has already."""
    return available_memory_bytes() // group.local_world_size + runtime_bytes


def _smallest_execution(training: TrainingConfig) -> Execution:
    """Return the execution that takes the least memory of all that training may choose."""
    given = Execution.from_config(training)
    if training.micro_batch_size:  # which training then leaves alone, and gradient checkpointing with it
        return given
    return replace(given, gradient_checkpointing=True, head_chunk_bytes=SMALL_CHUNK_BYTES)
