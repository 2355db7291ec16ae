"""Columns of text in Arrow's layout: checked, and handed out in bounded batches. Parquet, Arrow files and datasets have
them in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import CorpusError, NoTextColumnError

BATCH_BYTES = 1 << 20


def check_text_column(place: str, column: str, schema: Any, remedy: str = "data.text_field=NAME") -> None:
    """Refuse a table without this column, or with something else than text in it."""
    import pyarrow as pa

    if column not in schema.names:
        known = ", ".join(schema.names)
        raise NoTextColumnError(f"{place}: no column {column!r} (it has: {known}). Name the right one: {remedy}")
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(test(kind) for test in tests):
        raise CorpusError(f"{place}: column {column!r} holds {kind}, not text.")


def bounded_texts(values: Any) -> Iterator[list[bytes | None]]:
    """Yield the texts of a column as UTF-8 bytes, about a MiB at a time; None where there is none.

    A few rows of a dictionary may stand for gigabytes, so lengths are looked up before anything is decoded.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_dictionary = pa.types.is_dictionary(values.type)
    lengths = pc.binary_length(values.dictionary).take(values.indices) if is_dictionary else pc.binary_length(values)
    stops = np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    start = 0
    while start < len(values):
        before = int(stops[start - 1]) if start else 0
        stop = max(int(np.searchsorted(stops, before + BATCH_BYTES, "right")), start + 1)
        part = values.slice(start, stop - start)
        part = part.dictionary_decode() if is_dictionary else part
        yield part.cast(pa.large_binary()).to_pylist()
        start = stop
