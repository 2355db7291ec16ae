"""Which text, cut how, fed how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from headrace.data.arguments import MAX_PREFETCH_BATCHES
from headrace.data.corpus.sources import Source
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.units import parse_bytes


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, (str, dict)) else given


Sources = Annotated[list[str | dict[str, Any]], BeforeValidator(_as_list)]
SOURCE_OPTIONS = ("document", "delimiter", "text_field", "invalid_utf8", "malformed_lines", "max_expansion")


class DataConfig(BaseModel):
    """Everything about the data. The fields of a source are those of `headrace.Source`."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)

    sources: Sources = Field(default_factory=list)
    """Files, folders, globs, or dicts of a source's fields; empty: the Python standard library on this disk."""
    tokenizer: str = ""
    """char, byte, bpe:N, a tokenizer.json, or a hub name; empty: bpe of model.vocab_size, or bpe:4096."""
    special_tokens_in_text: SpecialTokensInText = "ordinary"
    """What a special token spelled out in a document, such as <|endoftext|>, becomes: ordinary text, or that token."""
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the corpus that is kept for validation."""
    validation_sources: Sources = Field(default_factory=list)
    """Sources to validate on instead."""
    packing: Literal["stream", "document"] = "stream"
    """Windows over the token stream, or whole documents packed into rows."""
    shuffle: bool = True
    """False gives corpus order."""
    num_workers: int = Field(default=2, ge=0, le=1024)
    """Threads that make batches."""
    prefetch_batches: Annotated[int, Field(ge=0, le=MAX_PREFETCH_BATCHES)] | Literal["auto"] = "auto"
    """Batches held ready; auto deepens the queue only while training waits."""
    queue_capacity: int | None = Field(default=None, ge=0, le=MAX_PREFETCH_BATCHES)
    """Another name of prefetch_batches."""
    max_sequences_in_memory: int | None = Field(default=None, ge=1, le=1 << 40)
    """Bound on what is buffered, in sequences."""
    memory_budget: str = ""
    """Bound on what is buffered and, in one process, used for tokenising while training, such as 256MiB."""
    cache_dir: str = ""
    """Where the tokens go; empty: a folder of the user's cache."""

    # What a source that does not say it itself is read with; a source's own field goes first.
    document: str | None = None
    """What one document is in text files: file, line, paragraph or delimiter."""
    delimiter: str | None = None
    """With document=delimiter: the text between documents."""
    text_field: str | None = None
    """The .jsonl key or .parquet column that holds the text."""
    invalid_utf8: str | None = None
    """Bytes that are not UTF-8: replace (and count) or refuse."""
    malformed_lines: str | None = None
    """Bad .jsonl lines: refuse, or skip (and count)."""
    max_expansion: int | None = None
    """Compressed files that expand beyond this factor are refused."""

    @field_validator("memory_budget")
    @classmethod
    def _check_budget(cls, budget: str) -> str:
        if budget:
            parse_bytes("data.memory_budget", budget)
        return budget

    @model_validator(mode="after")
    def _check_options(self) -> DataConfig:
        try:
            self.apply_options([Source(path="")])
        except ValidationError as problem:
            first = problem.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{name}: {message}" if name else message) from None
        return self

    def source_options(self) -> dict[str, Any]:
        """Return the options that are set here for all sources."""
        return {name: getattr(self, name) for name in SOURCE_OPTIONS if getattr(self, name) is not None}

    def apply_options(self, sources: list[Source]) -> list[Source]:
        """Return the sources, each with the options that are set here and not by itself."""
        options = self.source_options()
        if not options:
            return sources
        completed = []
        for source in sources:
            own = source.model_dump(exclude_unset=True)
            # A delimiter belongs to a way of cutting: who chose another has no use for it.
            mine = {name: value for name, value in options.items() if name != "delimiter" or "document" not in own}
            completed.append(Source.model_validate({**mine, **own}))
        return completed
