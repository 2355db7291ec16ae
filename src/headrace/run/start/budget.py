"""What a time limit is enough for: the network, its vocabulary, the windows and the batch, where none is given.

The law of the loss (perf/loss_law.py) says which network should end lowest after the time that there is, and the pace
of this machine how much text each would see. Nothing is tried out: it takes less than a second. `headrace plan
--minutes` tries some candidates and is surer (docs/design/budget.md).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from headrace.activity import Activity, ignore
from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST, PARTIAL
from headrace.data.cache.open import default_cache_dir
from headrace.data.corpus.segments import divide_corpus
from headrace.distributed.group import ALONE, Group
from headrace.machine.hardware import available_memory_bytes
from headrace.machine.measure import PRECISIONS
from headrace.machine.peak import measure_peak_flops
from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.perf.loss_law import Law, law_for
from headrace.perf.pace import Pace, Prospect, foresee, usual_pace
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
from headrace.run.environment import known_rates
from headrace.run.machine import remembered_machine
from headrace.run.memory import count_memory
from headrace.training.execution import Execution, Precision
from headrace.training.optimizers.assignment import update_flops
from headrace.training.schedule import DEFAULT_MINUTES
from headrace.units import human_count, human_time

SHAPE = {"d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff", "init"}
"""Keys of `model` of which each says that the network is not to be chosen."""
CHOOSABLE = ("model.d_model", "model.num_layers", "data.tokenizer", "training.max_length", "training.short_windows",
             "training.sampled_tokens", "training.related_tokens", "training.batch_size",
             "training.learning_rate")  # fmt: skip
"""What is chosen, as far as it is not given."""
TRAINING_SHARE = 0.95  # of the time limit; the rest is for evaluations and saving
MEMORY_SHARE = 0.8  # of the free memory that a network may take
AS_GOOD = 0.02  # of the expected loss: less than the law knows
QUICK_PEAK_S = 0.2
"""Seconds that measuring the peak takes where it is not remembered: a choice among shapes need not be exact."""


_Candidate = tuple[Prospect, dict[str, Any]]


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a time limit, and what is expected of it."""

    values: dict[str, Any]
    """Values by dotted key, of the keys that were open."""
    minutes: float
    prospect: Prospect

    def sentence(self) -> str:
        """Say what was chosen, and why."""
        exposure = self.prospect.exposure
        chosen = " ".join(f"{key.partition('.')[2]}={value}" for key, value in self.values.items())
        return (
            f"chosen for {human_time(60 * self.minutes)} on this machine: {chosen} ({human_count(exposure.parameters)}"
            f" parameters, about {human_count(exposure.tokens)} tokens, {exposure.epochs:.1f} epochs)"
        )


def fill_in(config: Config, group: Group = ALONE, activity: Activity = ignore) -> str:
    """Set what a configuration leaves open by what its time limit is enough for; say what, or nothing.

    Of a group, rank 0 chooses for all.
    """
    if not is_open(config):
        return ""
    activity("choosing the network for the time limit")
    chosen = choose(config, group.num_machines, group.world_size) if group.is_main else None
    found: list[Any] = [chosen.values, chosen.sentence()] if chosen else [{}, ""]
    values, sentence = group.from_main(found, "choosing the network for the time limit")
    for key, value in values.items():
        set_value(config, key, value)
    return str(sentence)


def fill_in_as_before(config: Config, before: Config) -> None:
    """Set what a configuration leaves open as a run has it that is resumed."""
    if not is_open(config):
        return
    for key in CHOOSABLE:
        if not is_given(config, key):
            set_value(config, key, get_value(before, key))


def is_open(config: Config) -> bool:
    """Return whether time limits a run, and nothing is said about its network."""
    training = config.training
    is_timed = training.max_minutes > 0 or not (training.max_steps or training.num_epochs)
    return is_timed and not config.model.model_fields_set & SHAPE


