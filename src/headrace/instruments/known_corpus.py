"""What can be said of a corpus before a run, without tokenising it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from headrace.data.cache.cache import Cache
from headrace.data.cache.open import default_cache_dir
from headrace.data.config import DataConfig
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import Source, as_sources
from headrace.data.loader import Loader
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.run.config import Config
from headrace.run.corpus import expected_vocabulary, given_cache, tokenizer_spec, training_mixture, training_sources
from headrace.run.start.budget import fill_in
from headrace.run.start.settle import settle_model

ASSUMED_BYTES_PER_TOKEN = 3.5
TIMED_BATCHES = 8


@dataclass(frozen=True)
class KnownCorpus:
    """The size of a corpus: counted where it is tokenised, else estimated from its bytes."""

    num_bytes: int
    tokens: int
    validation_tokens: float
    """Tokens of the text that is evaluated on: a part of these, or other files."""
    cache: Cache | None
    """None if it is not tokenised yet."""


def complete_from_corpus(config: Config, assumptions: list[str]) -> KnownCorpus:
    """Fill in the vocabulary and the context, and return what is known of the corpus."""
    if not config.model.init and (chosen := fill_in(config)):
        assumptions.append(chosen)
    beginning = settle_model(config)
    model, data = config.model, config.data
    sources = training_sources(config)
    spec = tokenizer_spec(config)
    cache = given_cache(config) or _finished_cache(sources, beginning.tokenizer if beginning else spec, data)
    if not model.vocab_size:
        model.vocab_size = cache.tokenizer.vocab_size if cache else expected_vocabulary(spec)
        if cache is None and not spec.startswith("bpe:"):
            assumptions.append(f"a vocabulary of {model.vocab_size:,} tokens: the tokenizer is not there yet")
    model.context = model.context or config.training.sequence_length
    if cache is not None:
        in_validation = _validation_tokens(data, cache.num_tokens, cache.num_bytes / cache.num_tokens)
        return KnownCorpus(cache.num_bytes, cache.num_tokens, in_validation, cache)
    num_bytes = _num_bytes(sources)
    per_token = 1.0 if spec in ("byte", "char") else ASSUMED_BYTES_PER_TOKEN
    assumptions.append(f"{per_token:g} bytes per token, and no waiting for batches: the corpus is not tokenised yet")
    tokens = int(num_bytes / per_token)
    return KnownCorpus(num_bytes, tokens, _validation_tokens(data, tokens, per_token), None)


def time_loader(config: Config, cache: Cache) -> float:
    """Measure the seconds that the workers together take for a batch of the tokenised corpus."""
    data, training = config.data, config.training
    size, length = training.batch_size, training.sequence_length
    options = {"packing": data.packing, "shuffle": data.shuffle, **training_mixture(config)}
    with Loader(cache, size, length, prefetch_batches=0, **options) as loader:
        next(loader)  # the first batch also looks up where rows lie
        began = time.perf_counter()
        for _ in range(TIMED_BATCHES):
            next(loader)
        return (time.perf_counter() - began) / TIMED_BATCHES / max(1, data.num_workers)


def _validation_tokens(data: DataConfig, tokens: int, bytes_per_token: float) -> float:
    """Return the tokens to evaluate on: those of validation files where there are some, else a share of `tokens`."""
    if not data.validation_sources:
        return data.validation_fraction * tokens
    return _num_bytes(data.apply_options(as_sources(list(data.validation_sources)))) / bytes_per_token


def _num_bytes(sources: list[Source]) -> int:
    return sum(segment.nbytes for segment in divide_corpus(sources))


def _finished_cache(sources: list[Source], tokenizer: str | Tokenizer, data: DataConfig) -> Cache | None:
    folder = data.cache_dir
    special, selection = data.special_tokens_in_text, data.selection()
    path = Path(folder) if folder else default_cache_dir(sources, tokenizer, special, selection)
    if not Cache.is_cache(path):
        return None
    cache = Cache.open(path)
    return cache if cache.is_complete else None
