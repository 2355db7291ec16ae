"""The best matrix multiplication rate that this machine shows: what "% of peak" is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.machine.device import best_device

SIZES = (512, 1024, 2048)


def measure_peak_flops(dtype: torch.dtype = torch.float32, seconds: float = 0.6) -> float:
    """FLOP/s of the fastest of several square products, where and with the threads that training uses."""
    best, device = 0.0, best_device()
    products = _products(dtype, device)
    share_s = seconds / len(SIZES) / len(products)
    for product in products:
        for size in SIZES:
            left, right = (torch.randn(size, size).to(device, dtype) for _ in range(2))
            first_s = _time(product, left, right)  # also sets up the kernel
            best = max(best, 2 * size**3 / first_s)
            deadline = time.perf_counter() + share_s
            while time.perf_counter() < deadline:
                best = max(best, 2 * size**3 / _time(product, left, right))
            if first_s > share_s:  # emulated precision: a larger product would take seconds
                break
    return best


def _time(product: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> float:
    began = time.perf_counter()
    product(left, right)
    if left.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _products(dtype: torch.dtype, device: torch.device) -> list[Callable[[Tensor, Tensor], Tensor]]:
    """torch.mm, and oneDNN's float32 product, which is faster on some processors."""
    products: list[Callable[[Tensor, Tensor], Tensor]] = [torch.mm]
    if dtype == torch.float32 and device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        products.append(_onednn)
    return products


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return product
