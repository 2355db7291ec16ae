"""The memory of a run by part, estimated from counts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES, Counts
from headrace.models.memory import number_bytes, weight_copy_bytes

FRAGMENTATION = 0.5
"""Share of what comes and goes that is lost to fragmentation, where it was not measured. PyTorch asks glibc for aligned
memory, and the place of a freed tensor is then too small for the next one of its size (docs/design/rehearsal.md)."""


@dataclass(frozen=True)
class MemoryParts:
    """The bytes of each part at the moment when the process holds most."""

    weights: int
    weight_copies: int
    """Copies in a lower precision, which autocast makes in every forward pass."""
    gradients: int
    optimizer: int
    activations: int
    head_buffer: int
    fragmentation: int
    """Memory that the allocator holds and cannot use."""
    loader: int
    runtime: int
    average: int = 0
    """Average of the weights, where one is kept."""
    snapshot: int = 0
    """Copy of weights, average and optimizer state that is written as a checkpoint while training goes on; 0: none."""

    @property
    def total(self) -> int:
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """Return the bytes by the names that people see."""
        return {
            "weights": self.weights,
            "weight copies": self.weight_copies,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "average": self.average,
            "activations": self.activations,
            "head buffer": self.head_buffer,
            "fragmentation": self.fragmentation,
            "loader": self.loader,
            "runtime": self.runtime,
            "snapshot": self.snapshot,
        }


def memory_parts(
    config: ModelConfig,
    counts: Counts,
    optimizer_bytes: int,
    micro_batch_tokens: int,
    activation_bytes_per_token: float,
    head_chunk_bytes: int,
    loader_bytes: int,
    runtime_bytes: int,
    num_shards: int = 1,
    precision: str = "float32",
    is_native: bool = False,
    average_bytes: int = 0,
) -> MemoryParts:
    """Estimate what training holds at its peak: the end of a forward pass, with gradients of earlier micro-batches.

    What the optimizer works in takes the place of activations, which are gone by then. `optimizer_bytes` is its state,
    `average_bytes` the average of the weights, `runtime_bytes` what the process takes with nothing built, as measured,
    and `num_shards` the number of processes that share the state of the model: each gathers the whole head while it
    computes. Native steps plan all that they need as activations, and nothing else comes and goes.
    """
    weights = FLOAT_BYTES * counts.num_parameters // num_shards
    head_weight = FLOAT_BYTES * config.vocab_size * config.d_model
    logits = min(head_chunk_bytes, number_bytes(precision) * micro_batch_tokens * config.vocab_size)
    copies = 0 if is_native else weight_copy_bytes(counts, precision)
    activations = int(micro_batch_tokens * activation_bytes_per_token)
    head_buffer = 0 if is_native else logits + head_weight + FLOAT_BYTES * micro_batch_tokens * config.d_model
    return MemoryParts(
        weights=weights + (head_weight if num_shards > 1 else 0),
        weight_copies=copies,
        gradients=weights,
        optimizer=optimizer_bytes // num_shards,
        activations=activations,
        head_buffer=head_buffer,
        fragmentation=0 if is_native else int(FRAGMENTATION * (weights + copies + activations + head_buffer)),
        loader=loader_bytes,
        runtime=runtime_bytes,
        average=average_bytes // num_shards,
    )


def room_for(part_bytes: float, free_bytes: float) -> float:
    """Return the factor by which a part could grow until no memory is free.

    >>> room_for(100, 300)
    4.0
    """
    return 1 + free_bytes / max(part_bytes, 1.0)
