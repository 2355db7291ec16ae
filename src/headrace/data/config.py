"""Which text, cut how, fed how."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.data.special_tokens import SpecialTokensInText


class DataConfig(BaseModel):
    """Everything about the data. The fields of a source are those of `headrace.Source`."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    sources: list[str | dict[str, Any]] = Field(default_factory=list)
    """Files, folders, globs, or dicts of a source's fields; empty: the Python standard library on this disk."""
    tokenizer: str = ""
    """char, byte, bpe:N, a tokenizer.json, or a hub name; empty: bpe of model.vocab_size, or bpe:4096."""
    special_tokens_in_text: SpecialTokensInText = "ordinary"
    """What a special token spelled out in a document, such as <|endoftext|>, becomes: ordinary text, or that token."""
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the corpus that is kept for validation."""
    validation_sources: list[str | dict[str, Any]] = Field(default_factory=list)
    """Sources to validate on instead."""
    packing: Literal["stream", "document"] = "stream"
    """Windows over the token stream, or whole documents packed into rows."""
    shuffle: bool = True
    """False gives corpus order."""
    num_workers: int = Field(default=2, ge=0)
    """Threads that make batches."""
    prefetch_batches: int | Literal["auto"] = "auto"
    """Batches held ready; auto deepens the queue only while training waits."""
    queue_capacity: int | None = None
    """Another name of prefetch_batches."""
    max_sequences_in_memory: int | None = None
    """Bound on what is buffered, in sequences."""
    memory_budget: str = ""
    """Bound on what is buffered and, in one process, used for tokenising while training, such as 256MiB."""
    cache_dir: str = ""
    """Where the tokens go; empty: a folder of the user's cache."""
