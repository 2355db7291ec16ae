"""A small corpus with a file of every format, to be read from anywhere."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.data.cache.cache import Cache
from headrace.data.corpus.segments import corpus_hash
from tests.conftest import make_text


def write_corpus(folder: Path) -> list[str]:
    """Write the corpus; return the names of its files."""
    lines = [json.dumps({"text": make_text(1 + 37 * n % 300, seed=n)}) for n in range(200)]
    (folder / "deep" / "er").mkdir(parents=True)
    files: dict[str, bytes] = {
        "large.txt": make_text(40_000, seed=1).encode(),
        "lines.jsonl": "\n".join(lines).encode(),
        "lines.jsonl.gz": gzip.compress("\n".join(lines[:90]).encode()),
        "text.txt.bz2": bz2.compress(make_text(9_000, seed=2).encode()),
        "text.txt.xz": lzma.compress(make_text(9_000, seed=3).encode()),
        "text.txt.zst": pa.compress(make_text(9_000, seed=4).encode(), codec="zstd", asbytes=True),
        "table.csv": b"id,text\n" + b"".join(f'{n},"row {n}, {make_text(90, n)}"\n'.encode() for n in range(90)),
        "list.json": json.dumps([make_text(100, seed=n) for n in range(70)]).encode(),
        "page.html": f"<title>Mill</title><p>{make_text(800, seed=5)}".encode(),
        "table.parquet": _parquet(),
        "deep/b c+d.txt": make_text(700, seed=6).encode(),
        "deep/er/ä.md": make_text(600, seed=7).encode(),
        "deep-er.txt": make_text(500, seed=8).encode(),
        "empty.txt": b"",
        ".hidden.txt": b"hidden",
        "picture.png": b"not read",
        **{f"deep/{n:03}.md": make_text(40 * n + 1, seed=100 + n).encode() for n in range(20)},
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return list(files)


def write_archives(folder: Path) -> list[str]:
    """Write archives, which are read when they are named; return their names."""
    members = {f"m/{n}.txt": make_text(900, seed=n).encode() for n in range(12)}
    with zipfile.ZipFile(folder / "corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with tarfile.open(folder / "corpus.tar.gz", "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return ["corpus.zip", "corpus.tar.gz"]


def identity(cache: Cache) -> tuple[str, str, int]:
    """Return what must not depend on where a corpus lies: the hash of its order, that of its text, its tokens."""
    segments = range(len(cache.segments))
    assert cache.corpus_hash == corpus_hash(cache.segments)
    return cache.corpus_hash, cache.content_hash(segments), cache.num_tokens


def _parquet() -> bytes:
    out = io.BytesIO()
    table = pa.table({"text": [make_text(1 + 53 * n % 400, seed=n) for n in range(120)], "n": list(range(120))})
    pq.write_table(table, out, row_group_size=25)
    return out.getvalue()
