"""AdamW for embeddings, head and vectors; Muon for the matrices in between.

The rules are plain objects over PyTorch's functions: `torch.optim.Optimizer` would load the whole of torch.compile
with it, a second and 75 MB that a small machine has better uses for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from headrace.distributed.pieces import as_whole, local, own_part
from headrace.models.network import Network
from headrace.training.config import TrainingConfig

# Quintic Newton-Schulz coefficients that bring singular values near 1 in five steps (Jordan et al., 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
# Matrices of one shape that are orthogonalised together: enough for full speed, in little memory.
_SCRATCH_ELEMENTS = 1 << 20
# What an optimizer counts or squares, by the end of its name.
NEVER_NEGATIVE = (".step", ".exp_avg_sq")
# Layers whose weight is several matrices stacked.
_STACKED = {"query_key_value.weight": 3, "gate_up.weight": 2}


def orthogonalise(matrices: Tensor) -> Tensor:
    """About the nearest orthogonal matrices (n, rows, columns): U V of the singular value decomposition."""
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Rule(ABC):
    """How some parameters are updated from their gradients."""

    numbers_per_weight: int
    """Size of the state."""
    scalars: tuple[str, ...] = ()
    """Names of what it keeps once for each parameter."""
    averages: tuple[str, ...]
    """Names of what it keeps in the shape of each parameter."""

    def __init__(self, parameters: list[Tensor], weight_decay: float) -> None:
        self.parameters = parameters
        self.weight_decay = weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @abstractmethod
    def step(self, learning_rate: float) -> None:
        """Update every parameter that has a gradient."""


class AdamW(Rule):
    """PyTorch's fused AdamW."""

    numbers_per_weight = 2
    scalars = ("step",)
    averages = ("exp_avg", "exp_avg_sq")

    def __init__(self, parameters: list[Tensor], weight_decay: float, beta1: float, beta2: float) -> None:
        super().__init__(parameters, weight_decay)
        self._betas = beta1, beta2

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        parameters = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        state = [self.state[parameter] for parameter in parameters]
        adamw(
            [local(parameter) for parameter in parameters],
            [local(parameter.grad) for parameter in parameters if parameter.grad is not None],
            [local(held["exp_avg"]) for held in state],
            [local(held["exp_avg_sq"]) for held in state],
            [],
            [held["step"] for held in state],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class Muon(Rule):
    """Momentum, orthogonalised, in float32 and batched by shape: a few large products instead of many small ones.

    The update is scaled to the size that AdamW's would have, so both share one learning rate. Of a matrix in pieces,
    every process keeps its piece of the momentum, orthogonalises all of it, and takes its piece of the update.
    """

    numbers_per_weight = 1
    averages = ("momentum",)

    def __init__(self, parameters: list[Tensor], weight_decay: float, momentum: float, stacked: int = 1) -> None:
        """`stacked`: each parameter is so many matrices, one above the other."""
        super().__init__(parameters, weight_decay)
        self._momentum = momentum
        self._stacked = stacked

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in self.parameters:
            if parameter.grad is not None:
                by_shape[tuple(parameter.shape)].append(parameter)
        for shape, parameters in by_shape.items():
            at_once = max(1, _SCRATCH_ELEMENTS // math.prod(shape))
            for start in range(0, len(parameters), at_once):
                self._update(parameters[start : start + at_once], learning_rate)

    def _update(self, parameters: list[Tensor], learning_rate: float) -> None:
        matrices = torch.stack([self._ahead(parameter) for parameter in parameters]).float()
        rows, columns = matrices.shape[1] // self._stacked, matrices.shape[2]
        updates = orthogonalise(matrices.view(-1, rows, columns)).reshape(matrices.shape)
        size = 0.2 * max(rows, columns) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - learning_rate * self.weight_decay)
            parameter.add_(own_part(update, parameter), alpha=-learning_rate * size)

    def _ahead(self, parameter: Tensor) -> Tensor:
        """Nesterov's look-ahead of the momentum, which is brought up to date; whole."""
        assert parameter.grad is not None
        if parameter not in self.state:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}
        momentum = self.state[parameter]["momentum"]
        momentum.lerp_(parameter.grad, 1 - self._momentum)
        return as_whole(parameter.grad.lerp(momentum, self._momentum))


class Optimizer:
    """All parameters of a network, each under the rule it belongs to."""

    def __init__(self, network: Network, config: TrainingConfig) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
        self._peak = config.learning_rate
        matrices: dict[int, list[Tensor]] = defaultdict(list)
        decayed: list[Tensor] = []
        plain: list[Tensor] = []
        for name, parameter in network.named_parameters():
            is_matrix = parameter.dim() == 2 and name.startswith("blocks.")
            if is_matrix and config.optimizer == "muon":
                stacked = next((n for suffix, n in _STACKED.items() if name.endswith(suffix)), 1)
                matrices[stacked].append(parameter)
            elif parameter.dim() == 2:
                decayed.append(parameter)
            else:
                plain.append(parameter)
        self.rules: list[Rule] = [
            AdamW(decayed, config.weight_decay, config.beta1, config.beta2),
            AdamW(plain, 0.0, config.beta1, config.beta2),
        ]
        for stacked, parameters in sorted(matrices.items()):
            self.rules.append(Muon(parameters, config.weight_decay, config.momentum, stacked))

    def step(self, factor: float) -> None:
        """Update with the learning rate at this share of its peak."""
        for rule in self.rules:
            rule.step(self._peak * factor)

    def bytes_to_come(self) -> int:
        """Memory that the first step will keep. What updates work in is no more than what the backward pass freed."""
        return sum(
            4 * rule.numbers_per_weight * parameter.numel()
            for rule in self.rules
            for parameter in rule.parameters
            if parameter not in rule.state
        )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The state, whole, by the names of the parameters. In pieces: all processes have to go through it together."""
        for rule in self.rules:
            for parameter, state in rule.state.items():
                for key, value in state.items():
                    yield f"{self._names[parameter]}.{key}", as_whole(value)

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what `tensors` yields once every parameter has been updated."""
        shapes: dict[str, tuple[int, ...]] = {}
        for rule in self.rules:
            for parameter in rule.parameters:
                name = self._names[parameter]
                shapes |= {f"{name}.{key}": () for key in rule.scalars}
                shapes |= {f"{name}.{key}": tuple(parameter.shape) for key in rule.averages}
        return shapes

    def load_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take back what `tensors` gave, of this `layout`; each process keeps what it has a piece of."""
        owners = {self._names[parameter]: (rule, parameter) for rule in self.rules for parameter in rule.parameters}
        for name, tensor in tensors:
            owner, _, key = name.rpartition(".")
            rule, parameter = owners[owner]
            value = tensor.to(parameter.device, copy=True)
            rule.state.setdefault(parameter, {})[key] = own_part(value, parameter) if value.dim() else value
