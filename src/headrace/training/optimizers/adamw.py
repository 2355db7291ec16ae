"""AdamW, by PyTorch's fused kernel: two averages per weight, and no matrix products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import local
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers.rule import Rule

EPSILON = 1e-8
NEVER_NEGATIVE = ("step", "exp_avg_sq")
"""Ends of the names of state that is counted or squared: a negative value there means a damaged file."""


def apply_adamw(
    tensors: list[Tensor],
    gradients: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    learning_rate: float,
    weight_decay: float,
    config: TrainingConfig,
) -> None:
    """Update plain tensors and their state in place, by PyTorch's fused kernel."""
    adamw(
        tensors,
        gradients,
        averages,
        squares,
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=config.beta1,
        beta2=config.beta2,
        lr=learning_rate,
        weight_decay=weight_decay,
        eps=EPSILON,
        maximize=False,
    )


class AdamW(Rule):
    """AdamW with decoupled weight decay."""

    scalars: tuple[str, ...] = ("step",)
    averages = ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        parameters = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter in parameters:
            state = self.state.setdefault(parameter, {})
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        apply_adamw(
            [local(parameter) for parameter in parameters],
            [local(parameter.grad) for parameter in parameters if parameter.grad is not None],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [state["step"] for state in states],
            learning_rate,
            self.weight_decay,
            self.config,
        )

    @staticmethod
    def update_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
        return 0
