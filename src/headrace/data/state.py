"""The state of a loader: a few integers and hashes that name a place in one exact stream of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.data.cache.cache import Cache
from headrace.errors import StateError

STATE_VERSION = 2


REMEDIES = {
    "mixture": "Resume with the weights of the run. To change them from now on, ask for it: data.mixture_from=STEP for"
    " a run, earlier_weights for a loader.",
}
"""What to do about a difference, where it is not the same for all."""


class Order(Protocol):
    """An order of batches, as far as states know it."""

    def identity(self, step: int) -> dict[str, Any]:
        """Return everything that the batches before a step depend on."""

    def older_mark(self, step: int) -> str:
        """Return another mark of the mixture that stands in states of earlier versions."""

    def segments_before(self, step: int) -> Sequence[int]:
        """Return the segments that these batches may need, in the order of the first pass."""


class StateKeeper:
    """Writes states of one stream, and refuses those of another."""

    def __init__(self, cache: Cache, order: Order) -> None:
        self._cache = cache
        self._order = order
        self._known_text: dict[int, tuple[int, str]] = {}

    def state(self, step: int, skip: Sequence[str]) -> dict[str, Any]:
        """Return the state at a step, with the hash of as much of the text as is tokenised by now."""
        order = self._order.segments_before(step)
        count, content = self._known_text.get(len(order), (0, ""))
        known = count
        while known < len(order) and self._cache.has(order[known]):
            known += 1
        if known > count:
            count, content = self._known_text[len(order)] = known, self._cache.content_hash(order[:known])
        position = {"version": STATE_VERSION, "step": step, "skip": list(skip)}
        return {**position, **self._order.identity(step), "segments": count, "content": content}

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a state of another version, stream or text."""
        if state.get("version") != STATE_VERSION:
            raise StateError(
                f"loader state version {state.get('version')!r}; this headrace reads {STATE_VERSION}. Versions differ"
                " in the order of batches, so this run cannot be resumed exactly: resume it with the headrace that"
                " began it, or start a new one."
            )
        step = int(state.get("step", 0))
        for key, mine in self._order.identity(step).items():
            if state.get(key) != mine and not (key == "mixture" and state.get(key) == self._order.older_mark(step)):
                raise StateError(
                    f"this state belongs to another stream: {key} was {state.get(key)!r} and is {mine!r} now."
                    f" {REMEDIES.get(key, 'Resume with what the run was started with.')}"
                )
        count = int(state["segments"])
        if count and state["content"] != self._cache.content_hash(self._order.segments_before(step)[:count]):
            raise StateError(
                "this state belongs to another corpus: the files have the same sizes, but another text."
                " Put the old text back, or start a new run."
            )
