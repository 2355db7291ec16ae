"""Prepare: a corpus becomes a token cache, and a description of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.data.corpus.sources import Source
from headrace.data.explain.description import describe
from headrace.data.prepare import prepare as prepare_corpus


def prepare(sources: list[Source], tokenizer: str, folder: str | Path | None, **options: Any) -> dict[str, Any]:
    """Tokenise a corpus into a cache folder and describe it; the options are those of `headrace.prepare`."""
    return describe(prepare_corpus(sources, tokenizer, folder, **options))
