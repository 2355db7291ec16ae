"""AdamW, by PyTorch's fused kernel: two averages per weight, and no matrix products."""

from __future__ import annotations

import torch
from torch.optim.adamw import adamw

from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import local
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers.rule import Rule

EPSILON = 1e-8
NEVER_NEGATIVE = (".step", ".exp_avg_sq")
"""Ends of the names of state that is counted or squared: a negative value there means a damaged file."""


class AdamW(Rule):
    """AdamW with decoupled weight decay."""

    scalars = ("step",)
    averages = ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
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
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    @staticmethod
    def update_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
        return 0
