from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_explained_text_is_the_text_of_the_batch(
    three_sources: list[dict[str, Any]], tmp_path: Path, packing: Any
) -> None:
    cache = hr.prepare(three_sources, tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, 6, 64, packing=packing, seed=8) as loader:
        for step in range(30):
            batch = next(loader)
            for trace in loader.explain(step):
                text = "".join(span.text for span in trace.spans).replace("<|endoftext|>", "\0")
                if packing == "stream":
                    row = np.append(batch.inputs[trace.row], batch.targets[trace.row, -1])
                    assert cache.tokenizer.decode(row).replace("<|endoftext|>", "\0") == text
                for span in trace.spans:
                    raw = Path(span.file).read_text()
                    body = span.text.removesuffix("<|endoftext|>")
                    if "�" not in body and not span.file.endswith("jsonl"):
                        assert body in raw
                    elif span.file.endswith("jsonl") and span.start == 0 and "�" not in body:
                        assert any(json.loads(line)["text"].startswith(body) for line in raw.splitlines())


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_skipped_documents_are_not_seen_and_nothing_else_moves(
    three_sources: list[dict[str, Any]], tmp_path: Path, packing: Any
) -> None:
    cache = hr.prepare(three_sources, tokenizer="byte", out=tmp_path / "cache")
    options: dict[str, Any] = {"packing": packing, "seed": 8}
    with hr.Loader(cache, 6, 64, **options) as loader:
        plain = [next(loader) for _ in range(100)]
        traces = [loader.explain(step) for step in range(100)]
        victim = traces[50][2].spans[0].document
        old_state = loader.state()
    end = cache.tokenizer.end_of_text_id
    with hr.Loader(cache, 6, 64, **options, skip=[victim]) as loader:
        for step, before in enumerate(plain):
            after = next(loader)
            assert after.mask is not None
            touched = [any(span.document == victim for span in trace.spans) for trace in traces[step]]
            for row in range(6):
                if not touched[row]:
                    assert np.array_equal(after.inputs[row], before.inputs[row])
                    assert np.array_equal(after.targets[row], before.targets[row])
                else:
                    kept = after.mask[row]
                    assert np.array_equal(after.inputs[row][kept], before.inputs[row][kept])
                    assert not kept.all()
                    text = "".join(s.text for s in traces[step][row].spans if s.document == victim)
                    assert len(text) < 3 or text[1:-1] not in cache.tokenizer.decode(after.inputs[row])
            assert (after.inputs[~after.mask] == end).any() or not any(touched)
        state = loader.state()
        assert state["skip"] == [victim]
        ledger = sum(entry.dropped for entry in loader.ledger())
    assert ledger > 0
    with hr.Loader(cache, 6, 64, **options) as loader:  # the skip list travels in the state
        loader.restore({**state, "step": 50})
        assert next(loader).mask is not None
        assert loader.state()["skip"] == [victim]
        loader.restore({**old_state, "step": 50})
        assert np.array_equal(next(loader).inputs, plain[50].inputs)


def test_a_document_across_segments_and_shards_is_named_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(make_text(60_000).encode() * 3))
    cache = hr.prepare([tmp_path / "a.txt.gz"], tokenizer="byte", out=tmp_path / "cache")
    assert len(cache.segments) > 2
    assert len(cache.entry(len(cache.segments) - 1).shards) > 1  # the tail is longer than was assumed
    with hr.Loader(cache, 6, 64) as loader:
        names = {
            span.document
            for step in range(loader.steps_per_epoch + 1)
            for trace in loader.explain(step)
            for span in trace.spans
        }
    assert names == {f"{tmp_path / 'a.txt.gz'}#{n}.0" for n in range(len(cache.segments))}
