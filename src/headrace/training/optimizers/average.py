"""An average of the weights over the newest updates, which is evaluated and saved as the model in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.distributed.pieces import local, own_part
from headrace.models.counts import FLOAT_BYTES
from headrace.models.network import Network

MOMENTS_PER_HORIZON = 8
"""Least number of moments within the horizon at which weights are taken into the average."""


class WeightAverage:
    """A moving average of a network's weights over a share of the updates so far (docs/design/averaging.md).

    Training does not see it. Where processes share the weights, each averages its pieces.
    """

    def __init__(self, network: Network, share: float, step: int, saved: Sequence[Tensor] | None = None) -> None:
        """`step`: updates done so far; `saved`: the whole average after them; None: it begins with the weights."""
        self._parameters = list(network.parameters())
        self._share, self._step = share, step
        if saved is None:
            self.weights = [parameter.detach().clone() for parameter in self._parameters]
        else:
            self.weights = [own_part(whole, piece) for whole, piece in zip(saved, self._parameters, strict=True)]

    @torch.no_grad()
    def follow(self) -> None:
        """Count an update, and move the average towards the weights after it if that is due."""
        self._step += 1
        horizon = self._share * self._step
        interval = updates_between(horizon)
        if self._step % interval == 0:
            for average, parameter in zip(self.weights, self._parameters, strict=True):
                local(average).lerp_(local(parameter), interval / (interval + horizon))


def updates_between(horizon: float) -> int:
    """Return the updates from one moment of averaging to the next: a power of two.

    >>> [updates_between(horizon) for horizon in (0.05, 15.9, 16.0, 100.0)]
    [1, 1, 2, 8]
    """
    return 1 << max(0, int(horizon / MOMENTS_PER_HORIZON).bit_length() - 1)


def average_bytes(num_parameters: int, share: float) -> int:
    """Return the memory of the average of a network's weights; a share of 0 keeps none.

    >>> average_bytes(1000, share=0.05), average_bytes(1000, share=0)
    (4000, 0)
    """
    return FLOAT_BYTES * num_parameters if share else 0
