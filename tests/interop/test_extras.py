"""A library that only a neighbour needs, and that is not there: the message has its pip line."""

from __future__ import annotations

import sys

import pytest

import headrace as hr
from headrace.errors import MissingExtraError
from headrace.interop.jax import jax_batches
from headrace.interop.lightning import data_module
from headrace.interop.trainer import resume_callback


@pytest.mark.parametrize(
    ("use", "module", "extra"), [(jax_batches, "jax", "jax"), (resume_callback, "transformers", "trainer")]
)
def test_a_missing_library_is_named_with_its_pip_line(
    cache: hr.Cache, monkeypatch: pytest.MonkeyPatch, use: object, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        hr.Loader(cache, 4, 16) as loader,
        pytest.raises(MissingExtraError, match=rf"{module} is not installed.*\[{extra}\]"),
    ):
        use(loader)  # type: ignore[operator]


def test_missing_lightning_is_named_before_any_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingExtraError, match=r"lightning is not installed.*\[lightning\]"):
        data_module("no such folder", 4, 16)
