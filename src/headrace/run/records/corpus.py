"""corpus.json, as far as a report shows it."""

from __future__ import annotations

from headrace.run.records.record import Record


class Chunking(Record):
    """How documents become sequences: a part of corpus.json."""

    sequence_length: int
    packing: str
    shortest: int
    mean: float
    longest: int
    sequences_after: int
    documents_split: int
    padding: int
    fill_percent: float


class Vocabulary(Record):
    """The tokenizer of a corpus, as far as a report shows it."""

    vocab_size: int


class CorpusRecord(Record):
    """corpus.json as far as a report shows it; `data.explain.description.describe` writes it."""

    bytes: int
    documents: int
    tokens: int
    bytes_per_token: float
    tokenizer: Vocabulary
    noticed: dict[str, int]
    chunking: Chunking
