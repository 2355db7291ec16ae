"""The networks that are worth considering for a time limit, and what to expect of each.

For the choice that a run makes without trials (run/start/budget.py), and for `headrace plan --minutes`, which tries
some of them (instruments/proposal.py). What is given stays: `given` holds the dotted keys of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST, PARTIAL
from headrace.data.corpus.segments import divide_corpus
from headrace.machine.hardware import available_memory_bytes
from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.perf.loss_law import Law
from headrace.perf.pace import Pace, Prospect, foresee
from headrace.perf.search_space import (
    SHORTEST_LENGTH,
    learning_rate_for,
    related_tokens_for,
    sampled_tokens_for,
    sequence_length_for,
    shapes,
    short_windows_for,
    spread_batch,
    usual_bytes_per_token,
    vocabularies_for,
)
from headrace.run.config import Config
from headrace.run.corpus import expected_vocabulary, given_cache, training_sources
from headrace.run.memory import count_memory
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops

MEMORY_SHARE = 0.8  # of the free memory that a network may take


@dataclass(frozen=True)
class Text:
    """What a choice needs to know of a text before it is tokenised."""

    num_bytes: float
    """Bytes of the training part, also where files are compressed."""
    tokenizer: str
    """The tokenizer that is given; empty: open."""
    vocab_size: int
    """The size of its vocabulary; 0: open."""

    @classmethod
    def of(cls, config: Config) -> Text:
        cache = given_cache(config)
        held = _cache_in_folder(config)
        segments = cache.segments if cache else divide_corpus(training_sources(config))
        spec, size = config.data.tokenizer, config.model.vocab_size
        if cache is not None:
            size = cache.tokenizer.vocab_size
        elif held is not None and not spec and not size:
            spec, size = held.tokenizer.spec, held.tokenizer.vocab_size
        elif spec and not size:
            size = expected_vocabulary(spec)
        return cls(config.data.training_share * sum(segment.nbytes for segment in segments), spec, size)


def _cache_in_folder(config: Config) -> Cache | None:
    """Return what the folder that the configuration names for its cache holds already; its tokenizer is kept to."""
    folder = Path(config.data.cache_dir)
    if not config.data.cache_dir or not Cache.is_cache(folder):
        return None
    return Cache.load(folder, MANIFEST if (folder / MANIFEST).exists() else PARTIAL)


def candidate_values(config: Config, given: Container[str], text: Text, minutes: float) -> Iterator[dict[str, Any]]:
    """Yield the values of every network that is worth thinking of, by dotted key; given ones are to go over them."""
    for size in [text.vocab_size] if text.vocab_size else vocabularies_for(text.num_bytes):
        tokenizer = text.tokenizer or f"bpe:{size}"
        unique_tokens = text.num_bytes / usual_bytes_per_token(tokenizer, size)
        length = _sequence_length(config, given, minutes, unique_tokens)
        for width, layers in shapes():
            yield {
                "model.d_model": width,
                "model.num_layers": layers,
                "training.max_length": length,
                "training.short_windows": short_windows_for(length),
                "training.sampled_tokens": sampled_tokens_for(size),
                "training.related_tokens": related_tokens_for(tokenizer),
                "data.tokenizer": tokenizer,
            }


def _sequence_length(config: Config, given: Container[str], minutes: float, unique_tokens: float) -> int:
    """Return the sequence length that is given, or one that suits time and text.

    A given batch keeps the shortest: longer sequences would give updates more tokens than whoever gave it expects.
    """
    if "training.max_length" in given:
        return config.training.max_length
    longest = _most_context(config.model)
    if "training.batch_size" in given:
        return min(SHORTEST_LENGTH, longest or SHORTEST_LENGTH)
    return sequence_length_for(minutes, unique_tokens, longest)


def _most_context(model: ModelConfig) -> int:
    """Return the most tokens that the network of a configuration should be shown at once; 0: any number.

    Positions that are learned would be learned too rarely where sequences are long.
    """
    return model.context or (SHORTEST_LENGTH if find_architecture(model.arch).is_context_fixed else 0)


def batch_values(config: Config, given: Container[str], batch_size: int, num_processes: int = 1) -> dict[str, int]:
    """Return batch, sequence length and windows of a candidate for a batch of this many sequences, as far as open.

    Every thread gets a sequence, every process the same number, and micro-batches are whole.
    """
    training = config.training
    if "training.batch_size" in given:
        return {}
    unit, length = num_processes * max(training.micro_batch_size, 1), training.sequence_length
    if "training.max_length" not in given:
        num_threads = num_processes * (training.threads or torch.get_num_threads())
        length, batch_size = spread_batch(length, batch_size, max(num_threads, unit))
    values = {
        "training.max_length": length,
        "training.short_windows": short_windows_for(length),
        "training.batch_size": -(-batch_size // unit) * unit,
    }
    return {key: value for key, value in values.items() if key not in given}


def learning_rate_values(config: Config, given: Container[str], tokens: float) -> dict[str, float]:
    """Return the learning rate of a candidate that is trained on this many tokens, as far as it is open and known."""
    if config.training.optimizer != "muon" or "training.learning_rate" in given:  # the rates were found with it
        return {}
    return {"training.learning_rate": learning_rate_for(config.model.d_model, tokens)}


def foresee_candidate(
    config: Config, given: Container[str], text: Text, bytes_per_token: float, seconds: float, pace: Pace, law: Law
) -> Prospect:
    """Estimate what a candidate reaches in the time, or before that where given epochs end it.

    Its vocabulary size has to be known.
    """
    model, training = config.model, config.training
    prospect = foresee(
        model,
        training.sequence_length,
        training.mean_window,
        update_flops(model, training.optimizer, Execution.from_config(training).dtype),
        max(1.0, text.num_bytes / bytes_per_token),
        bytes_per_token,
        seconds,
        pace,
        law,
        training.batch_size if "training.batch_size" in given else 0,
        training.sampled_tokens,
    )
    epochs = prospect.exposure.epochs
    if not 0 < training.num_epochs < epochs:
        return prospect
    exposure = prospect.exposure.shortened(training.num_epochs / epochs)
    return replace(prospect, exposure=exposure, bits_per_byte=law.bits_per_byte(exposure))


def needed_memory(config: Config) -> int:
    """Return the bytes that training a candidate, whose vocabulary size is known, takes at least."""
    return count_memory(config, Execution(1), 0).total


def allowed_memory(num_processes: int = 1) -> float:
    """Return the bytes that a candidate may take, where this many processes share the memory of the machine."""
    return MEMORY_SHARE * available_memory_bytes() / num_processes
