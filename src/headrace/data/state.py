"""The state of a loader: a few integers and hashes that name a place in one exact stream of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.data.cache.cache import Cache
from headrace.errors import StateError

STATE_VERSION = 2


class StateKeeper:
    """Writes states of one stream, and refuses those of another."""

    def __init__(self, cache: Cache, identity: dict[str, Any], order: Sequence[int]) -> None:
        """`identity`: everything the stream depends on; `order`: its segments in the order of the first pass."""
        self._cache = cache
        self._identity = identity
        self._order = order
        self._known_text = (0, "")

    def state(self, step: int, skip: Sequence[str]) -> dict[str, Any]:
        """Return the state at a step, with the hash of as much of the text as is tokenised by now."""
        count, content = self._known_text
        known = count
        while known < len(self._order) and self._cache.has(self._order[known]):
            known += 1
        if known > count:
            count, content = self._known_text = known, self._cache.content_hash(self._order[:known])
        position = {"version": STATE_VERSION, "step": step, "skip": list(skip)}
        return {**position, **self._identity, "segments": count, "content": content}

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a state of another version, stream or text."""
        if state.get("version") != STATE_VERSION:
            raise StateError(
                f"loader state version {state.get('version')!r}; this headrace reads {STATE_VERSION}. Versions differ"
                " in the order of batches, so this run cannot be resumed exactly: resume it with the headrace that"
                " began it, or start a new one."
            )
        for key, mine in self._identity.items():
            if state.get(key) != mine:
                raise StateError(
                    f"this state belongs to another stream: {key} was {state.get(key)!r} and is {mine!r} now."
                    " Resume with what the run was started with."
                )
        count = int(state["segments"])
        if count and state["content"] != self._cache.content_hash(self._order[:count]):
            raise StateError(
                "this state belongs to another corpus: the files have the same sizes, but another text."
                " Put the old text back, or start a new run."
            )
