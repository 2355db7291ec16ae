"""The ledger adds up, exactly: counted from the batches themselves, for all kinds of corpora."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.explain.ledger import Ledger

DOCUMENTS = st.lists(st.integers(1, 120), min_size=3, max_size=60)


@pytest.mark.usefixtures("small_scale")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=DOCUMENTS,
    length=st.integers(1, 64),
    packing=st.sampled_from(["stream", "document"]),
    kind=st.sampled_from(["file", "line"]),
    fraction=st.sampled_from([0.0, 0.2]),
    num_skipped=st.integers(0, 2),
)
def test_trained_carried_and_dropped_make_up_the_corpus(
    sizes: list[int], length: int, packing: Any, kind: str, fraction: float, num_skipped: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rng = np.random.default_rng(sum(sizes))
        texts = ["".join(rng.choice(list("abc déf"), size)) for size in sizes]
        (root / "corpus").mkdir()
        if kind == "line":
            (root / "corpus" / "a.txt").write_text("\n".join(texts))
        else:
            for number, text in enumerate(texts):
                (root / "corpus" / f"{number:03}.txt").write_text(text)
        source = {"path": str(root / "corpus"), "document": kind}
        cache = hr.prepare([source], tokenizer="byte", out=root / "cache")
        total = 0
        parts = ["train", "validation"] if fraction else ["all"]
        for part in parts:
            options: dict[str, Any] = {"packing": packing, "split": part, "validation_fraction": fraction}
            try:
                with hr.Loader(cache, 1, length, **options) as loader:
                    names = sorted({span.document for trace in loader.explain(0) for span in trace.spans})
                with hr.Loader(cache, 1, length, **options, skip=names[:num_skipped]) as loader:
                    ledger = loader.ledger()[0]
                    check(ledger, loader)
            except hr.HeadraceError as problem:
                said = str(problem)
                assert "longer than the corpus" in said or "is empty" in said or "too long for this part" in said
                return
            total += ledger.tokens
        assert total == cache.num_tokens


def check(ledger: Ledger, loader: hr.Loader) -> None:
    assert ledger.trained + ledger.carried + ledger.dropped == ledger.tokens
    filled = 0
    for _ in range(ledger.rows):
        batch = next(loader)
        if loader.state()["packing"] == "stream":
            # A row trains on its inputs; the lookahead token belongs to the next row.
            skipped = 0 if batch.mask is None else int((batch.mask == 0).sum())
            filled += batch.inputs.size - skipped
        else:
            filled += batch.num_tokens
    assert ledger.slots == ledger.rows * loader.sequence_length
    if not loader.state()["skip"]:
        assert filled == ledger.filled


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("packing", ["stream", "document"])
def test_a_skipped_document_that_the_split_cuts(tmp_path: Path, packing: Any) -> None:
    (tmp_path / "a.txt").write_text("x" * 3000)
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    name = f"{tmp_path / 'a.txt'}#0.0"
    options: dict[str, Any] = {"packing": packing, "split": "train", "validation_fraction": 0.1, "skip": [name, name]}
    with hr.Loader(cache, 1, 32, **options) as loader:
        ledger = loader.ledger()[0]
        assert next(loader).num_tokens == 0
    assert ledger.trained == ledger.filled == 0
    assert ledger.dropped + ledger.carried == ledger.tokens
