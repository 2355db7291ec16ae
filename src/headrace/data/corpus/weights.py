"""Weights of a mixture as people write them: a number, or a schedule of numbers over a run.

0.7                              the same weight all the time
{0: 0.9, 80%: 0.2}               0.9 from the start, 0.2 from the last fifth of the run on
{0: 0.9, 80%..100%: 0.2}         0.9 from the start, and in the last fifth in a straight line to 0.2
{200M tokens: 0.5}               nothing before 200 million tokens, then 0.5
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Annotated, Any

from pydantic import BeforeValidator

MOST_ENTRIES = 1000
MOST_STEPS = 1 << 40
_FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_MOMENT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGBT]?)\s*(%|tokens?|steps?|)", re.ASCII)
_HOW = "write steps (2000), a share of the run (80%) or tokens (200M tokens); with two dots between them for a line"


@dataclass(frozen=True)
class Moment:
    """A point of a run: so many steps, tokens, or percent of it."""

    amount: Fraction
    unit: str
    """step, token or %."""

    def in_steps(self, max_steps: int | None, step_tokens: int | None) -> int:
        """Return the step; ValueError where the length of the run or of a step would have to be known."""
        if self.unit == "step":
            return int(self.amount)
        if self.unit == "token":
            if not step_tokens:
                raise ValueError("tokens cannot be counted here. Write steps instead")
            return math.ceil(self.amount / step_tokens)
        if not max_steps:
            raise ValueError(
                "a percentage needs a run whose number of steps is set. Set it (training.max_steps=N), or write steps"
                " or tokens instead"
            )
        return round(self.amount * max_steps / 100)


@dataclass(frozen=True)
class Piece:
    """A change of a weight: it goes to `value` in a straight line from step `start` to `stop`, or at once if equal."""

    start: int
    stop: int
    value: Fraction


def _checked(given: Any) -> Any:
    """Check a weight as it is written; the keys of a schedule become text."""
    if not isinstance(given, Mapping):
        return _number(given)
    if not given:
        raise ValueError("an empty schedule: give at least one step and its weight")
    if len(given) > MOST_ENTRIES:
        raise ValueError(f"a schedule of {len(given):,} entries: the most are {MOST_ENTRIES:,}")
    schedule = {_key(key): _number(value) for key, value in given.items()}
    if len(schedule) < len(given):
        raise ValueError("a moment stands twice in the schedule. Write every moment once")
    moments = [(key, *_moments(key)) for key in schedule]
    for unit in ("step", "token", "%"):  # across units, the order is known once all are steps
        same = [entry for entry in moments if entry[1].unit == entry[2].unit == unit]
        _check_increasing([(key, first.amount, last.amount) for key, first, last in same])
    return schedule


Weight = Annotated[float | dict[str, float], BeforeValidator(_checked)]
"""A weight in a configuration: a number, or a schedule."""


def in_steps(weight: float | dict[str, float], max_steps: int | None = None, step_tokens: int | None = None) -> Any:
    """Return a weight whose schedule counts steps alone; ValueError if it cannot, or does not increase.

    >>> in_steps({"0": 0.9, "80%..100%": 0.2}, max_steps=1000)
    {'0': 0.9, '800..1000': 0.2}
    """
    weight = _checked(weight)
    if not isinstance(weight, dict):
        return weight
    placed: list[tuple[str, int, int, float]] = []
    for key, value in weight.items():
        first, last = _moments(key)
        start, stop = first.in_steps(max_steps, step_tokens), last.in_steps(max_steps, step_tokens)
        if placed and placed[-1][1] == placed[-1][2] == start == stop:
            placed.pop()  # two moments of a short run that fall on one step: the later holds
        placed.append((key, start, stop, value))
    _check_increasing([(key, start, stop) for key, start, stop, _ in placed])
    return {f"{start}" if start == stop else f"{start}..{stop}": value for _, start, stop, value in placed}


def pieces(weight: float | dict[str, float]) -> list[Piece]:
    """Return the changes of a weight whose schedule counts steps."""
    if not isinstance(weight, dict):
        return [Piece(0, 0, Fraction(weight))]
    found = []
    for key, value in weight.items():
        first, last = _moments(key)
        found.append(Piece(first.in_steps(None, None), last.in_steps(None, None), Fraction(value)))
    return found


def weight_at(changes: list[Piece], step: int, *, is_end: bool = False) -> Fraction:
    """Return the weight at a step; `is_end`: the weight that the steps before it lead to.

    >>> changes = pieces({"0": 1.0, "10..20": 0.0, "20": 0.5})
    >>> [float(weight_at(changes, step)) for step in (0, 10, 15, 20)], float(weight_at(changes, 20, is_end=True))
    ([1.0, 1.0, 0.5, 0.5], 0.0)
    """
    find = bisect_left if is_end else bisect_right
    number = find(changes, step, key=lambda piece: piece.start)
    if number == 0:
        return Fraction(0)
    piece = changes[number - 1]
    if step >= piece.stop:
        return piece.value
    before = changes[number - 2].value if number > 1 else Fraction(0)  # it is reached: pieces do not overlap
    return before + (piece.value - before) * Fraction(step - piece.start, piece.stop - piece.start)


def describe_weight(weight: float | dict[str, float] | None) -> str:
    """Return a weight as people read it.

    >>> describe_weight(0.7), describe_weight({"0": 0.9, "800": 0.2, "80%..100%": 1.0})
    ('0.7', '0.9 → 0.2 at step 800 → 1 from 80% to 100%')
    """
    if not isinstance(weight, dict):
        return "" if weight is None else f"{weight:g}"
    parts = [] if next(iter(weight)) in ("0", "0%") else ["0"]
    for key, value in weight.items():
        first, last = _moments(key)
        if first == last:
            parts.append(f"{value:g} at {_shown(first)}" if parts else f"{value:g}")
        else:
            last_shown = f"{int(last.amount):,}" if first.unit == last.unit == "step" else _shown(last)
            parts.append(f"{value:g} from {_shown(first)} to {last_shown}")
    return " → ".join(parts)


def _shown(moment: Moment) -> str:
    amount = f"{float(moment.amount):,.10g}"
    return {"step": f"step {amount}", "token": f"{amount} tokens", "%": f"{amount}%"}[moment.unit]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{value!r:.80} is not a weight: write a number, or a schedule such as {{0: 0.9, 80%: 0.2}}")
    number = math.inf
    with suppress(OverflowError):
        number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r:.80} is not a weight: write a number that is not negative, such as 0.7")
    return number


def _key(key: Any) -> str:
    if isinstance(key, float):
        raise ValueError(f"{key!r} is not a moment of a run: {_HOW}; {key!r} of the run is {100 * key:g}%")
    if isinstance(key, bool) or not isinstance(key, (int, str)):
        raise ValueError(f"{key!r:.80} is not a moment of a run: {_HOW}")
    return str(key).strip()


def _moments(key: str) -> tuple[Moment, Moment]:
    """Return the beginning and the end of an entry of a schedule; of a single moment, that moment twice."""
    texts = [part.strip().replace(",", "").replace("_", "") for part in key.split("..")]
    found = [_MOMENT.fullmatch(text) for text in texts]
    if len(found) > 2 or None in found:
        raise ValueError(f"{key!r:.80} is not a moment of a run: {_HOW}")
    units = [match.group(3).rstrip("s") for match in found if match]
    units = [unit or units[-1] or "step" for unit in units]  # 80..100% has one unit for both
    moments = []
    for match, unit in zip(found, units, strict=True):
        assert match is not None
        amount = Fraction(match.group(1)) * _FACTORS[match.group(2)]
        if unit == "step" and (amount.denominator != 1 or amount > MOST_STEPS):
            raise ValueError(f"{key!r:.80}: not a number of steps that a run can have: {_HOW}")
        if unit == "%" and (amount > 100 or match.group(2)):
            raise ValueError(f"{key!r:.80}: a run has 100%: {_HOW}")
        if unit == "token" and amount > MOST_STEPS**2:
            raise ValueError(f"{key!r:.80}: no run has so many tokens")
        moments.append(Moment(amount, unit))
    return moments[0], moments[-1]


def _check_increasing(entries: list[tuple[str, Any, Any]]) -> None:
    """Refuse entries that do not follow one another in time."""
    for key, start, stop in entries:
        if stop < start:
            raise ValueError(f"{key!r}: ends before it begins. Write the earlier moment first")
    for (before, first, end), (key, start, stop) in pairwise(entries):
        is_line_from_here = first == end == start < stop  # {0: 0.9, 0..500: 0.2}
        if start < end or (start == first and not is_line_from_here):
            raise ValueError(
                f"{key!r} comes after {before!r} in the schedule, but not later in the run. Write every moment once,"
                " in the order of the run"
            )
