"""One peer in a process of its own, which answers with what it measured: `python -m headrace.bench.peers.child`."""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from headrace.bench.peer import Corpus
from headrace.machine.children import answer_questions
from headrace.perf.speed import wait_percent

NUM_COMPARED = 3
NUM_WAITS = 20


def prepare(module: Any, corpus: dict[str, Any], sequence_length: int) -> dict[str, Any]:
    """Write the peer's own format, if it has one."""
    began = time.perf_counter()
    if hasattr(module, "prepare"):
        module.prepare(Corpus(**corpus), sequence_length)
    return {"prepare_s": time.perf_counter() - began}


def serve(
    module: Any,
    corpus: dict[str, Any],
    batch_size: int,
    sequence_length: int,
    num_workers: int,
    num_batches: int,
    pass_batches: int | None,
    seconds: tuple[float, float],
    step_s: float,
) -> dict[str, Any]:
    """Measure speed, first batch, data wait and processor time.

    The clock starts after the first batch, and runs for at least `num_batches` and the first of `seconds`, so that
    batches prefetched before it started count little, and at most for the second. For a peer that tokenises while it
    serves, `pass_batches` is one whole pass, and the clock runs over it from the very start: all tokenising counts.
    """

    def start() -> Iterator[Any]:
        return iter(module.batches(Corpus(**corpus), batch_size, sequence_length, num_workers))

    cpu, began = _cpu_seconds(), time.perf_counter()
    stream = start()
    first = [next(stream)]
    first_s = time.perf_counter() - began
    (least_s, most_s), count, elapsed = seconds, 1, first_s
    if pass_batches is None:
        cpu, began, count, elapsed = _cpu_seconds(), time.perf_counter(), 0, 0.0
    while elapsed < most_s and (
        count < num_batches or elapsed < least_s if pass_batches is None else count < pass_batches
    ):
        batch = next(stream)
        if len(first) < NUM_COMPARED:
            first.append(batch)
        count += 1
        elapsed = time.perf_counter() - began
    tokens = count * batch_size * sequence_length
    cpu = _cpu_seconds() - cpu
    if pass_batches is not None:  # a second pass would find its text tokenised
        stream = start()
        next(stream)
    waited = _wait(stream, step_s)
    return {
        "tokens_per_second": tokens / elapsed,
        "batches": count,
        "first_batch_s": first_s,
        "data_wait_percent": wait_percent(waited, waited + NUM_WAITS * step_s),
        "cpu_s_per_million_tokens": cpu / tokens * 1e6,
        "order": _digest(first),
    }


def order(
    module: Any, corpus: dict[str, Any], batch_size: int, sequence_length: int, num_workers: list[int]
) -> dict[str, list[str]]:
    """Return digests of the first batches after a restart, for several numbers of workers."""
    streams = (module.batches(Corpus(**corpus), batch_size, sequence_length, workers) for workers in num_workers)
    return {"orders": [_digest(list(islice(stream, NUM_COMPARED))) for stream in streams]}


def train(module: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return all losses and the speed without the first steps, which compile and allocate."""
    losses: list[float] = []
    times = [time.perf_counter()]

    def report(loss: float) -> None:
        losses.append(loss)
        times.append(time.perf_counter())

    num_parameters = module.train(job, report)
    seconds = np.diff(times)[job["num_warmup_steps"] :]
    tokens = job["batch_size"] * job["sequence_length"]
    return {"parameters": num_parameters, "losses": losses, "tokens_per_second": tokens / float(np.median(seconds))}


def tokenize(module: Any, text: str, tokenizer: str, seconds: float) -> dict[str, Any]:
    """Measure the encoding of text in memory, best of as many rounds as fit, and return a digest of the ids."""
    from headrace.data.corpus.cuts import split_document

    pieces = [piece.decode() for piece in split_document(Path(text).read_bytes())]
    encode: Callable[[list[str]], Any] = module.make(Path(tokenizer).read_text(encoding="utf-8"))
    encode(pieces[:2])
    nbytes = os.path.getsize(text)
    best, deadline = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < deadline:
        began = time.perf_counter()
        ids = encode(pieces)
        best = min(best, time.perf_counter() - began)
    ids = np.asarray(ids, dtype=np.uint32)
    return {
        "megabytes_per_second": nbytes / best / 1e6,
        "tokens": len(ids),
        "ids": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
    }


def _wait(stream: Iterator[Any], step_s: float) -> float:
    """Return the seconds that a training loop with steps of this duration waits for data."""
    waited = 0.0
    for _ in range(NUM_WAITS):
        began = time.perf_counter()
        next(stream)
        waited += time.perf_counter() - began
        time.sleep(step_s)
    return waited


def _cpu_seconds() -> float:
    """Return the processor time of this process and of all its children, the ended ones included."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def _digest(batches: list[Any]) -> str:
    """Return a digest of the inputs, whatever the peer's kind of array."""
    state = hashlib.sha256()
    for batch in batches:
        rows = np.asarray(batch[0] if isinstance(batch, (tuple, list)) else batch)
        state.update(np.ascontiguousarray(rows, dtype=np.uint32).tobytes())
    return state.hexdigest()[:16]


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare, "serve": serve, "order": order, "train": train, "tokenize": tokenize,
}  # fmt: skip


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Run the measurement that is asked for."""
    return MEASUREMENTS[question["kind"]](importlib.import_module(question["module"]), **question["arguments"])


if __name__ == "__main__":
    answer_questions(answer)  # until it is ended: some peers leave threads behind that never end
