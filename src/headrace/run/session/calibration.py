"""Calibration: how sure of its predictions a network should be, found on text that it was not trained on.

A network that has learned its text by heart is too sure of itself elsewhere. Multiplying all logits by one number mends
that. Logits are products with the output of the last norm, so the weights of that norm are multiplied, and what is
saved is a model like any other. Why, and what it is worth: docs/design/calibration.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.models.network import Network

MOST = 0.15
"""How far from 1 a factor may be: the loss is measured there, and beyond it would be a guess."""
LEAST_TOKENS = 1_000
"""Fewest tokens of validation text that a factor is found on: with these, it is uncertain by about 0.015."""


class Calibration:
    """The factor of a run's logits, and the weights that training would go on with."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._trained: list[Tensor] = []
        self.factor = 1.0
        self.num_tokens = 0
        """Tokens of the sample on which the factor was found."""
        self.loss_before: float | None = None
        """Loss on that sample without the factor; None: the model is not calibrated."""

    @torch.no_grad()
    def multiply(self, factor: float) -> None:
        """Multiply the logits of the network; no update may follow."""
        if factor == 1.0:
            return
        self._trained = [parameter.detach().clone() for parameter in self._network.norm.parameters()]
        self.factor = factor
        for parameter in self._network.norm.parameters():
            parameter.mul_(factor)

    @property
    def trained_weights(self) -> list[Tensor] | None:
        """The weights as they were trained, in the order of the network's parameters; None: those of the network."""
        if not self._trained:
            return None
        kept = {id(own): before for own, before in zip(self._network.norm.parameters(), self._trained, strict=True)}
        return [kept.get(id(parameter), parameter.detach()) for parameter in self._network.parameters()]


@torch.no_grad()
def find_factor(network: Network, loss: Callable[[], float]) -> tuple[float, float]:
    """Return the factor of the logits for which `loss()`, which evaluates the network, is lowest; and the loss now.

    It is the lowest point of a parabola through the losses at three factors. The network stays as it is.
    """
    parameters = list(network.norm.parameters())
    trained = [parameter.detach().clone() for parameter in parameters]

    def loss_with(factor: float) -> float:
        for parameter, before in zip(parameters, trained, strict=True):
            parameter.copy_(before * factor)
        return loss()

    try:
        less, now, more = loss_with(1 - MOST), loss_with(1.0), loss_with(1 + MOST)
        return (1 + lowest_point(less, now, more, MOST) if parameters else 1.0), now
    finally:
        for parameter, before in zip(parameters, trained, strict=True):
            parameter.copy_(before)


def lowest_point(left: float, middle: float, right: float, step: float) -> float:
    """Return where a parabola through values at -step, 0 and step is lowest, at most a step away; 0: nowhere.

    >>> lowest_point(4.0, 1.0, 0.0, step=1.0), lowest_point(9.0, 4.0, 1.0, step=1.0), lowest_point(0.0, 1.0, 0.0, 1.0)
    (1.0, 1.0, 0.0)
    """
    bend = left - 2 * middle + right
    if not 0 < bend < math.inf:
        return 0.0
    return max(-step, min(step, step * (left - right) / (2 * bend)))
