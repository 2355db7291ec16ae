"""What lies between matrix products, each as one step of autograd: less is kept for the backward pass, and fewer passes
go over it than PyTorch's own operations take on a CPU. Compiled code keeps PyTorch's operations, and fuses them itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headrace.models.kernels import Kernels
from headrace.models.linear import product_dtype

CACHED = 1 << 17
"""Numbers that are computed at a time, so that what comes between input and output stays in the processor's cache."""
# GELU by tanh is x * sigmoid(u) with u = x * (LINEAR + CUBIC * x * x): one exponential, where tanh takes four times as
# long as a sigmoid.
LINEAR = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715 * LINEAR


def gelu(x: Tensor, kernels: Kernels) -> Tensor:
    """Compute GELU by its tanh formula."""
    if kernels.compile or not (torch.is_grad_enabled() and x.requires_grad):
        return functional.gelu(x, approximate="tanh")
    return _Gelu.apply(x)  # type: ignore[no-any-return,no-untyped-call]


class _Gelu(torch.autograd.Function):
    """Computes the derivative together with the value, and keeps only that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        value, derivative = torch.empty_like(x), torch.empty_like(x)
        linear = torch.tensor(LINEAR, device=x.device)
        parts = (torch.split(tensor.view(-1), CACHED) for tensor in (x, value, derivative))
        for part, part_value, part_derivative in zip(*parts, strict=True):
            wide = part.float()
            inner = torch.addcmul(linear, wide, wide, value=CUBIC).mul_(wide)
            gate = torch.sigmoid(inner)
            torch.mul(wide, gate, out=part_value)
            inner.mul_(3).sub_(wide, alpha=2 * LINEAR)  # x times the derivative of u
            torch.add(torch.ops.aten.sigmoid_backward(inner, gate), gate, out=part_derivative)
        ctx.save_for_backward(derivative)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return gradients[0] * derivative  # type: ignore[no-any-return]


def swiglu(gate_up: Tensor, kernels: Kernels) -> Tensor:
    """Compute silu(gate) * up, where the gate is the first half of the last dimension and up the second."""
    if not kernels.compile and torch.is_grad_enabled() and gate_up.requires_grad:
        return _SwiGlu.apply(gate_up)  # type: ignore[no-any-return,no-untyped-call]
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


class _SwiGlu(torch.autograd.Function):
    """Computes the derivatives by gate and by up together with the value, and keeps only them."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        derivatives = torch.empty_like(gate_up)
        by_gate, by_up = derivatives.chunk(2, dim=-1)
        torch.ops.aten.silu_backward(up, gate, grad_input=by_gate)
        torch.ops.aten.silu(gate, out=by_up)
        ctx.save_for_backward(derivatives)
        return by_up * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        (derivatives,) = ctx.saved_tensors
        return (derivatives.unflatten(-1, (2, -1)) * gradients[0].unsqueeze(-2)).flatten(-2)  # type: ignore[no-any-return]


class RMSNorm(nn.RMSNorm):
    """An `nn.RMSNorm` that returns the number format of the product which follows it."""

    def forward(self, x: Tensor, kernels: Kernels) -> Tensor:  # type: ignore[override]
        assert self.eps is not None
        if kernels.compile:
            return super().forward(x)
        return _RmsNorm.apply(x, self.weight, self.eps)  # type: ignore[no-any-return,no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        factor = inverse_rms(x, epsilon)
        ctx.save_for_backward(x, weight_D, factor)
        return (x * factor).mul_(weight_D).to(product_dtype(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        x, weight_D, factor = ctx.saved_tensors
        grad = gradients[0].to(x.dtype)
        normed = x * factor
        grad_D = (grad * normed).flatten(0, -2).sum(0)
        return rms_norm_backward(grad * weight_D, normed, factor), grad_D, None


def inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """Return one over the root mean square of the last dimension."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def rms_norm_backward(grad: Tensor, normed: Tensor, factor: Tensor) -> Tensor:
    """Return the gradient of x, where `normed` is x * factor and `grad` its gradient, which is overwritten."""
    along = torch.linalg.vecdot(grad, normed).unsqueeze(-1).div_(-normed.shape[-1])
    return grad.addcmul_(normed, along).mul_(factor)
