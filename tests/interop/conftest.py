"""A small cache of several segments, which every neighbour reads; made once, because nobody writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.data.corpus.scale import use_scale
from tests.conftest import SMALL, make_text


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interop")
    (folder / "text.txt").write_text(make_text(60_000, seed=5))
    with use_scale(SMALL):
        hr.prepare([folder / "text.txt"], tokenizer="bpe:300", out=folder / "cache")
    return folder


@pytest.fixture
def cache(small_scale: None, cache_folder: Path) -> hr.Cache:
    return hr.Cache.open(cache_folder / "cache")


@pytest.fixture(scope="session")
def eight_devices() -> None:
    """JAX with eight simulated devices; can be said only once, before anything else of JAX is used."""
    jax = pytest.importorskip("jax", reason="pip install 'headrace[jax]'")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in the example, which says why
    assert jax.device_count() == 8
