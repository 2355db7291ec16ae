"""The options of the data engine, each defined once: for the loader, the `data` section and the command line."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from headrace.data.corpus.remote.addresses import shown
from headrace.data.corpus.sources import Source, SourceOptions
from headrace.data.corpus.weights import MOST_STEPS, Weight
from headrace.data.order.packing import PackingName
from headrace.data.selection.options import DEFAULT_THRESHOLD, LEAST_THRESHOLD, Deduplicate, Selection
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.errors import UsageError
from headrace.sizes import Size

MAX_PREFETCH_BATCHES = 1 << 16
SOURCE_OPTIONS = tuple(SourceOptions.model_fields)
NEVER_NULL = frozenset(name for name, field in SourceOptions.model_fields.items() if field.default is not None)


class LoaderOptions(BaseModel):
    """How batches are made and held ready."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    packing: PackingName = "stream"
    """How tokens become rows: stream cuts windows from the stream of all tokens, document packs whole documents."""
    shuffle: bool = True
    """Whether rows come in random order; if not, in the order of the corpus."""
    num_workers: int = Field(default=2, ge=0, le=1024)
    """Threads that make batches."""
    prefetch_batches: Annotated[int, Field(ge=0, le=MAX_PREFETCH_BATCHES)] | Literal["auto"] = "auto"
    """Batches held ready; auto deepens the queue only while training waits."""
    queue_capacity: int | None = Field(default=None, ge=0, le=MAX_PREFETCH_BATCHES)
    """Another name of prefetch_batches."""
    max_sequences_in_memory: int | None = Field(default=None, ge=1, le=1 << 40)
    """Bound on the batches that are buffered, in sequences."""
    memory_budget: Size = None
    """Bound on the memory of buffered batches and, in one process, of tokenising while training, such as 256MiB."""
    special_tokens_in_text: SpecialTokensInText = "ordinary"
    """What a special token spelled out in a document, such as <|endoftext|>, becomes: ordinary text, or that token."""
    deduplicate: Deduplicate = "none"
    """Documents that repeat earlier ones: none keeps and counts them, exact drops them, near drops similar ones too."""
    near_threshold: float = Field(default=DEFAULT_THRESHOLD, ge=LEAST_THRESHOLD, le=1)
    """With deduplicate=near: the share of shingles (five words in a row) that makes two documents near duplicates."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.queue_capacity is not None and self.prefetch_batches not in ("auto", self.queue_capacity):
            raise ValueError("prefetch_batches and queue_capacity are two names of one setting: give one of them")
        return self

    @property
    def depth(self) -> int | Literal["auto"]:
        """The batches to hold ready, under whichever name they were given."""
        return self.prefetch_batches if self.queue_capacity is None else self.queue_capacity

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """Return the options of a loader; the first that is wrong is an error that names it."""
        try:
            return cls.model_validate(given)
        except ValidationError as problem:
            first = problem.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            name = f"{first['loc'][0]} {first['input']!r:.80}: " if first["loc"] else ""
            raise UsageError(f"{name}{message}") from None


DEFAULTS = LoaderOptions()


def _as_list(given: Any) -> Any:
    """Return sources as a list, in which web addresses have no secrets: configurations are written to files."""
    given = [given] if isinstance(given, (str, dict)) else given
    return [_shown(source) for source in given] if isinstance(given, (list, tuple)) else given


def _shown(source: Any) -> Any:
    if isinstance(source, dict) and "path" in source:
        return {**source, "path": _shown(source["path"])}
    if isinstance(source, (list, tuple)):
        return [_shown(path) for path in source]
    return shown(source) if isinstance(source, str) else source


Sources = Annotated[list[str | dict[str, Any]], BeforeValidator(_as_list)]


class EarlierMixture(BaseModel):
    """The mixture that a run had until some step."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    until: int = Field(ge=1)
    """The first step of the mixture after it."""
    weights: list[Weight] | None
    """Weights of the sources that there were, which are the first of those that there are; None: one without."""


class DataConfig(LoaderOptions, SourceOptions):
    """The `data` section. Options of a source that are set here hold for all sources that do not set them."""

    model_config = ConfigDict(validate_assignment=True, allow_inf_nan=False)

    sources: Sources = Field(default_factory=list)
    """Files, folders, globs, or dicts of a source's fields; empty: the Python standard library on this disk."""
    weights: dict[str, Weight] = Field(default_factory=dict)
    """Weights of the sources by their names, over the sources' own: numbers, or schedules over steps, tokens or percent
    of the run, such as {web: 0.5, books: {0: 0.1, 80%: 0.9}}."""
    mixture_from: int = Field(default=0, ge=0, le=MOST_STEPS)
    """With --resume: the step from which on sources and weights are those given now; 0: those of the run."""
    earlier_mixtures: list[EarlierMixture] = Field(default_factory=list)
    """The mixtures before mixture_from, each until a step; headrace writes them when a run's mixture is changed."""
    tokenizer: str = ""
    """char, byte, bpe:N, a tokenizer.json, or a hub name; empty: bpe of model.vocab_size, or what is chosen with the
    network for a time limit, or bpe:4096."""
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the corpus that is kept for validation."""
    validation_sources: Sources = Field(default_factory=list)
    """Sources to validate on, instead of a share of the corpus."""
    cache_dir: Annotated[str, AfterValidator(os.path.expanduser)] = ""
    """Folder of the token cache; empty: one in the user's cache."""

    @property
    def training_share(self) -> float:
        """Share of the corpus that is trained on."""
        return 1.0 if self.validation_sources else 1 - self.validation_fraction

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, given: Any) -> Any:
        """Leave out options of sources that older configurations write as null."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in NEVER_NULL}

    def loader_options(self) -> dict[str, Any]:
        """Return the keyword arguments of a loader that are options of this section."""
        return {name: getattr(self, name) for name in LoaderOptions.model_fields}

    def selection(self) -> Selection:
        """Return which documents of all sources become tokens, as far as a configuration says it."""
        return Selection(self.deduplicate, self.near_threshold)

    def apply_options(self, sources: list[Source]) -> list[Source]:
        """Return the sources with the options of this section, where a source does not set its own."""
        options = {name: getattr(self, name) for name in SOURCE_OPTIONS if name in self.model_fields_set}
        if not options:
            return sources
        completed = []
        for source in sources:
            own = source.model_dump(exclude_unset=True)
            # A delimiter belongs to document=delimiter: a source with another way of cutting has no use for it.
            mine = {name: value for name, value in options.items() if name != "delimiter" or "document" not in own}
            completed.append(Source.model_validate({**mine, **own}))
        return completed
