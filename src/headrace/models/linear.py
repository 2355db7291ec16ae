"""Linear layers whose products PyTorch computes in one of two ways; which is faster depends on the machine.

PyTorch's float32 products on x86 go through MKL, which on AMD processors leaves a tenth to a fifth of the machine
unused; oneDNN, which PyTorch carries too, does not. bfloat16 goes through oneDNN anyway, and asking it directly saves
a pass over the output in which the bias is laid out first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headrace.models.kernels import Kernels


def has_onednn() -> bool:
    """Return whether this build of PyTorch carries oneDNN's products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


@cache
def has_onednn_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 on this processor."""
    return has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def onednn_product(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Compute x @ weight.T + bias by oneDNN, whatever the strides of the weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return product


def choose_product(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensor]:
    """Return the function that computes x @ weight.T + bias in a number format on a device."""
    if device.type != "cpu":
        return functional.linear
    is_onednn = has_onednn_bfloat16() if dtype == torch.bfloat16 else kernels.matmul == "onednn"
    return onednn_product if is_onednn else functional.linear


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the number format in which products of a tensor are to be computed: autocast's, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, kernels: Kernels) -> Tensor:
        dtype = product_dtype(x)
        ctx.product = choose_product(kernels, dtype, x.device)
        ctx.has_bias = bias_O is not None
        x, weight = x.to(dtype), weight_OI.to(dtype)
        ctx.save_for_backward(x, weight)
        return ctx.product(x, weight, None if bias_O is None else bias_O.to(dtype))  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, weight_OI = ctx.saved_tensors
        grad_NO = gradients[0].flatten(0, -2)
        grad_x = ctx.product(gradients[0], weight_OI.T) if ctx.needs_input_grad[0] else None
        grad_OI = grad_NO.T @ x.flatten(0, -2)  # both transposed: here MKL is as fast
        return grad_x, grad_OI, grad_NO.sum(0) if ctx.has_bias else None, None


class Linear(nn.Linear):
    """An `nn.Linear` whose kernel is chosen with every call."""

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:  # type: ignore[override]
        if kernels.compile:
            return functional.linear(x, self.weight, self.bias)
        return _Linear.apply(x, self.weight, self.bias, kernels)  # type: ignore[no-any-return,no-untyped-call]
