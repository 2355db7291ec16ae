"""Shuffled 512 x 256 batches from a cache: headrace against a bare NumPy gather, torch's DataLoader, and Grain.

Teaches: what the order, the queue and the threads cost on top of moving the bytes, and what other loaders cost. Every
side reads the same tokens. Sides alternate in one run, one alive at a time, and what was prefetched before the clock
started is not counted; results are medians of ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from corpora import write_text
from numpy.lib.stride_tricks import sliding_window_view

import headrace as hr

TARGETS = {"bare gather": 0.4, "torch DataLoader, 2 workers": 20.0, "Grain": 100.0}


class Windows(torch.utils.data.Dataset[Any]):
    """What a careful user of torch or Grain writes: one window by index, from a memory-mapped file."""

    def __init__(self, path: Path, length: int, as_tensors: bool = False) -> None:
        self._path = path
        self._length = length
        self._as_tensors = as_tensors
        self._tokens: npt.NDArray[Any] | None = None
        self._count = (path.stat().st_size // 2 - 1) // length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if self._tokens is None:  # mapped in the worker, not pickled
            self._tokens = np.memmap(self._path, dtype=np.uint16, mode="r")
        start = int(index) * self._length
        row = np.asarray(self._tokens[start : start + self._length + 1])
        if not self._as_tensors:
            return row
        row = row.astype(np.int64)  # what torch's embedding takes
        return torch.from_numpy(row[:-1]), torch.from_numpy(row[1:])


def bare_gather(path: Path, batch: int, length: int) -> Iterator[Any]:
    rows = sliding_window_view(np.memmap(path, dtype=np.uint16, mode="r"), length + 1)
    order = np.random.default_rng(0).permutation((len(rows) - 1) // length) * length
    while True:
        for start in range(0, len(order) - batch, batch):
            yield rows[order[start : start + batch]]


def torch_loader(path: Path, batch: int, length: int, tuned: bool) -> Iterator[Any]:
    """Yield batches of a torch DataLoader as tutorials write it; `tuned`: with NumPy rows that are only stacked."""
    dataset = Windows(path, length, as_tensors=not tuned)
    collate = np.stack if tuned else None
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=2, collate_fn=collate)
    while True:
        yield from loader


def grain_loader(path: Path, batch: int, length: int) -> Iterator[Any]:
    import grain

    dataset = grain.MapDataset.source(Windows(path, length)).shuffle(seed=0).repeat().batch(batch)
    yield from dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16))


def headrace_loader(cache: hr.Cache, batch: int, length: int) -> Iterator[Any]:
    with hr.Loader(cache, batch_size=batch, sequence_length=length) as loader:
        yield from loader


def tokens_per_second(batches: Iterator[Any], warm_up: int, count: int, tokens: int) -> float:
    for _ in range(warm_up):
        next(batches)
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    elapsed = time.perf_counter() - began
    batches.close()  # type: ignore[attr-defined]
    return count * tokens / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size, length = options.batch_size, options.sequence_length
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        root = Path(folder)
        cache = hr.prepare([write_text(root / "text.txt", 240_000_000)], tokenizer="bpe:16000", out=root / "cache")
        flat = root / "tokens.bin"
        with open(flat, "wb") as file:
            for segment in range(len(cache.segments)):
                for tokens in cache.tokens(segment, 0, cache.entry(segment).num_tokens):
                    tokens.tofile(file)
        # How to make each side, batches to let pass (more than it can have prefetched), and batches to time.
        sides: dict[str, tuple[Callable[[], Iterator[Any]], int, int]] = {
            "headrace": (lambda: headrace_loader(cache, size, length), 300, 2000),
            "bare gather": (lambda: bare_gather(flat, size, length), 100, 1000),
            "torch DataLoader, 2 workers": (lambda: torch_loader(flat, size, length, tuned=False), 10, 60),
            "torch DataLoader, tuned": (lambda: torch_loader(flat, size, length, tuned=True), 10, 60),
        }
        try:
            import grain  # noqa: F401

            sides["Grain"] = (lambda: grain_loader(flat, size, length), 20, 24)
        except ImportError:
            print("Grain: not installed (pip install 'headrace[bench]')")
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.repeats):
            for name, (make, warm_up, count) in sides.items():
                speeds[name].append(tokens_per_second(make(), warm_up, count, size * length))
    ratios = {}
    for name, values in speeds.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds["headrace"], values, strict=True))
        ratios[name] = ratio
        target = f", target {TARGETS[name]:g} x" if name in TARGETS else ""
        print(f"{name:>28}: {statistics.median(values) / 1e6:8.1f} M tokens/s; headrace is {ratio:.2f} x{target}")
    passed = all(ratios.get(name, 0.0) >= target for name, target in TARGETS.items())
    print(json.dumps({"benchmark": "serving", "ratios": ratios, "targets": TARGETS, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
