"""Stop sequences: texts that end a completion, found also where they come in several pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on up to the first stop sequence; the beginning of one is held back until it is known to be none.

    >>> stops = StopFilter(["END"])
    >>> [stops.add(piece) for piece in ("to the E", "as", "t E", "ND and on")], stops.has_stopped
    (['to the ', 'Eas', 't ', ''], True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def add(self, text: str) -> str:
        """Return the text that is now known to come before any stop sequence."""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.has_stopped, self._held = True, ""
            return text[: min(places)]
        size = max((_overlap(text, stop) for stop in self._stops), default=0)
        passed, self._held = text[: len(text) - size], text[len(text) - size :]
        return passed

    def rest(self) -> str:
        """Return what was held back, at the end of a text in which no stop sequence came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that a stop sequence begins with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
