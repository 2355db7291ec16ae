from __future__ import annotations

import torch
from torch import Tensor

from headrace.training.config import TrainingConfig
from headrace.training.optimizers.adamw import AdamW


def test_updates_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in mine]
    rule = AdamW(list[Tensor](mine), TrainingConfig(beta1=0.8, beta2=0.9), weight_decay=0.1)
    reference = torch.optim.AdamW(theirs, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    for _ in range(3):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        rule.step(0.01)
        reference.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
