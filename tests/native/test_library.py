"""A library that was built for another version is told about, and not used."""

from __future__ import annotations

import pytest

from headrace.native import library

pytestmark = pytest.mark.skipif(bool(library.why_missing()), reason="the native library was not built")


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(library: object) -> None:
        raise AttributeError("undefined symbol")  # as for a function that the other version does not have

    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    monkeypatch.setattr(library, "_declare", refuse)
    assert "another version of headrace" in library.why_missing.__wrapped__()
