"""Matrix FLOPs of an update by part and phase, and the least memory traffic of each phase."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.config import ModelConfig
from headrace.models.counts import Counts, count

PARTS = ("embedding", "attention", "feed-forward", "norms", "head")
PHASES = ("forward", "backward", "optimizer")
NEWTON_SCHULZ_STEPS = 5
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """One update."""

    flops: dict[str, dict[str, float]]
    """By part, then phase. The head's gradients are made in its forward pass, and counted as backward here."""
    counts: Counts

    def phase_flops(self, phase: str) -> float:
        return sum(part[phase] for part in self.flops.values())

    @property
    def timed_flops(self) -> dict[str, float]:
        """By the stages that the trainer times: its forward includes all of the head."""
        head = self.flops["head"]["backward"]
        return {
            "forward": self.phase_flops("forward") + head,
            "backward": self.phase_flops("backward") - head,
            "optimizer": self.phase_flops("optimizer"),
        }


def count_work(
    config: ModelConfig, sequence_length: int, num_tokens: int, optimizer: str, checkpointing: bool = False
) -> Work:
    """Count an update of `num_tokens` tokens.

    >>> config = ModelConfig(arch="gpt2", d_model=64, num_layers=2, vocab_size=100, context=32)
    >>> work = count_work(config, 32, 1024, "adamw")
    >>> work.phase_flops("backward") == 2 * work.phase_flops("forward")
    True
    """
    counts = count(config, sequence_length)
    orthogonal = newton_schulz_flops(config) if optimizer == "muon" else {}
    flops = {}
    for part in PARTS:
        forward = counts.forward_flops_per_token.get(part, 0.0) * num_tokens
        again = forward if checkpointing and part in ("attention", "feed-forward") else 0.0
        flops[part] = {"forward": forward, "backward": 2 * forward + again, "optimizer": orthogonal.get(part, 0.0)}
    return Work(flops, counts)


def newton_schulz_flops(config: ModelConfig) -> dict[str, float]:
    """What Muon's orthogonalisation costs per update: per step two products with the Gram matrix, and its square."""
    width, ff, layers = config.d_model, config.feed_forward, config.num_layers
    matrices = {"attention": [(width, width)] * 4, "feed-forward": [(width, ff)] * (2 if config.arch == "gpt2" else 3)}
    return {
        part: float(layers * sum(_orthogonalise_flops(*sorted(shape)) for shape in shapes))
        for part, shapes in matrices.items()
    }


def _orthogonalise_flops(short: int, long: int) -> int:
    return NEWTON_SCHULZ_STEPS * (2 * 2 * short * short * long + 2 * short**3)


def least_traffic(work: Work, num_micro_batches: int, activation_bytes: float, optimizer: str) -> dict[str, float]:
    """Bytes that each timed stage must move: weights per micro-batch, activations each way, optimizer state.

    `activation_bytes` are those that one update keeps for its backward passes, over all micro-batches.
    """
    weights = FLOAT_BYTES * work.counts.num_parameters
    state = 2 if optimizer == "adamw" else 1
    return {
        "forward": num_micro_batches * weights + activation_bytes,
        "backward": num_micro_batches * 3 * weights + 2 * activation_bytes,  # read weights, read and write gradients
        "optimizer": (3 + 2 * state) * weights,  # gradient, weight and state read; weight and state written
    }
