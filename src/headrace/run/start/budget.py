"""What a time limit is enough for: the network, its vocabulary, the windows and the batch, where none is given.

The law of the loss (perf/loss_law.py) says which network should end lowest after the time that there is, and the pace
of this machine how much text each would see. No candidate is tried out. `headrace plan --minutes` tries some of them
and is surer (docs/design/budget.md).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from headrace.activity import Activity, ignore
from headrace.data.cache.manifest import MANIFEST
from headrace.data.cache.open import default_cache_dir
from headrace.distributed.group import ALONE, Group
from headrace.perf.loss_law import Law, law_for
from headrace.perf.pace import Prospect
from headrace.perf.search_space import usual_bytes_per_token
from headrace.run.config import Config
from headrace.run.corpus import expected_vocabulary, training_sources
from headrace.run.start.candidates import (
    Text,
    allowed_memory,
    batch_values,
    candidate_values,
    foresee_candidate,
    learning_rate_values,
    needed_memory,
)
from headrace.run.start.keys import get_value, given_keys, is_given, set_value, with_values
from headrace.run.start.pace import machine_pace
from headrace.training.schedule import DEFAULT_MINUTES
from headrace.units import human_count, human_time

SHAPE = {"d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff", "init"}
"""Keys of `model` of which each says that the network is not to be chosen."""
CHOOSABLE = ("model.d_model", "model.num_layers", "data.tokenizer", "training.max_length", "training.short_windows",
             "training.sampled_tokens", "training.related_tokens", "training.batch_size",
             "training.learning_rate")  # fmt: skip
"""What is chosen, as far as it is not given."""
TRAINING_SHARE = 0.95  # of the time limit; the rest is for evaluations and saving
AS_GOOD = 0.02  # of the expected loss: less than the law knows


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
            f" parameters; until the limit about {human_count(exposure.tokens)} tokens, {exposure.epochs:.1f} epochs)"
        )


@dataclass
class _Candidate:
    """A network that may be chosen."""

    prospect: Prospect
    config: Config
    values: dict[str, Any]
    """What of the configuration is chosen and not given."""

    def take(self, values: dict[str, Any]) -> None:
        """Add chosen values."""
        self.values |= values
        for key, value in values.items():
            set_value(self.config, key, value)


def fill_in(config: Config, group: Group = ALONE, activity: Activity = ignore) -> str:
    """Set what a configuration leaves open by what its time limit is enough for; say what, or nothing.

    Of a group, rank 0 chooses for all.
    """
    if not is_open(config):
        return ""
    activity("choosing the network for the time limit")
    chosen = choose(config, group.world_size, group.local_world_size) if group.is_main else None
    found: list[Any] = [chosen.values, chosen.sentence()] if chosen else [{}, ""]
    values, sentence = group.from_main(found, "choosing the network for the time limit")
    for key, value in values.items():
        set_value(config, key, value)
    return str(sentence)


def fill_in_as_before(config: Config, before: Config) -> None:
    """Set what a configuration leaves open as a run has it that is resumed, whatever limits it now."""
    if _has_shape(config):
        return
    for key in CHOOSABLE:
        if not is_given(config, key):
            set_value(config, key, get_value(before, key))


def is_open(config: Config) -> bool:
    """Return whether time limits a run, and nothing is said about its network."""
    training = config.training
    is_timed = training.max_minutes > 0 or not (training.max_steps or training.num_epochs)
    return is_timed and not _has_shape(config)


def _has_shape(config: Config) -> bool:
    return bool(config.model.model_fields_set & SHAPE)


def choose(config: Config, num_processes: int = 1, num_processes_here: int = 1) -> Chosen:
    """Choose the network that should end lowest, of those that fit the memory; processes share its batch evenly.

    `num_processes_here`: how many of the processes share the memory of this machine.
    """
    config = config.model_copy(deep=True)
    minutes = config.training.max_minutes or DEFAULT_MINUTES
    text = Text.of(config)
    given, law, pace = given_keys(config), law_of(config), machine_pace(config, num_processes)
    found: list[_Candidate] = []
    for values in candidate_values(config, given, text, minutes):
        open_values = {key: value for key, value in values.items() if key not in given}
        candidate = with_values(config, open_values)
        size = candidate.model.vocab_size = text.vocab_size or expected_vocabulary(values["data.tokenizer"])
        per_token = usual_bytes_per_token(values["data.tokenizer"], size)
        seconds = TRAINING_SHARE * 60 * minutes
        prospect = foresee_candidate(candidate, given, text, per_token, seconds, pace, law)
        found.append(_Candidate(prospect, candidate, open_values))
    found.sort(key=lambda one: one.prospect.rank)
    allowed = allowed_memory(num_processes_here)
    smallest: tuple[float, _Candidate] | None = None
    for one in _tokenised_first(config, found):
        tokens = law.best_share(one.prospect.exposure) * one.prospect.exposure.tokens
        one.take(batch_values(one.config, given, one.prospect.batch_size, num_processes))
        one.take(learning_rate_values(one.config, given, tokens))
        needed = needed_memory(one.config)
        if smallest is None or needed < smallest[0]:
            smallest = needed, one
        if needed <= allowed:
            return Chosen(one.values, minutes, one.prospect)
    assert smallest is not None  # nothing fits: what is nearest to it
    return Chosen(smallest[1].values, minutes, smallest[1].prospect)


def _tokenised_first(config: Config, found: list[_Candidate]) -> list[_Candidate]:
    """Put a candidate first whose tokens are there already, as after `headrace prepare`, if it is as good as any."""
    best = found[0].prospect
    is_tokenised = functools.cache(functools.partial(_is_tokenised, config))
    for candidate in found:
        prospect = candidate.prospect
        if prospect.broken_rules > best.broken_rules or prospect.bits_per_byte > best.bits_per_byte * (1 + AS_GOOD):
            break
        if is_tokenised(candidate.config.data.tokenizer):
            return [candidate, *found]
    return found


def _is_tokenised(config: Config, spec: str) -> bool:
    """Return whether the text of a configuration was tokenised in this way before."""
    data = config.data
    folder = default_cache_dir(training_sources(config), spec, data.special_tokens_in_text, data.selection())
    return (folder / MANIFEST).exists()


def law_of(config: Config) -> Law:
    """Return the law of the loss for the dropout that a configuration gives, or leaves to the recipe."""
    return law_for(config.training.dropout if is_given(config, "training.dropout") else None)
