"""Ports of local servers: the one that was asked for, or the first that is free."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import HeadraceError

MAY_REUSE_ADDRESS = os.name == "posix"
"""Whether a server may say that it takes an address again: on Windows that would let two servers share one port."""

Server = TypeVar("Server")


def open_on_a_port(make: Callable[[int], Server], port: int | None, choices: Sequence[int]) -> Server:
    """Open a server on a port; where none is asked for (None), on the first of the choices that is free."""
    reason: str | None = None
    for number in choices if port is None else [port]:
        try:
            return make(number)
        except OSError as problem:
            reason = problem.strerror or str(problem)
    if port is None:
        raise HeadraceError(f"no free port from {choices[0]} to {choices[-1]} ({reason}). Name one with --port.")
    raise HeadraceError(f"port {port}: cannot be opened ({reason}). Name another, or none to take a free one.")
