"""The language of a document, by py3langid: the one place that knows that library (extra `language`)."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

from headrace.errors import MissingExtraError, UsageError

JUDGED_CHARACTERS = 2000
"""The beginning of a document, which its language is told by."""


def detect(text: str) -> str:
    """Return the ISO 639-1 code of the language that a text is most likely in."""
    return str(_library().classify(text[:JUDGED_CHARACTERS])[0])


def check_languages(codes: tuple[str, ...]) -> None:
    """Refuse codes that the library does not know."""
    known = _known()
    for code in codes:
        if code not in known:
            raise UsageError(f"data.languages: {code!r} is not one of the languages: {', '.join(known)}")


def version() -> str:
    """Return the library and its version: another one may judge otherwise, so it is part of a cache's identity."""
    _library()
    return f"py3langid {importlib.metadata.version('py3langid')}"


@functools.cache
def _library() -> Any:
    try:
        import py3langid
    except ModuleNotFoundError:
        raise MissingExtraError(
            "data.languages needs py3langid, which is not installed. Install it with: pip install 'headrace[language]'"
        ) from None
    return py3langid


@functools.cache
def _known() -> tuple[str, ...]:
    return tuple(sorted(code for code, _ in _library().rank("")))
