"""Comparing choices by measurements in turns, whoever makes the measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable
from typing import TypeAlias, TypeVar

Choice = TypeVar("Choice", bound=Hashable)
Result = TypeVar("Result")
Measurements: TypeAlias = Generator[Choice, float, Result]
"""A generator that yields what to measure, takes the seconds, and ends with what it learned from them."""
NUM_ROUNDS = 3
CHOOSING_SECONDS = 15.0
"""Time after which one round for each choice is enough: where passes are this slow, noise is small beside them."""
HOPELESS = 1.25
"""Times the best time so far beyond which a choice is not measured again."""
WORTHWHILE = 0.97
"""Share of the best time so far that a later choice must stay below: the rest is noise, and the earlier is plainer."""


def answer(asked: Measurements[Choice, Result], measure: Callable[[Choice], float]) -> Result:
    """Answer measurements as they are asked for, and return their result."""
    try:
        choice = next(asked)
        while True:
            choice = asked.send(measure(choice))
    except StopIteration as end:
        result: Result = end.value
        return result


def compare(
    choices: list[Choice],
    num_rounds: int = NUM_ROUNDS,
    seconds: float = CHOOSING_SECONDS,
    note: Callable[[Choice], None] = lambda _: None,
) -> Measurements[Choice, Choice]:
    """Return the choice with the shortest time; a later one wins only by a clear margin over the best so far.

    Choices take turns, and the least time of each counts, because noise only ever adds. The first turn, which pays for
    fresh memory, counts only for leaving out what is far slower than the best. `note` is called with the best so far.
    """
    if len(choices) == 1:
        return choices[0]
    first: dict[Choice, float] = {}
    times: dict[Choice, float] = {}
    for choice in choices:
        first[choice] = yield choice
    began = time.perf_counter()
    for _ in range(num_rounds):
        limit = HOPELESS * min(min(first.values()), *times.values(), float("inf"))
        for choice in choices:
            if min(first[choice], times.get(choice, first[choice])) > limit:
                continue
            times[choice] = min((yield choice), times.get(choice, float("inf")))
            note(_clear_winner([one for one in choices if one in times], times))
        if time.perf_counter() - began > seconds:
            break
    return _clear_winner([choice for choice in choices if choice in times], times)


def _clear_winner(choices: list[Choice], times: dict[Choice, float]) -> Choice:
    best = choices[0]
    for choice in choices[1:]:
        if times[choice] < WORTHWHILE * times[best]:
            best = choice
    return best
