"""Proposing the network, batch and token count that should reach the lowest loss in a given time on this machine.

Some candidates are trained for seconds each, which shows how fast they are (perf/pace.py). A law of the loss
(perf/loss_law.py) says which candidate to try next and, in the end, which should be best after the whole time. That one
is trained for longer, to see how hard the text is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from headrace.errors import UsageError
from headrace.instruments.short_run import ShortRun, train_briefly
from headrace.machine.contention import is_disturbed
from headrace.models.counts import count
from headrace.perf.loss_law import Expectation
from headrace.perf.pace import Pace, Prospect, fit_pace, flops_per_token
from headrace.perf.search_space import batch_size_for, usual_bytes_per_token
from headrace.run.config import Config, Layers
from headrace.run.corpus import expected_vocabulary, given_cache, mixture_weights, training_sources
from headrace.run.start.budget import SHAPE, law_of
from headrace.run.start.candidates import (
    Text,
    allowed_memory,
    batch_values,
    candidate_values,
    foresee_candidate,
    learning_rate_values,
    needed_memory,
)
from headrace.run.start.keys import set_value, with_values
from headrace.run.start.regime import recipe_for
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops
from headrace.training.pauses import MOST_TOKENS, expected_seconds
from headrace.units import human_count, human_time

RUNS_SHARE, MOST_RUNS_S, MOST_RUNS = 0.2, 150.0, 5
LEAST_RUN_S, RUN_OVERHEAD_S = 1.0, 2.5  # what a short run takes beside its training, about
LEAST_TRAINING_SHARE = 0.1  # of the time, however long evaluations take: a run trains at all
LAST_RUN_SHARE = 0.45  # of the time of all short runs, for the one of the network that seemed best
LAST_EVALUATION_SHARE = 0.25
"""Seconds of evaluating for each second of the last short run, at least: a sample of fewer long sequences misleads."""
SCOUTS = (4e5, 3e6)  # parameters of the first two candidates, which show how fast small and larger networks are
SCOUT_TOKENS = 3e6  # the length of run that their batch size is chosen for
UNLIKE = 1.25  # the next candidate has another vocabulary, or parameters that differ by this factor
LARGE_CORPUS_BYTES, LARGE_CORPUS_VOCABULARY = 200e6, 16_000  # tokenising it several times would take too long


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

    def try_out(config: Config, seconds: float, evaluation_tokens: int = MOST_TOKENS) -> ShortRun:
        run = train_briefly(config, seconds, search.train_bytes, search.nearest_run(config), evaluation_tokens)
        search.add(run)
        show(run)
        return run

    while (config := search.next_to_try()) is not None:
        spent_s = time.perf_counter() - began
        if len(search.runs) >= len(SCOUTS) and spent_s + run_s + RUN_OVERHEAD_S > first_runs_s:
            break
        try_out(config, run_s)
    num_samples = max(1, round(LAST_EVALUATION_SHARE * last_run_s))  # each takes about a second
    last = try_out(search.best()[0], last_run_s, num_samples * MOST_TOKENS)
    config, prospect = search.best()  # another one, where the last run has changed what is known of the speed
    prospect = search.settle_recipe(config, prospect)
    same = search.until_the_end(*search.best(like=last.config))
    expected = Expectation.of(same.exposure, last.exposure, last.bits_per_byte)
    expected = expected.moved(prospect.bits_per_byte - same.bits_per_byte)
    prospect = replace(prospect, bits_per_byte=expected.bits_per_byte)
    proposal = Proposal(config, minutes, prospect, search.runs, time.perf_counter() - began, expected.interval)
    proposal.assumptions = _assumptions(proposal, run_s, last_run_s, expected.unchecked_efolds)
    return proposal


class Search:
    """The candidates, what is known of the corpus, and what the short runs so far have shown."""

    def __init__(self, given: Layers, minutes: float) -> None:
        if given.values.get("model.init"):
            raise UsageError(
                "plan --minutes proposes a network, and model.init brings one along. Leave one of them out: without"
                " --minutes, `headrace plan` says what continuing costs."
            )
        self._given, self._minutes = given, minutes
        self.runs: list[ShortRun] = []
        self._misfit: UsageError | None = None
        base = _without_shape(given)
        cache = given_cache(base)
        if cache is not None:
            raise UsageError(
                f"{cache.path}: a token cache, and a proposal compares tokenizers. Name the text instead of its cache."
            )
        self._law = law_of(base)
        self._is_mixture = mixture_weights(base, training_sources(base)) is not None
        self._text = Text.of(base)
        if self._text.num_bytes > LARGE_CORPUS_BYTES and not self._text.vocab_size:
            self._text = replace(self._text, vocab_size=LARGE_CORPUS_VOCABULARY)
        self._candidates = self._make_candidates(base)

    @property
    def train_bytes(self) -> float:
        """Bytes of the text that is trained on."""
        return self._text.num_bytes

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

    def settle_recipe(self, config: Config, prospect: Prospect) -> Prospect:
        """Write the recipe for the whole time into a configuration, as a run without a plan would choose it.

        Return what to expect of it until it ends.
        """
        _, values = recipe_for(prospect.exposure, self._may_end_early(config, prospect), self._law)
        prospect = self.until_the_end(config, prospect)
        values |= learning_rate_values(config, self._given.values, prospect.exposure.tokens)
        for key, value in values.items():
            if key not in self._given.values:
                set_value(config, key, value)
        return prospect

    def until_the_end(self, config: Config, prospect: Prospect) -> Prospect:
        """Return a prospect with what a run sees until it ends, by its time or because its text came round often."""
        exposure = prospect.exposure
        share = self._law.best_share(exposure) if self._may_end_early(config, prospect) else 1.0
        return replace(prospect, exposure=exposure.shortened(share))

    def _may_end_early(self, config: Config, prospect: Prospect) -> bool:
        """Return whether a run may end after some passes: not where they are given, or cannot be counted."""
        has_passes = prospect.exposure.unique_tokens >= config.training.tokens_per_update and not self._is_mixture
        return has_passes and not config.training.num_epochs

    def _best_of(self, candidates: list[Config]) -> tuple[Config, Prospect]:
        pace = fit_pace([_pace_of(run) for run in self.runs])
        found = [(config, self._foresee(config, pace)) for config in candidates]
        return min(found, key=lambda one: one[1].rank)

    def _foresee(self, config: Config, pace: Pace) -> Prospect:
        evaluation_s = median(run.evaluation_s for run in self.runs)
        whole = 60 * self._minutes
        pauses = expected_seconds(config.training, whole, evaluation_s, evaluation_s)
        seconds = max(LEAST_TRAINING_SHARE * whole, whole - pauses)
        per_token = self._bytes_per_token(config)
        return foresee_candidate(config, self._given.values, self._text, per_token, seconds, pace, self._law)

    def _bytes_per_token(self, config: Config) -> float:
        for run in self.runs:
            if run.config.data.tokenizer == config.data.tokenizer:
                return run.exposure.bytes_per_token
        return usual_bytes_per_token(config.data.tokenizer, config.model.vocab_size)

    def _make_candidates(self, base: Config) -> list[Config]:
        """Return every shape with every vocabulary, as far as the given values and the memory leave a choice."""
        allowed = allowed_memory()
        distinct: dict[str, Config] = {}
        for values in candidate_values(base, self._given.values, self._text, self._minutes):
            config = self._build(values)
            if config is not None and needed_memory(config) <= allowed:
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
        layers.add(values, "plan")
        layers.add(self._given.values, "given")
        layers.add({"training.max_minutes": self._minutes, "training.max_steps": 0}, "--minutes")
        try:
            config = layers.build()
        except UsageError as problem:
            self._misfit = problem
            return None
        model = config.model
        model.vocab_size = self._text.vocab_size or expected_vocabulary(config.data.tokenizer)
        model.num_heads, model.d_ff = model.heads, model.feed_forward
        model.context = model.context or config.training.sequence_length
        return with_values(config, learning_rate_values(config, self._given.values, SCOUT_TOKENS))

    def _with_batch(self, config: Config, batch_size: int) -> Config:
        """Return a copy with this batch where none is given, spread over the threads where no length is given."""
        config = with_values(config, batch_values(config, self._given.values, batch_size))
        if "model.context" not in self._given.values:
            config.model.context = config.training.sequence_length
        return config


def _without_shape(given: Layers) -> Config:
    """Return the given values without those of the shape, which need only go with some candidate."""
    shape = {f"model.{name}" for name in SHAPE}
    values = {key: value for key, value in given.values.items() if key not in shape}
    return Layers(values, given.origins).build()


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


def _undisturbed(runs: list[ShortRun]) -> str:
    taken = max((run.taken_percent for run in runs if run.taken_percent is not None), default=0.0)
    if not is_disturbed(taken):
        return "training has this machine to itself, as the short runs had"
    return (
        f"training is disturbed as the short runs were: other programs had up to {taken:.0f}% of the processor. On a"
        " quiet machine, plan again: a larger network may be better"
    )


def _assumptions(proposal: Proposal, run_s: float, last_run_s: float, unchecked_efolds: float) -> list[str]:
    exposure = proposal.prospect.exposure
    texts = [
        f"short runs of {human_time(run_s)} ({len(proposal.runs) - 1}) measure the speed, and one of"
        f" {human_time(last_run_s)} how hard the text is; the loss after {proposal.minutes:g} minutes is extrapolated"
        " from that one (docs/metrics.md)",
        _undisturbed(proposal.runs),
        "planning is not part of the minutes, and the recipe is the default one for this number of epochs",
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
