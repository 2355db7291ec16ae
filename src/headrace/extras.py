"""Optional libraries: imported when used, and named with their pip line when missing."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingExtraError


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency, or raise an error with its pip line.

    >>> require("no_such_module", "jax")
    Traceback (most recent call last):
    headrace.errors.MissingExtraError: no_such_module is not installed. Install it with: pip install 'headrace[jax]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name != module.partition(".")[0]:
            raise  # the library is there, but one that it needs is not: its own message says which
        raise MissingExtraError(
            f"{problem.name} is not installed. Install it with: pip install 'headrace[{extra}]'"
        ) from None
