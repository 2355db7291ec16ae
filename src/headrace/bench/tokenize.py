"""Benchmark of tokenizers: the same vocabulary, the same text in memory, the same ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.bench.peer import Corpus, Peer, Result, Say, begin, run_peer
from headrace.errors import ChildError

PEERS = [
    Peer("headrace", "headrace.bench.peers.tokenize.headrace_encoder", "headrace", is_headrace=True),
    Peer("gigatoken", "headrace.bench.peers.tokenize.giga", "gigatoken"),
    Peer("hf-tokenizers", "headrace.bench.peers.tokenize.hf_tokenizers", "tokenizers"),
    Peer("tiktoken", "headrace.bench.peers.tokenize.tik_token", "tiktoken"),
]


def bench_tokenize(corpus: Corpus, peers: Sequence[Peer], say: Say, seconds: float = 2.0) -> Iterator[Result]:
    """Yield one result as each peer ends; `same_ids` compares with the first peer that returned any."""
    ids: str | None = None
    ours: float | None = None
    arguments = {"text": corpus.text, "tokenizer": f"{corpus.cache}/tokenizer.json", "seconds": seconds}
    for peer in peers:
        result = begin(peer)
        if result.status == "ok":
            say(peer.name, "encodes")
            try:
                result.values = run_peer(peer, "tokenize", arguments, timeout_s=300)
            except ChildError as problem:
                result.status, result.message = "failed", str(problem)
            else:
                ids = ids or result.values["ids"]
                ours = result.values["megabytes_per_second"] if peer.is_headrace else ours
                result.values["same_ids"] = result.values["ids"] == ids
                if ours:
                    result.values["headrace_is"] = ours / result.values["megabytes_per_second"]
        yield result
