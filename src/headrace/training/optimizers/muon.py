"""Muon: momentum, orthogonalised by Newton-Schulz iterations (Jordan et al., 2024); one average per weight."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from headrace.distributed.pieces import as_whole, own_part
from headrace.training.optimizers.rule import Rule

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration that bring singular values near 1 in five steps."""
STEPS = 5
SCRATCH_ELEMENTS = 1 << 20
"""Elements of matrices of one shape that are orthogonalised together: enough for full speed, in little memory."""


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return nearly the closest orthogonal matrices (n, rows, columns): U V of the singular value decomposition."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(Rule):
    """Muon in float32, batched by shape: a few large products instead of many small ones.

    The update is scaled to the size that AdamW's would have, so both share one learning rate. Where processes share a
    matrix, each keeps its piece of the momentum, orthogonalises the whole, and takes its piece of the update.
    """

    averages = ("momentum",)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in self.parameters:
            if parameter.grad is not None:
                alike[self.stacked.get(parameter, 1), *parameter.shape].append(parameter)
        for (stacked, *shape), parameters in alike.items():
            at_once = max(1, SCRATCH_ELEMENTS // math.prod(shape))
            for start in range(0, len(parameters), at_once):
                self._update(parameters[start : start + at_once], stacked, learning_rate)

    def _update(self, parameters: list[Tensor], stacked: int, learning_rate: float) -> None:
        matrices = torch.stack([self._look_ahead(parameter) for parameter in parameters]).float()
        rows, columns = matrices.shape[1] // stacked, matrices.shape[2]
        updates = orthogonalise(matrices.view(-1, rows, columns)).reshape(matrices.shape)
        size = 0.2 * max(rows, columns) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - learning_rate * self.weight_decay)
            parameter.add_(own_part(update, parameter), alpha=-learning_rate * size)

    def _look_ahead(self, parameter: Tensor) -> Tensor:
        """Update the momentum with the gradient, and return Nesterov's look-ahead of it, whole."""
        assert parameter.grad is not None
        if parameter not in self.state:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}
        momentum = self.state[parameter]["momentum"]
        momentum.lerp_(parameter.grad, 1 - self.config.momentum)
        return as_whole(parameter.grad.lerp(momentum, self.config.momentum))

    @staticmethod
    def update_flops(rows: int, columns: int) -> int:
        """Return the FLOPs of Newton-Schulz: per step two products with the Gram matrix, and its square."""
        short, long = sorted((rows, columns))
        return STEPS * (2 * 2 * short * short * long + 2 * short**3)
