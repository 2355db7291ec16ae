"""Benchmark of loaders: peers on the same tokens, each used as its own documentation recommends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench.peer import Corpus, Peer, Result, Say, begin, run_peer
from headrace.errors import ChildError

PEERS = [
    Peer("headrace-cache", "headrace.bench.peers.loaders.headrace_cache", "headrace", is_headrace=True),
    Peer(
        "headrace-text", "headrace.bench.peers.loaders.headrace_text", "headrace", is_headrace=True, makes_tokens=True
    ),
    Peer("grain-threads", "headrace.bench.peers.loaders.grain_threads", "grain", num_workers=0, other_workers=0),
    Peer("grain-processes", "headrace.bench.peers.loaders.grain_processes", "grain"),
    Peer("tf.data", "headrace.bench.peers.loaders.tf_data", "tensorflow-cpu", num_workers=0, other_workers=1),
    Peer("torch-0-workers", "headrace.bench.peers.loaders.torch_dataloader", "torch", num_workers=0, other_workers=1),
    Peer("torch-2-workers", "headrace.bench.peers.loaders.torch_dataloader", "torch"),
    Peer("hf-datasets", "headrace.bench.peers.loaders.hf_datasets", "datasets"),
    Peer("mosaicml-streaming", "headrace.bench.peers.loaders.mosaic_streaming", "mosaicml-streaming"),
    Peer("litdata", "headrace.bench.peers.loaders.lit_data", "litdata"),
]


@dataclass(frozen=True)
class LoaderOptions:
    batch_size: int = 512
    sequence_length: int = 256
    num_batches: int = 100
    step_ms: float = 100.0
    """Duration of the simulated training step that data wait is measured against."""
    least_s: float = 1.5
    most_s: float = 15.0
    timeout_s: float = 120.0


def bench_loaders(corpus: Corpus, peers: Sequence[Peer], options: LoaderOptions, say: Say) -> Iterator[Result]:
    """Yield one result as each peer ends; it includes headrace's speed as a multiple of the peer's."""
    ours: float | None = None
    for peer in peers:
        result = begin(peer)
        if result.status == "ok":
            try:
                result.values = _measure(corpus, peer, options, say)
            except ChildError as problem:
                result.status, result.message = "failed", str(problem)
        speed = result.values.get("tokens_per_second")
        if peer.name == "headrace-cache":
            ours = speed
        if ours and speed:
            result.values["headrace_is"] = ours / speed
        yield result


def _measure(corpus: Corpus, peer: Peer, options: LoaderOptions, say: Say) -> dict[str, Any]:
    shared: dict[str, Any] = {"corpus": asdict(corpus), "sequence_length": options.sequence_length}
    say(peer.name, "prepares")
    prepared = run_peer(peer, "prepare", shared, options.timeout_s)
    shared["batch_size"] = options.batch_size
    in_one_pass = corpus.num_tokens // (options.batch_size * options.sequence_length)
    serving = {
        "num_workers": peer.num_workers,
        "num_batches": options.num_batches,
        "pass_batches": max(in_one_pass - 1, 1) if peer.makes_tokens else None,
        "seconds": (options.least_s, options.most_s),
        "step_s": options.step_ms / 1000,
    }
    say(peer.name, "serves")
    values = run_peer(peer, "serve", {**shared, **serving}, options.timeout_s)
    workers = [peer.num_workers, peer.other_workers]
    say(peer.name, "serves again, to compare the order")
    again, other = run_peer(peer, "order", {**shared, "num_workers": workers}, options.timeout_s)["orders"]
    first = values.pop("order")
    return {
        **values,
        "prepare_s": prepared["prepare_s"],
        "same_order_after_restart": again == first,
        "same_order_with_other_workers": None if len(set(workers)) == 1 else other == first,
    }
