"""What a cache holds: counts, sizes, sources, and what chunking does to its documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.data.cache.cache import Cache
from headrace.data.explain.statistics import chunking_statistics
from headrace.data.order.packing import PackingName


def describe(cache: Cache, sequence_length: int = 256, packing: PackingName = "stream") -> dict[str, Any]:
    """Return counts, sizes, sources, and chunking statistics at a sequence length."""
    size = cache.tokenizer.dtype.itemsize
    stored = sum(shard.num_tokens * size + shard.num_documents * 8 for shard in cache.unique_shards().values())
    sources = []
    for number, source in enumerate(cache.sources):
        mine = [index for index, segment in enumerate(cache.segments) if segment.source == number]
        entries = [cache.entry(index) for index in mine]
        sources.append(
            {
                "name": source.label,
                "weight": source.weight,
                "files": sum(cache.segments[i].num_files for i in mine if cache.segments[i].ordinal == 0),
                "bytes": sum(cache.segments[index].nbytes for index in mine),
                "documents": sum(entry.num_documents for entry in entries),
                "tokens": sum(entry.num_tokens for entry in entries),
            }
        )
    tokenizer = cache.tokenizer
    return {
        "cache": str(cache.path),
        "documents": cache.num_documents,
        "tokens": cache.num_tokens,
        "bytes": cache.num_bytes,
        "bytes_per_token": round(cache.num_bytes / max(cache.num_tokens, 1), 3),
        "stored_bytes": stored,
        "shards": len(cache.unique_shards()),
        "tokenizer": {
            "spec": tokenizer.spec,
            "vocab_size": tokenizer.vocab_size,
            "hash": tokenizer.hash[:16],
            "special_tokens_in_text": tokenizer.special_tokens_in_text,
            "notices": list(tokenizer.notices),
        },
        "selection": cache.selection,
        "duplicates": cache.duplicates,
        "dropped": cache.dropped,
        "noticed": dict(cache.noticed),
        "skipped": dict(cache.skipped),
        "sources": sources,
        "chunking": {
            "sequence_length": sequence_length,
            "packing": packing,
            **asdict(chunking_statistics(cache, sequence_length, packing)),
        },
    }
