"""The weights of a loader's sources: by place or by name, numbers or schedules, checked with errors to act on."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from headrace.data.corpus.sources import Source
from headrace.data.corpus.weights import in_steps
from headrace.data.order.plans import Plan, Weights
from headrace.errors import UsageError

GivenWeights = Sequence[Any] | Mapping[str, Any]
"""Weights as callers give them: one for each source, or by the names of the sources."""


def mixture_plans(
    sources: Sequence[Source],
    weights: GivenWeights | None,
    earlier: Sequence[tuple[int, Sequence[Any] | None]],
    step_tokens: int,
) -> list[Plan]:
    """Return the mixtures of a loader, each from a step on; empty if all text is one corpus.

    `weights` are the newest, None for the sources' own; `earlier` those before, each with the step at which it ended.
    """
    newest = source_weights(sources, weights, step_tokens=step_tokens)
    if not earlier:
        return [] if newest is None else [Plan(0, newest)]
    steps = [until for until, _ in earlier]
    if not all(type(step) is int and step > 0 for step in steps) or any(b <= a for a, b in pairwise(steps)):
        raise UsageError(f"earlier weights end at the steps {steps}: give whole numbers above 0 that increase.")
    first, *others = (given for _, given in earlier)
    if newest is None or None in others:
        raise UsageError("a mixture cannot change into sources without weights: give every source a weight.")
    plans = [Plan(0, [1.0], is_mixture=False) if first is None else Plan(0, _earlier(sources, first, step_tokens))]
    for step, given in zip(steps, [*others, newest], strict=True):
        plans.append(Plan(step, newest if given is newest else _earlier(sources, given or (), step_tokens)))
    return plans


def source_weights(
    sources: Sequence[Source],
    given: GivenWeights | None,
    max_steps: int | None = None,
    step_tokens: int | None = None,
) -> Weights | None:
    """Return the weights of all sources, with schedules that count steps; None if all text is one corpus.

    Those that are not given are the sources' own. `max_steps` and `step_tokens` say what percentages and tokens are in
    steps; None: schedules may not have them.
    """
    own = [source.weight for source in sources]
    if given is None:
        weights = own
    elif isinstance(given, Mapping):
        by_name = _by_place(sources, given)
        weights = [by_name.get(place, weight) for place, weight in enumerate(own)]
    elif len(given) == len(sources):
        weights = list(given)
    else:
        raise UsageError(f"weights {list(given)}: give one weight for each of the sources {_names(sources)}.")
    if all(weight is None for weight in weights):
        return None
    checked = []
    for source, weight in zip(sources, weights, strict=True):
        if weight is None:
            raise UsageError(
                f"source {source.label!r} has no weight but another source has: give all of them one, or none"
            )
        checked.append(_in_steps(source, weight, max_steps, step_tokens))
    Plan(0, checked).phases(1, len(checked))  # refuses steps at which all weights are 0
    return checked


def _earlier(sources: Sequence[Source], given: Sequence[Any], step_tokens: int) -> Weights:
    """Return the weights of an earlier mixture, which may lack the last sources of today."""
    if isinstance(given, Mapping) or not 0 < len(given) <= len(sources):
        raise UsageError(f"earlier weights {given}: give a list, one for each of the first of {_names(sources)}.")
    return [_in_steps(source, weight, None, step_tokens) for source, weight in zip(sources, given, strict=False)]


def _in_steps(source: Source, weight: Any, max_steps: int | None, step_tokens: int | None) -> Any:
    try:
        counted = in_steps(weight, max_steps, step_tokens)
    except ValueError as problem:
        raise UsageError(f"the weight of source {source.label!r}: {problem}.") from None
    return counted if isinstance(counted, dict) else weight  # 1 and 1.0 are told apart by states of earlier versions


def _by_place(sources: Sequence[Source], given: Mapping[str, Any]) -> dict[int, Any]:
    """Return weights that are given by name by the place of their source."""
    labels = [source.label for source in sources]
    found = {}
    for name, weight in given.items():
        if name not in labels:
            near = difflib.get_close_matches(str(name), labels, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"weights: there is no source {name!r}.{hint} The sources are {_names(sources)}.")
        if labels.count(name) > 1:
            raise UsageError(f"weights: {labels.count(name)} sources are called {name!r}. Give each a name of its own.")
        found[labels.index(name)] = weight
    return found


def _names(sources: Sequence[Source]) -> str:
    return ", ".join(repr(source.label) for source in sources)
