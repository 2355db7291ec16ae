"""The best matrix multiplication rate that this machine shows: what "% of peak" is measured against."""

from __future__ import annotations

import time

import torch

SIZES = (512, 1024, 2048)


def measure_peak_flops(dtype: torch.dtype = torch.float32, seconds: float = 0.6) -> float:
    """FLOP/s of the fastest of several square products, with the threads that training uses."""
    best = 0.0
    for size in SIZES:
        left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        out = torch.empty(size, size, dtype=dtype)
        torch.mm(left, right, out=out)
        deadline = time.perf_counter() + seconds / len(SIZES)
        while time.perf_counter() < deadline:
            began = time.perf_counter()
            torch.mm(left, right, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best
