"""The loss of the head, computed in chunks: full logits never exist, and nothing is computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from headrace.models.kernels import PLAIN, Kernels
from headrace.models.linear import onednn_product

LEAST_PROBABILITY = torch.finfo(torch.float32).tiny
"""Floor of the probability of a target: losses above 87 nats count as 87."""


def head_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    mask_N: Tensor | None,
    scale: float,
    kernels: Kernels = PLAIN,
) -> Tensor:
    """Return scale x the sum of the cross-entropies of `hidden @ weight.T` at the targets that the mask counts.

    The gradient of a chunk's logits is known as soon as the logits are, so it is used at once, for the hidden states
    and for the weight, and the chunk is freed before the next one is computed. If the weight has a gradient already,
    this adds to it in place, so that no second one exists: call backward exactly once for every call.
    """
    if not torch.is_grad_enabled():  # a Function does not notice: its inputs still require gradients
        hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach()
    return _HeadLoss.apply(  # type: ignore[no-any-return,no-untyped-call]
        hidden_ND, weight_VD, targets_N, mask_N, scale, kernels
    )


def _chunks(num_rows: int, vocab_size: int, chunk_bytes: int) -> list[slice]:
    """Divide rows into the fewest slices of equal size whose logits stay below the limit."""
    most = max(16, chunk_bytes // (4 * vocab_size))
    rows = max(1, -(-num_rows // -(-num_rows // most)))
    return [slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows)]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        mask_N: Tensor | None,
        scale: float,
        kernels: Kernels,
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        grad_ND = torch.empty_like(hidden_ND) if needs_gradient else None
        grad_VD = weight_VD.grad if weight_VD.is_leaf else None
        is_added = grad_VD is not None
        weight = weight_VD.to(hidden_ND.dtype)
        use_onednn = kernels.matmul == "onednn" and hidden_ND.dtype == torch.float32
        product = onednn_product if use_onednn else linear
        for rows in _chunks(len(hidden_ND), len(weight_VD), kernels.head_chunk_bytes):
            hidden, target = hidden_ND[rows], targets_N[rows, None]
            row_scale = scale if mask_N is None else mask_N[rows, None] * scale
            gradient = product(hidden, weight).float().softmax(1)
            chosen = gradient.gather(1, target)
            # Taking the logarithm here saves log_softmax's second exponential per logit; a loss above 87 nats
            # counts as 87.
            total -= (chosen.clamp_min(LEAST_PROBABILITY).log() * row_scale).sum()
            if grad_ND is None:
                continue
            gradient.scatter_(1, target, chosen - 1)
            gradient = gradient.to(hidden.dtype)
            # Scale what is as wide as the hidden states, which is much narrower than the logits.
            torch.mul(product(gradient, weight.T), row_scale, out=grad_ND[rows])
            scaled_hidden = (hidden * row_scale).to(hidden.dtype)
            if grad_VD is None:
                grad_VD = (gradient.T @ scaled_hidden).to(weight_VD.dtype)
            elif grad_VD.dtype == gradient.dtype:
                grad_VD.addmm_(gradient.T, scaled_hidden)
            else:
                grad_VD += gradient.T @ scaled_hidden
        ctx.save_for_backward(grad_ND, None if is_added else grad_VD)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.saved_tensors
        assert upstream[0] == 1, "scale the loss by `scale`: its gradients are computed already"
        return grad_ND, grad_VD, None, None, None, None
