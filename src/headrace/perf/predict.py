"""Predictions of what a run will cost, from a rehearsal of its layers on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ByLayers:
    """Seconds measured at one or two depths of a network: the slope is a layer, the rest embedding and head."""

    seconds: dict[int, float]

    def at(self, num_layers: int) -> float:
        """Return the seconds at a depth, extrapolated along the line through both if it was not measured.

        >>> ByLayers({1: 0.5, 3: 0.9}).at(6)
        1.5
        """
        if num_layers in self.seconds:
            return self.seconds[num_layers]
        few, many = min(self.seconds), max(self.seconds)
        per_layer = max(0.0, (self.seconds[many] - self.seconds[few]) / (many - few))
        return self.seconds[many] + (num_layers - many) * per_layer


@dataclass(frozen=True)
class Rehearsal:
    """Measured times of a network of the right width."""

    num_sequences: int
    """Sequences in each pass."""
    passes: ByLayers
    """Forward and backward together."""
    update: ByLayers

    def step_seconds(self, num_layers: int, batch_size: int) -> dict[str, float]:
        """Predict the stages of an update: the passes grow with the batch, the optimizer's step does not."""
        return {
            "forward and backward": self.passes.at(num_layers) * batch_size / self.num_sequences,
            "optimizer": self.update.at(num_layers),
        }


@dataclass(frozen=True)
class Footprint:
    """The memory of a network that takes steps."""

    runtime_bytes: int
    """Memory of the process before the network was built."""
    activation_bytes_per_token: float
    grown_bytes: int | None = None
    """Growth since then: network, gradients, optimizer, passes, fragmentation. None: not measured."""


@dataclass(frozen=True)
class Bound:
    """What limits the speed, and the evidence for it."""

    name: str
    evidence: str


def find_bound(
    flops: float, traffic_bytes: float, predicted_s: float, peak_flops: float | None, bandwidth: float | None
) -> Bound:
    """Find which explains most of a predicted step: compute, memory or overhead.

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
