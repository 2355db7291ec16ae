"""How long remote places are waited for, in one object that tests replace by a less patient one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Time limits and numbers of attempts."""

    attempts: int = 6
    """Attempts at a request before it is given up; one that brought 64 KiB or more does not count."""
    first_wait_s: float = 0.25
    """Pause before the second attempt; each further one is twice as long, give or take a half."""
    connect_s: float = 10.0
    """Time in which a connection must be made."""
    stall_s: float = 20.0
    """Time after which a server that sends nothing is given up."""
    request_s: float = 300.0
    """Time in which a request must be answered whole, however steadily its bytes come: 2 MiB at most."""

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after so many failures; `chance` in [0, 1) spreads clients that failed together."""
        return float(self.first_wait_s * 2 ** (failures - 1) * (0.5 + chance))


_current = Patience()


def current_patience() -> Patience:
    """Return the limits in force."""
    return _current


@contextmanager
def use_patience(patience: Patience) -> Iterator[None]:
    """Replace the limits for the whole process until the block ends; stores that are open keep theirs."""
    global _current
    before, _current = _current, patience
    try:
        yield
    finally:
        _current = before
