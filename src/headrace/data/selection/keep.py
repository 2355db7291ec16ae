"""A user's own function that says which documents to keep, and what identifies it in a cache.

A cache must notice that the function has changed. Its identity is a name that the user gives; without one, the source
code of the function together with the values that it uses from outside: numbers, texts, and other functions by their
source. Whatever else it uses cannot be compared, so such a function needs a name.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from headrace.errors import CorpusError, UsageError
from headrace.files import digest

_SIMPLE = (int, float, str, bytes, bool, type(None))
_SHOWN_CHARACTERS = 60


class Keep:
    """A function from the text of a document to whether it is kept."""

    def __init__(self, function: Callable[[str], object], name: str = "") -> None:
        """`name`: what identifies the function; give another one whenever it judges otherwise."""
        if not callable(function):
            raise UsageError(
                f"keep={function!r:.60} is not a function: give one that takes a text and returns True or False"
            )
        self._function = function
        self.identity = f"name {name}" if name else f"source {_source_hash(function)}"

    def __call__(self, document: bytes, place: str) -> bool:
        """Judge a document; what goes wrong is an error that says at which place."""
        try:
            answer = self._function(document.decode())
        except Exception as problem:
            raise CorpusError(
                f"{place}: the function keep={self._title} raised {type(problem).__name__}: {problem} (for the text"
                f" {_shown(document)})."
            ) from problem
        if answer is True or answer is False:
            return answer
        if type(answer).__name__ in ("bool", "bool_"):
            return bool(answer)
        raise CorpusError(
            f"{place}: the function keep={self._title} returned {answer!r:.60}, not True or False (for the text"
            f" {_shown(document)})."
        )

    @property
    def _title(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)


def _source_hash(function: Any, seen: frozenset[int] = frozenset()) -> str:
    """Hash the source of a function and the values from outside that it uses."""
    if not isinstance(function, types.FunctionType):
        raise UsageError(f"keep={function!r:.60}: only plain functions have source code to compare. {_REMEDY}")
    if id(function) in seen:
        return "itself"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise UsageError(
            f"keep={function.__name__}: its source code is not known (typed at a prompt?). {_REMEDY}"
        ) from None
    values = inspect.getclosurevars(function)
    outside = {**values.nonlocals, **values.globals, **(function.__kwdefaults__ or {})}
    outside |= {f"default {number}": value for number, value in enumerate(function.__defaults__ or ())}
    parts = [f"{name}={_value_hash(function, name, value, seen)}" for name, value in sorted(outside.items())]
    return digest(source, *parts)


def _value_hash(function: types.FunctionType, name: str, value: Any, seen: frozenset[int]) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.FunctionType):
        return _source_hash(value, seen | {id(function)})
    if isinstance(value, _SIMPLE):
        return repr(value)
    if isinstance(value, (tuple, list)) and all(isinstance(item, _SIMPLE) for item in value):
        return repr(value)
    if isinstance(value, (set, frozenset)) and all(isinstance(item, _SIMPLE) for item in value):
        return repr(sorted(map(repr, value)))
    if hasattr(value, "pattern") and hasattr(value, "flags"):  # a regular expression
        return repr((value.pattern, value.flags))
    raise UsageError(
        f"keep={function.__name__}: it uses {name}, a {type(value).__name__}, which cannot be compared when the cache"
        f" is opened again. {_REMEDY}"
    )


_REMEDY = "Give it a name that you change with it: keep_name='filter-1'"


def _shown(document: bytes) -> str:
    text = document.decode(errors="replace")
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
