"""Linear layers whose float32 products PyTorch computes in one of two ways; which is faster depends on the machine.

PyTorch's float32 products on x86 go through MKL, which on AMD processors leaves a tenth to a fifth of the machine
unused; oneDNN, which PyTorch carries too, does not. bfloat16 goes through oneDNN anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.models.kernels import Kernels


def has_onednn() -> bool:
    """Return whether this build of PyTorch carries oneDNN's products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def onednn_product(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Compute x @ weight.T + bias by oneDNN, whatever the strides of the weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return product


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.has_bias = bias_O is not None
        return onednn_product(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, weight_OI = ctx.saved_tensors
        grad_NO = gradients[0].flatten(0, -2)
        grad_x = onednn_product(gradients[0], weight_OI.T) if ctx.needs_input_grad[0] else None
        grad_OI = grad_NO.T @ x.flatten(0, -2)  # both transposed: here MKL is as fast
        return grad_x, grad_OI, grad_NO.sum(0) if ctx.has_bias else None


class Linear(nn.Linear):
    """An `nn.Linear` whose kernel is chosen with every call."""

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:  # type: ignore[override]
        is_wanted = kernels.matmul == "onednn" and x.dtype == torch.float32
        if is_wanted and not torch.is_autocast_enabled(x.device.type):
            return _OneDnnLinear.apply(x, self.weight, self.bias)  # type: ignore[no-any-return,no-untyped-call]
        return functional.linear(x, self.weight, self.bias)
