"""Proposing the network, batch and token count that should reach the lowest loss in a given time on this machine.

Some candidates are trained for seconds each, which shows how fast they are (perf/pace.py). A law of the loss
(perf/loss_law.py) says which candidate to try next and, in the end, which should be best after the whole time. That one
is trained for longer, to see how hard the text is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from headrace.data.corpus.segments import divide_corpus
from headrace.errors import UsageError
from headrace.instruments.short_run import ShortRun, train_briefly
from headrace.machine.hardware import available_memory_bytes
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.perf.loss_law import Expectation, law_for
from headrace.perf.pace import Pace, Prospect, fit_pace, flops_per_token, foresee
from headrace.perf.search_space import (
    SHORTEST_LENGTH,
    batch_size_for,
    expected_bytes_per_token,
    learning_rate_for,
    related_tokens_for,
    sampled_tokens_for,
    sequence_length_for,
    shapes,
    short_windows_for,
    spread_batch,
    vocabularies_for,
)
from headrace.run.config import Config, Layers
from headrace.run.corpus import expected_vocabulary, given_cache, training_sources
from headrace.run.memory import count_memory
from headrace.run.start.budget import most_context, set_value
from headrace.run.start.regime import recipe_for
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops
from headrace.training.pauses import expected_seconds
from headrace.units import human_count, human_time

RUNS_SHARE, MOST_RUNS_S, MOST_RUNS = 0.2, 150.0, 5
LEAST_RUN_S, RUN_OVERHEAD_S = 1.0, 2.5
LEAST_TRAINING_SHARE = 0.1  # of the time, however long evaluations take: a run trains at all
LAST_RUN_SHARE = 0.45  # of the time of all short runs, for the one of the network that seemed best
SCOUTS = (4e5, 3e6)  # parameters of the first two candidates, which show how fast small and larger networks are
SCOUT_TOKENS = 3e6  # the length of run that their batch size is chosen for
UNLIKE = 1.25  # the next candidate has another vocabulary, or parameters that differ by this factor
LARGE_CORPUS_BYTES, LARGE_CORPUS_VOCABULARY = 200e6, 16_000  # tokenising it several times would take too long
MEMORY_SHARE = 0.8  # share of the free memory that a candidate may take


@dataclass
class Proposal:
    """The proposed configuration and what to expect of it; also what `plan --minutes --json` prints."""

    config: Config
    minutes: float
    prospect: Prospect
    runs: list[ShortRun]
    planning_s: float
    interval: tuple[float, float] = (0.0, 0.0)
    """The range in which the bits per byte should lie."""
    assumptions: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        exposure = self.prospect.exposure
        return {
            "config": self.config.model_dump(exclude={"run"}),
            "minutes": self.minutes,
            "parameters": exposure.parameters,
            "tokens": round(exposure.tokens),
            "epochs": exposure.epochs,
            "tokens_per_second": self.prospect.tokens_per_second,
            "bits_per_byte": self.prospect.bits_per_byte,
            "bits_per_byte_interval": list(self.interval),
            "planning_seconds": self.planning_s,
            "short_runs": [run.as_json() for run in self.runs],
            "assumptions": self.assumptions,
        }


def propose(given: Layers, minutes: float, show: Callable[[ShortRun], None] = lambda _: None) -> Proposal:
    """Try candidates for a share of the time and return the best. What a configuration gives stays as it is.

    >>> layers = Layers()                                                       # doctest: +SKIP
    >>> layers.add({"data.sources": ["corpus.txt"]}, "the call")                # doctest: +SKIP
    >>> propose(layers, minutes=60).config.model.d_model                        # doctest: +SKIP
    """
    search = Search(given, minutes)
    began = time.perf_counter()
    budget_s = min(RUNS_SHARE * 60 * minutes, MOST_RUNS_S)
    first_runs_s = (1 - LAST_RUN_SHARE) * budget_s
    run_s = max(LEAST_RUN_S, first_runs_s / MOST_RUNS - RUN_OVERHEAD_S)
    last_run_s = max(run_s, LAST_RUN_SHARE * budget_s - RUN_OVERHEAD_S)

    def try_out(config: Config, seconds: float) -> ShortRun:
        run = train_briefly(config, seconds, search.train_bytes, search.nearest_run(config))
        search.add(run)
        show(run)
        return run

    while (config := search.next_to_try()) is not None:
        spent_s = time.perf_counter() - began
        if len(search.runs) >= len(SCOUTS) and spent_s + run_s + RUN_OVERHEAD_S > first_runs_s:
            break
        try_out(config, run_s)
    last = try_out(search.best()[0], last_run_s)
    config, prospect = search.best()  # another one, where the last run has changed what is known of the speed
    search.settle_recipe(config, prospect)
    _, same = search.best(like=last.config)
    expected = Expectation.of(same.exposure, last.exposure, last.bits_per_byte)
    expected = expected.moved(prospect.bits_per_byte - same.bits_per_byte)
    prospect = replace(prospect, bits_per_byte=expected.bits_per_byte)
    proposal = Proposal(config, minutes, prospect, search.runs, time.perf_counter() - began, expected.interval)
    proposal.assumptions = _assumptions(proposal, run_s, last_run_s, expected.unchecked_efolds)
    return proposal


class Search:
    """The candidates, what is known of the corpus, and what the short runs so far have shown."""

    def __init__(self, given: Layers, minutes: float) -> None:
        self._given, self._minutes = given, minutes
        self._law = law_for(given.values.get("training.dropout"))
        self.runs: list[ShortRun] = []
        self._misfit: UsageError | None = None
        if given.values.get("model.init"):
            raise UsageError(
                "plan --minutes proposes a network, and model.init brings one along. Leave one of them out: without"
                " --minutes, `headrace plan` says what continuing costs."
            )
        base = _without_shape(given)
        self._most_context = most_context(ModelConfig(**_of_section(given, "model", ("arch", "context"))))
        self._num_threads = given.values.get("training.threads") or torch.get_num_threads()
        cache = given_cache(base)
        if cache is not None:
            raise UsageError(
                f"{cache.path}: a token cache, and a proposal compares tokenizers. Name the text instead of its cache."
            )
        # Bytes of text, also where files are compressed.
        corpus_bytes = sum(segment.nbytes for segment in divide_corpus(training_sources(base)))
        self.train_bytes = corpus_bytes * (1 - base.data.validation_fraction)
        self._candidates = self._make_candidates(base, corpus_bytes)

    def add(self, run: ShortRun) -> None:
        """Add a short run, and the real vocabulary size of its tokenizer."""
        self.runs.append(run)
        if "model.vocab_size" in self._given.values:
            return
        for config in (*self._candidates, run.config):
            if config.data.tokenizer == run.config.data.tokenizer:
                config.model.vocab_size = run.exposure.vocab_size

    def nearest_run(self, config: Config) -> ShortRun | None:
        """Return the short run nearest in size, whose execution should be the fastest here too; None at first."""
        if len(self.runs) < len(SCOUTS):
            return None
        return min(self.runs, key=lambda run: abs(math.log(_parameters(run.config) / _parameters(config))))

    def next_to_try(self) -> Config | None:
        """Return the next candidate: first a small and a larger network, then the most promising unlike those tried."""
        tried = [run.config for run in self.runs]
        unlike = [config for config in self._candidates if all(_is_unlike(config, other) for other in tried)]
        if not unlike or len(self.runs) >= MOST_RUNS:
            return None
        if len(tried) < len(SCOUTS):
            wanted = math.log(SCOUTS[len(tried)])
            config = min(unlike, key=lambda config: abs(math.log(_parameters(config)) - wanted))
            return self._with_batch(config, batch_size_for(SCOUT_TOKENS, config.training.sequence_length))
        config, prospect = self._best_of(unlike)
        return self._with_batch(config, prospect.batch_size)

    def best(self, like: Config | None = None) -> tuple[Config, Prospect]:
        """Return the best of the candidates whose tokenizer has been tried, or the one with the network of `like`."""
        known = {run.config.data.tokenizer for run in self.runs}
        possible = [c for c in self._candidates if c.data.tokenizer in known]
        if like is not None:
            possible = [c for c in possible if _network(c) == _network(like)]
        config, prospect = self._best_of(possible)
        return self._with_batch(config, prospect.batch_size), prospect

    def settle_recipe(self, config: Config, prospect: Prospect) -> None:
        """Write the recipe for the whole time into a configuration, as a run without a plan would choose it."""
        _, values = recipe_for(prospect.exposure, is_limited_by_time=True, law=self._law)
        if self._is_by_muon():
            tokens = self._law.best_share(prospect.exposure) * prospect.exposure.tokens
            values = {**values, "training.learning_rate": learning_rate_for(config.model.d_model, tokens)}
        for key, value in values.items():
            if key not in self._given.values:
                set_value(config, key, value)

    def _is_by_muon(self) -> bool:
        optimizer: str = self._given.values.get("training.optimizer", "muon")
        return optimizer == "muon"  # the rates were found with it

    def _best_of(self, candidates: list[Config]) -> tuple[Config, Prospect]:
        pace = fit_pace([_pace_of(run) for run in self.runs])
        found = [(config, self._foresee(config, pace)) for config in candidates]
        return min(found, key=lambda one: (one[1].broken_rules, one[1].bits_per_byte))

    def _foresee(self, config: Config, pace: Pace) -> Prospect:
        per_token = self._bytes_per_token(config)
        evaluation_s = median(run.evaluation_s for run in self.runs)
        whole = 60 * self._minutes
        pauses = expected_seconds(config.training, whole, evaluation_s, evaluation_s)
        seconds = max(LEAST_TRAINING_SHARE * whole, whole - pauses)
        given_batch = config.training.batch_size if "training.batch_size" in self._given.values else 0
        training = config.training
        unique_tokens = self.train_bytes / per_token
        return foresee(
            config.model,
            training.sequence_length,
            training.mean_window,
            update_flops(config.model, training.optimizer, Execution.from_config(training).dtype),
            unique_tokens,
            per_token,
            seconds,
            pace,
            self._law,
            given_batch,
            training.sampled_tokens,
        )

    def _bytes_per_token(self, config: Config) -> float:
        for run in self.runs:
            if run.config.data.tokenizer == config.data.tokenizer:
                return run.exposure.bytes_per_token
        is_small = config.data.tokenizer in ("byte", "char")
        return 1.0 if is_small else expected_bytes_per_token(config.model.vocab_size)

    def _make_candidates(self, base: Config, corpus_bytes: float) -> list[Config]:
        """Return every shape with every vocabulary, as far as the given values and the memory leave a choice."""
        sizes = vocabularies_for(corpus_bytes) if corpus_bytes <= LARGE_CORPUS_BYTES else [LARGE_CORPUS_VOCABULARY]
        proposed: list[dict[str, Any]] = [
            {
                "data.tokenizer": f"bpe:{size}",
                "model.vocab_size": size,
                "model.d_model": width,
                "model.num_layers": layers,
            }
            for size in sizes
            for width, layers in shapes()
        ]
        if base.data.tokenizer or base.model.vocab_size:
            spec = base.data.tokenizer or f"bpe:{base.model.vocab_size}"
            size = base.model.vocab_size or expected_vocabulary(spec)
            proposed = [{**values, "data.tokenizer": spec, "model.vocab_size": size} for values in proposed]
        free = MEMORY_SHARE * available_memory_bytes()
        distinct: dict[str, Config] = {}
        for values in proposed:
            config = self._build(values)
            if config is not None and count_memory(config, Execution(1), 0).total <= free:
                distinct[config.model_dump_json()] = config
        if not distinct and self._misfit is not None:
            raise self._misfit
        if not distinct:
            kept = ", ".join(self._given.values) or "nothing"
            raise UsageError(f"no network fits both the memory and what is given ({kept}). Leave more of it open.")
        return list(distinct.values())

    def _build(self, values: dict[str, Any]) -> Config | None:
        """Return a configuration of the given values over the proposed ones; None where they do not go together."""
        layers = Layers()
        tokens = self.train_bytes / expected_bytes_per_token(values["model.vocab_size"])
        length = sequence_length_for(self._minutes, tokens, self._most_context)
        if "training.batch_size" in self._given.values:  # it was meant for sequences as they are elsewhere
            length = SHORTEST_LENGTH
        layers.add({"training.max_length": length}, "plan")
        layers.add(values, "plan")
        layers.add(self._given.values, "given")
        only_minutes = {"training.max_minutes": self._minutes, "training.max_steps": 0, "training.num_epochs": 0}
        layers.add(only_minutes, "--minutes")
        try:
            config = layers.build()
        except UsageError as problem:
            self._misfit = problem
            return None
        model, training = config.model, config.training
        recipe = {
            "training.short_windows": short_windows_for(training.sequence_length),
            "training.sampled_tokens": sampled_tokens_for(model.vocab_size),
            "training.related_tokens": related_tokens_for(config.data.tokenizer),
        }
        if self._is_by_muon():
            recipe["training.learning_rate"] = learning_rate_for(model.d_model, SCOUT_TOKENS)
        for key, value in recipe.items():
            if key not in self._given.values:
                set_value(config, key, value)
        model.num_heads, model.d_ff = model.heads, model.feed_forward
        model.context = model.context or config.training.sequence_length
        return config

    def _with_batch(self, config: Config, batch_size: int) -> Config:
        """Return a copy with this batch where none is given, spread over the threads where no length is given."""
        config = config.model_copy(deep=True)
        given, training = self._given.values, config.training
        if "training.batch_size" in given:
            return config
        training.batch_size = batch_size
        if "training.max_length" not in given:
            spread = spread_batch(training.sequence_length, batch_size, self._num_threads)
            training.max_length, training.batch_size = spread
            if "training.short_windows" not in given:
                training.short_windows = short_windows_for(training.sequence_length)
            if "model.context" not in given:
                config.model.context = training.sequence_length
        return config


def _without_shape(given: Layers) -> Config:
    """Return the given values about text and tokens; the others need only go with some candidate."""
    layers = Layers()
    about_text = {key: value for key, value in given.values.items() if key.startswith("data.") or "vocab" in key}
    layers.add(about_text, "given")
    layers.origins = given.origins
    return layers.build()


def _of_section(given: Layers, section: str, names: Sequence[str]) -> dict[str, Any]:
    """Return some given values of a section, by name."""
    return {name: given.values[f"{section}.{name}"] for name in names if f"{section}.{name}" in given.values}


def _parameters(config: Config) -> int:
    return count(config.model, config.training.sequence_length).num_parameters


def _network(config: Config) -> tuple[int, int, str]:
    return config.model.d_model, config.model.num_layers, config.data.tokenizer


def _is_unlike(config: Config, other: Config) -> bool:
    ratio = _parameters(config) / _parameters(other)
    return config.data.tokenizer != other.data.tokenizer or not 1 / UNLIKE < ratio < UNLIKE


def _pace_of(run: ShortRun) -> tuple[float, int, float]:
    model, training = run.config.model, run.config.training
    batch_tokens = training.tokens_per_update
    in_update = update_flops(model, training.optimizer, Execution.from_config(training).dtype)
    window = training.windows[0][1]  # of more than half of the steps, and so of the median that was measured
    flops = flops_per_token(model, window, batch_tokens, in_update, training.sampled_tokens)
    return flops, model.num_layers, run.seconds_per_token


def _assumptions(proposal: Proposal, run_s: float, last_run_s: float, unchecked_efolds: float) -> list[str]:
    exposure = proposal.prospect.exposure
    texts = [
        f"short runs of {human_time(run_s)} ({len(proposal.runs) - 1}) measure the speed, and one of"
        f" {human_time(last_run_s)} how hard the text is; the loss after {proposal.minutes:g} minutes is extrapolated"
        " from that one (docs/metrics.md)",
        "training has this machine to itself, as the short runs had; planning is not part of the minutes",
        "the recipe is the default one for this number of epochs",
    ]
    if beyond := exposure.beyond_fitted():
        texts.append(f"the law that ranks networks extrapolates: {beyond} than in any run that it was fitted to")
    if unchecked_efolds > 0.5:
        texts.append(
            f"the expected loss is a guess: the run sees {math.exp(unchecked_efolds):.1f} times more text than any with"
            " which such expectations were checked"
        )
    if exposure.epochs > 1:
        texts.append(
            f"the corpus comes {exposure.epochs:.1f} times: {human_count(exposure.tokens)} tokens are worth"
            f" {human_count(exposure.useful_tokens)} fresh ones, and a larger network would learn more of it by heart"
        )
    return texts
