"""What a run will cost, from counts and from a rehearsal of its layers on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One small network of the right width: seconds and bytes."""

    num_layers: int
    passes_s: float
    """Forward and backward of the rehearsed sequences."""
    optimizer_s: float
    activation_bytes_per_token: float
    grown_bytes: int
    """By how much the process grew for it: network, gradients, optimizer, passes, and what the allocator lost."""


@dataclass(frozen=True)
class Rehearsal:
    """Two networks that differ only in their number of layers: the difference is the layers, the rest is the ends."""

    num_sequences: int
    """How many sequences each pass had."""
    small: Measured
    large: Measured
    runtime_bytes: int = 0
    """Of the process with its kernels warm and nothing built."""

    def _at(self, num_layers: int, value: Callable[[Measured], float]) -> float:
        """Along the line through both: a layer more costs what a layer more cost, and never nothing.

        >>> one, three = Measured(1, 0.5, 0.1, 10.0, 100), Measured(3, 0.9, 0.3, 20.0, 300)
        >>> Rehearsal(4, one, three)._at(6, lambda measured: measured.grown_bytes)
        600.0
        """
        small, large = value(self.small), value(self.large)
        per_layer = max(0.0, (large - small) / (self.large.num_layers - self.small.num_layers))
        return large + (num_layers - self.large.num_layers) * per_layer

    def step_seconds(self, num_layers: int, batch_size: int) -> dict[str, float]:
        """Of an update: forward and backward, which grow with the batch, and the optimizer, which does not."""
        passes = self._at(num_layers, lambda measured: measured.passes_s) * batch_size / self.num_sequences
        return {
            "forward and backward": passes,
            "optimizer": self._at(num_layers, lambda measured: measured.optimizer_s),
        }

    def activation_bytes_per_token(self, num_layers: int) -> float:
        return self._at(num_layers, lambda measured: measured.activation_bytes_per_token)

    def grown_bytes(self, num_layers: int) -> int:
        """With micro-batches of the rehearsed sequences."""
        return int(self._at(num_layers, lambda measured: measured.grown_bytes))


@dataclass(frozen=True)
class Bound:
    """What limits the speed, and why we say so."""

    name: str
    evidence: str


def find_bound(
    flops: float, traffic_bytes: float, predicted_s: float, peak_flops: float | None, bandwidth: float | None
) -> Bound:
    """compute, memory or overhead: which of the three explains most of a predicted step.

    >>> find_bound(9e11, 1e9, 10.0, 1e11, 1e10).name
    'compute'
    """
    if not peak_flops or not bandwidth:
        return Bound("unknown", "the peaks of this machine are not known")
    compute_s, memory_s = flops / peak_flops, traffic_bytes / bandwidth
    overhead_s = max(0.0, predicted_s - max(compute_s, memory_s))
    shares = {"compute": compute_s, "memory": memory_s, "overhead": overhead_s}
    name = max(shares, key=lambda key: shares[key])
    evidence = (
        f"at the measured peak its matrix products would take {1e3 * compute_s:,.1f} ms of the {1e3 * predicted_s:,.1f}"
        f" ms that a step is predicted to take; its least memory traffic {1e3 * memory_s:,.1f} ms"
    )
    return Bound(name, evidence)
