"""The measured peak: the best matrix multiplication rate of this machine, which "% of peak" refers to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from headrace.machine.device import best_device

SIZES = (512, 1024, 2048)
NUM_ROUNDS = 3
ENOUGH_CLEAN = 3
PATIENCE = 5.0  # measure up to this many times as long while other programs use the processor
CLEAN_SHARE = 0.85  # a product is undisturbed if its threads got this share of the processor time they could have had

Product = Callable[[Tensor, Tensor], Tensor]


def measure_peak_flops(dtype: torch.dtype = torch.float32, seconds: float = 0.6) -> float:
    """Measure the FLOP/s of the fastest of several square products, where and with the threads that training uses.

    Candidates take turns, and the best counts: other programs can only make a product slower. On a busy machine this
    goes on until some products had the processor for themselves, or patience ends.
    """
    candidates = list(_candidates(dtype, best_device(), seconds))
    share_s = seconds / len(candidates) / NUM_ROUNDS
    best, num_clean = 0.0, 0
    began_s = time.perf_counter()
    while True:
        for product, left, right in candidates:
            turn_s = 0.0
            while turn_s <= share_s:
                product_s, is_clean = _time(product, left, right)
                turn_s += product_s
                best = max(best, 2 * len(left) ** 3 / product_s)
                num_clean += is_clean
        elapsed_s = time.perf_counter() - began_s
        if (elapsed_s >= seconds and num_clean >= ENOUGH_CLEAN) or elapsed_s >= PATIENCE * seconds:
            return best


def _candidates(dtype: torch.dtype, device: torch.device, seconds: float) -> Iterator[tuple[Product, Tensor, Tensor]]:
    """Yield products and their operands, in sizes up to one that takes too long: emulated precisions are slow."""
    for product in _products(dtype, device):
        for size in SIZES:
            left, right = (torch.randn(size, size).to(device, dtype) for _ in range(2))
            product_s, _ = _time(product, left, right)  # also sets up the kernel
            yield product, left, right
            if product_s > seconds / len(SIZES):
                break


def _time(product: Product, left: Tensor, right: Tensor) -> tuple[float, bool]:
    """Return the seconds of a product, and whether its threads had the processor all the time."""
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    product(left, right)
    if left.is_cuda:
        torch.cuda.synchronize()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    return seconds, left.is_cuda or cpu_s >= CLEAN_SHARE * seconds * torch.get_num_threads()


def _products(dtype: torch.dtype, device: torch.device) -> list[Product]:
    """Return torch.mm and, on CPUs, oneDNN's float32 product, which is faster on some of them."""
    products: list[Product] = [torch.mm]
    if dtype == torch.float32 and device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        products.append(_onednn)
    return products


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return product
