"""AdamW for embeddings, head and vectors; Muon for the matrices in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headrace.models.network import Network
from headrace.training.config import TrainingConfig

# Quintic Newton-Schulz coefficients that bring singular values near 1 in five steps (Jordan et al., 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
# Matrices of one shape that are orthogonalised together: enough for full speed, in little memory.
_SCRATCH_ELEMENTS = 4 << 20
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


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, in float32 and batched by shape: a few large products instead of many small ones.

    The update is scaled to the size that AdamW's would have, so both share one learning rate.
    """

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                buffer: Tensor = state["momentum"]
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(buffer, group["momentum"])  # Nesterov
                rows = parameter.shape[0] // group["stacked"]
                for part, update in zip(parameter.split(rows), ahead.split(rows), strict=True):
                    by_shape[tuple(part.shape)].append((part, update))
            for shape, pairs in by_shape.items():
                at_once = max(1, _SCRATCH_ELEMENTS // math.prod(shape))
                for start in range(0, len(pairs), at_once):
                    self._update(pairs[start : start + at_once], group)

    @staticmethod
    def _update(pairs: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        updates = orthogonalise(torch.stack([update for _, update in pairs]).float())
        size = 0.2 * max(updates.shape[1:]) ** 0.5
        for (part, _), update in zip(pairs, updates, strict=True):
            part.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)


class Optimizer:
    """All parameters of a network, each in the group it belongs to."""

    def __init__(self, network: Network, config: TrainingConfig) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
        matrices: dict[int, list[Tensor]] = defaultdict(list)
        decayed, plain = [], []
        for name, parameter in network.named_parameters():
            is_matrix = parameter.dim() == 2 and name.startswith("blocks.")
            if is_matrix and config.optimizer == "muon":
                stacked = next((n for suffix, n in _STACKED.items() if name.endswith(suffix)), 1)
                matrices[stacked].append(parameter)
            elif parameter.dim() == 2:
                decayed.append(parameter)
            else:
                plain.append(parameter)
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=True,
        )
        self.parts: list[torch.optim.Optimizer] = [adamw]
        for stacked, parameters in sorted(matrices.items()):
            muon = Muon(parameters, config.learning_rate, config.momentum, config.weight_decay)
            muon.param_groups[0]["stacked"] = stacked
            self.parts.append(muon)
        self._peak = config.learning_rate

    def step(self, factor: float) -> None:
        """Update with the learning rate at this share of its peak."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self._peak * factor
            part.step()

    def bytes_to_come(self) -> int:
        """Memory that the first step will take: the state, and what the update works in."""
        num_bytes = 0
        for part in self.parts:
            scratch = 0
            for parameter in self._parameters(part):
                numbers = 1 if isinstance(part, Muon) else 2
                num_bytes += 0 if part.state.get(parameter) else numbers * 4 * parameter.numel()
                scratch += 4 * parameter.numel()
            if isinstance(part, Muon):  # the momentum ahead of all, and a few buffers of those that go together
                num_bytes += scratch + 4 * 4 * _SCRATCH_ELEMENTS
        return num_bytes

    def tensors(self) -> dict[str, Tensor]:
        """The state, by the names of the parameters."""
        return {
            f"{self._names[parameter]}.{key}": value
            for part in self.parts
            for parameter, state in part.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        by_parameter: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            owner, _, key = name.rpartition(".")
            by_parameter[owner][key] = tensor
        for part in self.parts:
            for parameter in self._parameters(part):
                state = by_parameter.get(self._names[parameter])
                if state is not None:
                    part.state[parameter] = {key: value.clone() for key, value in state.items()}

    @staticmethod
    def _parameters(part: torch.optim.Optimizer) -> Iterator[Tensor]:
        for group in part.param_groups:
            yield from group["params"]
