"""The head and its loss in chunks: full logits never exist, and nothing is computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 8 << 20


def head_loss(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, mask_N: Tensor | None, scale: float) -> Tensor:
    """scale x the sum of cross-entropies of `hidden @ weight.T` at the targets that the mask lets count.

    The gradient of a chunk's logits is known as soon as the logits are, so it is used on the spot, for the hidden
    states and for the weights, and the logits of the chunk are gone before the next ones come.
    """
    return _HeadLoss.apply(hidden_ND, weight_VD, targets_N, mask_N, scale)  # type: ignore[no-any-return,no-untyped-call]


def _chunks(num_rows: int, vocab_size: int) -> list[slice]:
    rows = max(16, CHUNK_BYTES // (4 * vocab_size))
    return [slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows)]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, mask_N: Tensor | None, scale: float
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        grad_ND = torch.empty_like(hidden_ND) if needs_gradient else None
        grad_VD = torch.zeros_like(weight_VD) if needs_gradient else None
        weight = weight_VD.to(hidden_ND.dtype)
        for rows in _chunks(len(hidden_ND), len(weight_VD)):
            logits = (hidden_ND[rows] @ weight.T).float()
            chosen = logits.gather(1, targets_N[rows, None])
            normaliser = logits.logsumexp(1, keepdim=True)
            losses = normaliser - chosen
            if mask_N is not None:
                losses = losses * mask_N[rows, None]
            total += losses.sum()
            if grad_ND is None or grad_VD is None:
                continue
            gradient = logits.sub_(normaliser).exp_()
            gradient.scatter_add_(1, targets_N[rows, None], torch.full_like(chosen, -1.0))
            gradient.mul_(scale if mask_N is None else mask_N[rows, None] * scale)
            gradient = gradient.to(hidden_ND.dtype)
            torch.mm(gradient, weight, out=grad_ND[rows])
            if grad_VD.dtype == gradient.dtype:
                grad_VD.addmm_(gradient.T, hidden_ND[rows])
            else:
                grad_VD += gradient.T @ hidden_ND[rows]
        ctx.save_for_backward(grad_ND, grad_VD)
        return total * scale

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.saved_tensors
        if upstream[0] != 1:
            grad_ND, grad_VD = grad_ND * upstream[0], grad_VD * upstream[0]
        return grad_ND, grad_VD, None, None, None
