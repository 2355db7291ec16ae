"""A user's own function that says which documents to keep, and what identifies it in a cache.

A cache must notice that the function has changed. Its identity is a name that the user gives; without one, the source
code of the function together with the values that it uses from outside: numbers, texts, other functions by their
source, and modules of Python itself. Whatever else it uses cannot be compared, so such a function needs a name.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterator
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
    outside = {**_nonlocals(function), **_globals(function), **(function.__kwdefaults__ or {})}
    outside |= {f"default {number}": value for number, value in enumerate(function.__defaults__ or ())}
    parts = [f"{name}={_value_hash(function, name, value, seen)}" for name, value in sorted(outside.items())]
    return digest(source, *parts)


def _nonlocals(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses, as far as they have values."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the global variables that a function uses, also in the functions and expressions inside it.

    Modules that it imports itself are refused unless they belong to Python.
    """
    found = {}
    for instruction in _instructions(function.__code__):
        name = instruction.argval
        if instruction.opname == "IMPORT_NAME" and not _is_of_python(name):
            raise _not_comparable(function, name or "a module beside it", "module")
        if instruction.opname in _LOADS and name in function.__globals__:
            found[name] = function.__globals__[name]
    return found


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function and of all that is defined inside it: generators, lambdas, classes."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _value_hash(function: types.FunctionType, name: str, value: Any, seen: frozenset[int]) -> str:
    if isinstance(value, types.ModuleType) and _is_of_python(value.__name__):
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
    raise _not_comparable(function, name, type(value).__name__)


def _not_comparable(function: types.FunctionType, name: str, kind: str) -> UsageError:
    return UsageError(
        f"keep={function.__name__}: it uses {name}, a {kind}, which cannot be compared when the cache is opened again."
        f" {_REMEDY}"
    )


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_REMEDY = "Give it a name that you change with it: keep_name='filter-1'"


def _shown(document: bytes) -> str:
    text = document.decode(errors="replace")
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
