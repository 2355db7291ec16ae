"""Text columns of parquet files, in bounded batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import CorpusError

BATCH_BYTES = 1 << 20
MAX_BATCH_ROWS = 1024


def row_group_bytes(path: str, column: str) -> list[int]:
    """Uncompressed bytes of the text column in each row group, from the footer alone."""
    with _open(path, column) as file:
        number = _column_number(file, column)
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).column(number).total_uncompressed_size for group in groups]


def iterate_texts(path: str, column: str, begin: int, end: int) -> Iterator[tuple[int, list[bytes | None]]]:
    """The texts of row groups [begin, end) as UTF-8 bytes, about a MiB at a time, each batch with the number of its
    first row in the file; None where a row has no text."""
    import pyarrow as pa

    with _open(path, column) as file:
        metadata = file.metadata
        number = _column_number(file, column)
        row = sum(metadata.row_group(group).num_rows for group in range(begin))
        for group in range(begin, end):
            facts = metadata.row_group(group)
            row_bytes = facts.column(number).total_uncompressed_size / max(facts.num_rows, 1)
            batch_rows = int(max(1, min(MAX_BATCH_ROWS, BATCH_BYTES / max(row_bytes, 1))))
            batches = file.iter_batches(batch_rows, row_groups=[group], columns=[column], use_threads=False)
            try:
                for batch in batches:
                    values = batch.column(0)
                    if pa.types.is_dictionary(values.type):
                        values = values.dictionary_decode()
                    texts = values.cast(pa.large_binary()).to_pylist()
                    yield row, texts
                    row += len(texts)
            except (pa.ArrowException, OSError) as problem:
                raise CorpusError(
                    f"{path}: damaged or truncated parquet file (row group {group}, after row {row}: {problem})."
                ) from None


def _column_number(file: Any, column: str) -> int:
    schema = file.metadata.schema
    return next(i for i in range(file.metadata.num_columns) if schema.column(i).path == column)


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
        file.close()
        raise CorpusError(
            f"{path}: no column {column!r} (it has: {', '.join(names)}). Name the right one: data.text_field=NAME"
        )
    kind = file.schema_arrow.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(test(kind) for test in is_text):
        file.close()
        raise CorpusError(f"{path}: column {column!r} holds {kind}, not text.")
    return file
