"""The loss of the head, computed in chunks: full logits never exist, and nothing is computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.models.kernels import PLAIN, Kernels
from headrace.models.linear import choose_product, product_dtype

LEAST_PROBABILITY = torch.finfo(torch.float32).tiny
"""Floor of the probability of a target: losses above 87 nats count as 87."""


def head_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    mask_N: Tensor | None,
    scale: float,
    kernels: Kernels = PLAIN,
    offsets_V: Tensor | None = None,
) -> Tensor:
    """Return scale x the sum of the cross-entropies of `hidden @ weight.T` at the targets that the mask counts.

    `offsets_V`: numbers that are added to the logits, one for each token.

    The gradient of a chunk's logits is known as soon as the logits are, so it is used at once, for the hidden states
    and for the weight, and the chunk is freed before the next one is computed. If the weight has a gradient already,
    this adds to it in place, so that no second one exists: call backward exactly once for every call.
    """
    if not torch.is_grad_enabled():  # a Function does not notice: its inputs still require gradients
        hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach()
    return _HeadLoss.apply(  # type: ignore[no-any-return,no-untyped-call]
        hidden_ND, weight_VD, targets_N, mask_N, scale, kernels, offsets_V
    )


def _chunks(num_rows: int, row_bytes: int, chunk_bytes: int) -> list[slice]:
    """Divide rows of logits into the fewest slices of equal size that stay below the limit."""
    most = max(16, chunk_bytes // row_bytes)
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
        offsets_V: Tensor | None,
    ) -> Tensor:
        # Autocast would leave products that are computed in place, and casts of each chunk's weight, as they are.
        dtype = product_dtype(hidden_ND)
        product = choose_product(kernels, dtype, hidden_ND.device)
        wide_ND, weight = hidden_ND.to(dtype), weight_VD.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        grad_ND = torch.empty_like(hidden_ND) if any(ctx.needs_input_grad[:2]) else None
        grad_VD = weight_VD.grad if weight_VD.is_leaf else None
        is_added = grad_VD is not None
        for rows in _chunks(len(hidden_ND), weight.element_size() * len(weight), kernels.head_chunk_bytes):
            hidden = wide_ND[rows]
            at_targets = (torch.arange(len(hidden), device=hidden.device), targets_N[rows])
            row_scale = scale if mask_N is None else mask_N[rows, None] * scale
            logits = product(hidden, weight)
            if offsets_V is not None:
                logits += offsets_V
            gradient = torch.softmax(logits, 1, out=logits)  # in place: chunks are what takes most memory here
            chosen = gradient[at_targets]
            # Taking the logarithm here saves log_softmax's second exponential per logit; a loss above 87 nats
            # counts as 87.
            total -= (chosen.float().clamp_min(LEAST_PROBABILITY).log()[:, None] * row_scale).sum()
            if grad_ND is None:
                continue
            gradient[at_targets] = chosen - 1  # scatter_ would copy all of a bfloat16 tensor
            # Scale what is as wide as the hidden states, which is much narrower than the logits.
            torch.mul(product(gradient, weight.T), row_scale, out=grad_ND[rows])
            scaled_hidden = (hidden * row_scale).to(dtype)
            if grad_VD is None:
                grad_VD = (gradient.T @ scaled_hidden).to(weight_VD.dtype)
            elif grad_VD.dtype == dtype:
                grad_VD.addmm_(gradient.T, scaled_hidden)
            else:
                grad_VD += gradient.T @ scaled_hidden
        ctx.save_for_backward(grad_ND, None if is_added else grad_VD)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.saved_tensors
        assert upstream[0] == 1, "scale the loss by `scale`: its gradients are computed already"
        return grad_ND, grad_VD, None, None, None, None, None
