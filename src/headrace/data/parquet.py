"""Text columns of parquet files, in bounded batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import CorpusError

BATCH_ROWS = 256


def row_group_bytes(path: str, column: str) -> list[int]:
    """Uncompressed bytes of the text column in each row group, from the footer alone."""
    metadata = _open(path, column).metadata
    number = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column)
    return [
        metadata.row_group(group).column(number).total_uncompressed_size for group in range(metadata.num_row_groups)
    ]


def iterate_texts(path: str, column: str, begin: int, end: int) -> Iterator[list[bytes | None]]:
    """The texts of row groups [begin, end) as UTF-8 bytes, a batch of rows at a time; None where the row has none."""
    import pyarrow as pa

    file = _open(path, column)
    try:
        for batch in file.iter_batches(
            batch_size=BATCH_ROWS, row_groups=list(range(begin, end)), columns=[column], use_threads=False
        ):
            values = batch.column(0)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            yield values.cast(pa.large_binary()).to_pylist()
    except (pa.ArrowException, OSError) as problem:
        raise CorpusError(f"{path}: damaged or truncated parquet file (row groups {begin}-{end}: {problem}).") from None
    finally:
        file.close()


def _open(path: str, column: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without these, pyarrow reads whole column chunks ahead: memory as large as the file's row groups.
        file = pq.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError) as problem:
        raise CorpusError(f"{path}: not a readable parquet file: {problem}") from None
    names = file.schema_arrow.names
    if column not in names:
        raise CorpusError(f"{path}: no column {column!r} (it has: {', '.join(names)}). Set text_field to one of them.")
    kind = file.schema_arrow.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    ):
        raise CorpusError(f"{path}: column {column!r} holds {kind}, not text.")
    return file
