"""corpus.json, as far as a report shows it."""

from __future__ import annotations

from pydantic import Field

from headrace.data.config import EarlierMixture
from headrace.data.corpus.sources import Source
from headrace.data.corpus.weights import Weight
from headrace.data.mixing import mixture_plans
from headrace.data.order.plans import make_mixture
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


class MixtureRecord(Record):
    """The mixture of a run: a part of corpus.json."""

    names: list[str]
    """The sources."""
    weights: list[Weight]
    """Weights of the sources, with schedules that count steps."""
    first_step: int = 0
    """The step from which on these weights hold."""
    earlier: list[EarlierMixture] = Field(default_factory=list)
    """The mixtures before, where it was changed."""

    def rows_before(self, step: int, batch_size: int, seed: int) -> list[int]:
        """Return how many rows of each source a run has trained on before a step."""
        earlier = [(mixture.until, mixture.weights) for mixture in self.earlier]
        sources = [Source(path=name, weight=weight) for name, weight in zip(self.names, self.weights, strict=True)]
        plans = mixture_plans(sources, None, earlier, step_tokens=1)
        rows = make_mixture(plans, batch_size, seed).rows_before(step * batch_size)
        return [int(number) for number in rows]


class CorpusRecord(Record):
    """corpus.json as far as a report shows it; `data.explain.description.describe` writes it."""

    bytes: int
    documents: int
    tokens: int
    bytes_per_token: float
    tokenizer: Vocabulary
    noticed: dict[str, int]
    chunking: Chunking
    mixture: MixtureRecord | None = None
