"""Small files that stand for gigabytes are refused, or read within bounds; whatever their metadata claim."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

PEAK_BYTES = 260 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")

PREPARE = """
import sys
import headrace as hr
try:
    hr.prepare({"path": sys.argv[1]}, tokenizer="byte", out=sys.argv[2], num_workers=1, memory_budget=96 << 20)
    print("prepared")
except hr.HeadraceError as problem:
    print(problem)
print(next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def prepared(path: Path) -> tuple[str, int]:
    """What a process of its own says of a file, and the memory that it took at most."""
    arguments = [sys.executable, "-c", PREPARE, str(path), str(path) + ".cache"]
    lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    return lines[-2], int(lines[-1])


def test_a_dictionary_of_parquet_that_stands_for_gigabytes(tmp_path: Path) -> None:
    """One text of a MiB, 4,096 times: 500 bytes on disk."""
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), pa.array(["a" * (1 << 20)]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 1000
    said, peak = prepared(tmp_path / "a.parquet")
    assert "decompression bomb" in said
    assert peak < PEAK_BYTES


def test_pages_of_parquet_that_the_footer_does_not_own_up_to(tmp_path: Path) -> None:
    """The footer is that of a small file, and a page's own header says 160 MiB."""
    table = pa.table({"text": ["b" * (160 << 20)]})
    options = {"use_dictionary": False, "write_statistics": False}
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", **options)
    data = (tmp_path / "a.parquet").read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    claimed = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).total_uncompressed_size
    large, small = _varint(2 * claimed), _varint(2 * 1000)
    assert footer.count(large) >= 1
    lying = footer.replace(large, small.ljust(len(small), b"\0"))
    (tmp_path / "a.parquet").write_bytes(data[: -8 - length] + lying + struct.pack("<I", len(lying)) + b"PAR1")
    assert pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).total_uncompressed_size == 1000
    said, peak = prepared(tmp_path / "a.parquet")
    assert "decompression bomb" in said
    assert peak < PEAK_BYTES


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


@pytest.mark.parametrize("kind", ["nested", "wide", "deep objects"])
def test_lines_of_json_that_are_all_structure(tmp_path: Path, kind: str) -> None:
    size = 12 << 20
    value = {"nested": "[" * size, "wide": "[" + "{}," * (size // 3) + "{}]", "deep objects": '{"a":' * (size // 5)}[
        kind
    ]
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "hidden", "x": ' + value + "}\n")
    said, peak = prepared(tmp_path / "a.jsonl")
    assert "a.jsonl:2: " in said
    assert peak < PEAK_BYTES


def test_a_long_text_in_a_line_of_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "' + '\\"[{,' * (1 << 20) + '"}\n')
    assert hr.prepare([tmp_path / "a.jsonl"], tokenizer="byte", out=tmp_path / "cache").num_tokens == (4 << 20) + 1


def test_repeated_rows_of_parquet_are_read_within_bounds(tmp_path: Path) -> None:
    """Honest repetition, below the limit, is decoded a MiB at a time."""
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["c" * (1 << 20)]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet")
    said, peak = prepared(tmp_path / "a.parquet")
    assert said == "prepared"
    assert peak < PEAK_BYTES