def choose(config: Config, num_machines: int = 1, num_processes: int = 1) -> Chosen:
    """Choose the network that should end lowest, of those that fit the memory; processes share its batch evenly."""
    config = config.model_copy(deep=True)
    minutes = config.training.max_minutes or DEFAULT_MINUTES
    corpus = _Corpus.of(config)
    pace = machine_pace(num_machines)
    found = [(_foresee(config, values, corpus, pace, 60 * minutes), values) for values in _candidates(config, corpus)]
    free = MEMORY_SHARE * available_memory_bytes()
    found.sort(key=lambda one: (one[0].broken_rules, one[0].bits_per_byte))
    found = _tokenised_first(config, found)
    smallest: tuple[float, _Candidate] | None = None
    for prospect, values in found:
        values |= _learning_rate(config, prospect, values)
        values |= _batch(config, prospect.batch_size, values["training.max_length"], num_processes)
        needed = count_memory(_with(config, values), Execution(1), 0).total
        if smallest is None or needed < smallest[0]:
            smallest = needed, (prospect, values)
        if needed <= free:
            break
    else:  # nothing fits: what is nearest to it
        assert smallest is not None
        prospect, values = smallest[1]
    open_values = {key: value for key, value in values.items() if not is_given(config, key)}
    return Chosen(open_values, minutes, prospect)


def _tokenised_first(config: Config, found: list[_Candidate]) -> list[_Candidate]:
    """Put a candidate first whose tokens are there already, as after `headrace prepare`, if it is as good as any."""
    best = found[0][0]
    is_tokenised = functools.cache(functools.partial(_is_tokenised, config))
    for candidate in found:
        prospect, values = candidate
        if prospect.broken_rules > best.broken_rules or prospect.bits_per_byte > best.bits_per_byte * (1 + AS_GOOD):
            break
        if is_tokenised(values["data.tokenizer"]):
            return [candidate, *found]
    return found


def _is_tokenised(config: Config, spec: str) -> bool:
    """Return whether the text of a configuration was tokenised in this way before."""
    data = config.data
    folder = default_cache_dir(training_sources(config), spec, data.special_tokens_in_text, data.selection())
    return (folder / MANIFEST).exists()


