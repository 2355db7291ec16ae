"""Bench tokenize: the same vocabulary, the same text in memory, the same ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.errors import PeerError
from headrace.recipes.bench import Corpus, Peer, Result, begin, run_peer

PEERS = [
    Peer("headrace", "tokenize.headrace_encoder", "headrace", is_headrace=True),
    Peer("gigatoken", "tokenize.giga", "gigatoken"),
    Peer("hf-tokenizers", "tokenize.hf_tokenizers", "tokenizers"),
    Peer("tiktoken", "tokenize.tik_token", "tiktoken"),
]


def bench_tokenize(corpus: Corpus, peers: Sequence[Peer], seconds: float = 2.0) -> Iterator[Result]:
    """One result after the other; `same_ids` compares with the first peer that gave any."""
    ids: str | None = None
    ours: float | None = None
    arguments = {"text": corpus.text, "tokenizer": f"{corpus.cache}/tokenizer.json", "seconds": seconds}
    for peer in peers:
        result = begin(peer)
        if result.status == "ok":
            try:
                result.values = run_peer(peer, "tokenize", arguments, timeout_s=300)
            except PeerError as problem:
                result.status, result.message = "failed", str(problem)
            else:
                ids = ids or result.values["ids"]
                ours = result.values["megabytes_per_second"] if peer.is_headrace else ours
                result.values["same_ids"] = result.values["ids"] == ids
                if ours:
                    result.values["headrace_is"] = ours / result.values["megabytes_per_second"]
        yield result
