"""Matrix FLOPs of an update by part and phase, and the least memory traffic of each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.models.architecture import BLOCK_PARTS, PARTS
from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES, Counts, count

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Work:
    """The matrix FLOPs of one update, and the counts of the network that they come from."""

    flops: dict[str, dict[str, float]]
    """By part, then phase. The head's gradients are made in its forward pass, and counted as backward here."""
    counts: Counts

    def phase_flops(self, phase: str) -> float:
        """Return the FLOPs of a phase over all parts."""
        return sum(part[phase] for part in self.flops.values())

    @property
    def timed_flops(self) -> dict[str, float]:
        """The FLOPs by the stages that the trainer times: its forward stage includes all of the head."""
        head = self.flops["head"]["backward"]
        return {
            "forward": self.phase_flops("forward") + head,
            "backward": self.phase_flops("backward") - head,
            "optimizer": self.phase_flops("optimizer"),
        }


def count_work(
    config: ModelConfig,
    sequence_length: float,
    num_tokens: int,
    update_flops: Mapping[str, float],
    gradient_checkpointing: bool = False,
    num_logits: int | None = None,
) -> Work:
    """Count an update on `num_tokens` tokens; `update_flops` are the optimizer's, by part.

    `num_logits`: tokens of the vocabulary that each target is compared with; None: all.

    >>> config = ModelConfig(arch="gpt2", d_model=64, num_layers=2, vocab_size=100, context=32)
    >>> work = count_work(config, 32, 1024, update_flops={})
    >>> work.phase_flops("backward") == 2 * work.phase_flops("forward")
    True
    """
    counts = count(config, sequence_length, num_logits)
    flops: dict[str, dict[str, float]] = {}
    for part in PARTS:
        forward = counts.forward_flops_per_token.get(part, 0.0) * num_tokens
        again = forward if gradient_checkpointing and part in BLOCK_PARTS else 0.0
        flops[part] = {"forward": forward, "backward": 2 * forward + again, "optimizer": update_flops.get(part, 0.0)}
    return Work(flops, counts)


def least_traffic(
    work: Work, num_micro_batches: int, activation_bytes: float, optimizer_bytes: float
) -> dict[str, float]:
    """Return the bytes that each timed stage must move at least.

    The weights move once per micro-batch, activations once each way, and the optimizer's state of `optimizer_bytes`
    once each way per update. `activation_bytes` are kept for backward passes, over all micro-batches of an update.
    """
    weights = FLOAT_BYTES * work.counts.num_parameters
    return {
        "forward": num_micro_batches * weights + activation_bytes,
        "backward": num_micro_batches * 3 * weights + 2 * activation_bytes,  # read weights, read and write gradients
        "optimizer": 3 * weights + 2 * optimizer_bytes,  # gradient, weight and state read; weight and state written
    }