def is_given(config: Config, key: str) -> bool:
    """Return whether a value was given, and is not the default."""
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def get_value(config: Config, key: str) -> Any:
    """Return the value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def set_value(config: Config, key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def law_of(config: Config) -> Law:
    """Return the law of the loss for the dropout that a configuration gives, or leaves to the recipe."""
    return law_for(config.training.dropout if is_given(config, "training.dropout") else None)


def machine_pace(num_machines: int = 1) -> Pace:
    """Return the pace at which this machine should train, by its peak: a remembered one, or a quick measurement."""
    machine, threads = remembered_machine(), torch.get_num_threads()
    known = [known_rates(Execution(1, precision, threads=threads), machine) for precision in get_args(Precision)]
    peak = max((rates.peak_flops for rates in known if rates), default=0.0) or _quick_peak()
    return usual_pace(num_machines * peak)


@functools.cache
def _quick_peak() -> float:
    """Measure the peak briefly, once in a process."""
    return max(measure_peak_flops(dtype, QUICK_PEAK_S) for dtype in PRECISIONS.values())


@dataclass(frozen=True)
class _Corpus:
    """What a choice needs to know of a text before it is tokenised."""

    num_bytes: float
    """Bytes of the training part."""
    tokenizer: str
    """The tokenizer that is given; empty: open."""
    vocab_size: int
    """The size of its vocabulary; 0: open."""

    @classmethod
    def of(cls, config: Config) -> _Corpus:
        cache = given_cache(config)
        held = _cache_in_folder(config)
        segments = cache.segments if cache else divide_corpus(training_sources(config))
        share = 1.0 if config.data.validation_sources else 1 - config.data.validation_fraction
        spec, size = config.data.tokenizer, config.model.vocab_size
        if cache is not None:
            size = cache.tokenizer.vocab_size
        elif held is not None and not spec and not size:
            spec, size = held.tokenizer.spec, held.tokenizer.vocab_size
        elif spec and not size:
            size = expected_vocabulary(spec)
        return cls(share * sum(segment.nbytes for segment in segments), spec, size)


def _cache_in_folder(config: Config) -> Cache | None:
    """Return what the folder that the configuration names for its cache holds already; its tokenizer is kept to."""
    folder = Path(config.data.cache_dir)
    if not config.data.cache_dir or not Cache.is_cache(folder):
        return None
    return Cache.load(folder, MANIFEST if (folder / MANIFEST).exists() else PARTIAL)


def _candidates(config: Config, corpus: _Corpus) -> Iterator[dict[str, Any]]:
    """Yield the values of every network that is worth thinking of, as far as the given values leave a choice."""
    minutes = config.training.max_minutes or DEFAULT_MINUTES
    training, is_drawn = config.training, is_given(config, "training.sampled_tokens")
    is_cut = is_given(config, "training.short_windows")
    for size in [corpus.vocab_size] if corpus.vocab_size else vocabularies_for(corpus.num_bytes):
        tokenizer = corpus.tokenizer or f"bpe:{size}"
        unique_tokens = corpus.num_bytes / usual_bytes_per_token(tokenizer, size)
        length = _sequence_length(config, minutes, unique_tokens)
        for width, layers in shapes():
            yield {
                "model.d_model": width,
                "model.num_layers": layers,
                "training.max_length": length,
                "training.short_windows": training.short_windows if is_cut else short_windows_for(length),
                "training.sampled_tokens": training.sampled_tokens if is_drawn else sampled_tokens_for(size),
                "training.related_tokens": related_tokens_for(tokenizer),
                "data.tokenizer": tokenizer,
            }


def _sequence_length(config: Config, minutes: float, unique_tokens: float) -> int:
    """Return the sequence length that is given, or one that suits time and text.

    A given batch keeps the shortest: longer sequences would give updates more tokens than whoever gave it expects.
    """
    if is_given(config, "training.max_length"):
        return config.training.max_length
    if is_given(config, "training.batch_size"):
        return SHORTEST_LENGTH
    return sequence_length_for(minutes, unique_tokens, most_context(config.model))


def most_context(model: ModelConfig) -> int:
    """Return the most tokens that the network of a configuration should be shown at once; 0: any number.

    Positions that are learned would be learned too rarely where sequences are long.
    """
    return model.context or (SHORTEST_LENGTH if find_architecture(model.arch).is_context_fixed else 0)


def _learning_rate(config: Config, prospect: Prospect, values: dict[str, Any]) -> dict[str, float]:
    """Return the learning rate for what a candidate is trained on before it ends, where one is known."""
    if config.training.optimizer != "muon":  # the rates were found with it
        return {}
    seen = prospect.exposure
    tokens = law_of(config).best_share(seen) * seen.tokens
    return {"training.learning_rate": learning_rate_for(values["model.d_model"], tokens)}


def _batch(config: Config, batch_size: int, length: int, num_processes: int) -> dict[str, int]:
    """Return batch, sequence length and windows: enough sequences for all threads, the same number for each process."""
    unit = num_processes * max(config.training.micro_batch_size, 1)
    if not (is_given(config, "training.max_length") or is_given(config, "training.batch_size")):
        num_threads = num_processes * (config.training.threads or torch.get_num_threads())
        length, batch_size = spread_batch(length, batch_size, max(num_threads, unit))
    return {
        "training.max_length": length,
        "training.short_windows": short_windows_for(length),
        "training.batch_size": -(-batch_size // unit) * unit,
    }


def _with(config: Config, values: dict[str, Any]) -> Config:
    """Return a copy of a configuration with these values."""
    changed = config.model_copy(deep=True)
    for key, value in values.items():
        set_value(changed, key, value)
    return changed


def _foresee(config: Config, values: dict[str, Any], corpus: _Corpus, pace: Pace, seconds: float) -> Prospect:
    """Estimate what a candidate reaches in the time."""
    candidate = _with(config, values)
    model, training = candidate.model, candidate.training
    model.vocab_size = corpus.vocab_size or expected_vocabulary(candidate.data.tokenizer)
    bytes_per_token = usual_bytes_per_token(corpus.tokenizer, model.vocab_size)
    return foresee(
        model,
        training.sequence_length,
        training.mean_window,
        update_flops(model, training.optimizer, Execution.from_config(training).dtype),
        max(1.0, corpus.num_bytes / bytes_per_token),
        bytes_per_token,
        TRAINING_SHARE * seconds,
        pace,
        law_of(config),
        training.batch_size if is_given(config, "training.batch_size") else 0,
        training.sampled_tokens,
    )
