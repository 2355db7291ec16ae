"""What is worth considering for a corpus and a time."""

from __future__ import annotations

from headrace.perf.search_space import shapes, vocabularies_for


def test_vocabularies_grow_with_the_corpus() -> None:
    assert max(vocabularies_for(1e5)) < max(vocabularies_for(1e6)) < max(vocabularies_for(1e7))


def test_shapes_span_the_sizes_that_headrace_trains() -> None:
    found = shapes()
    assert len(set(found)) == len(found)
    assert min(found) == (96, 4)
    assert max(found)[0] == 1024
