"""Builds of hundreds of megabytes: one endless line, and twenty kills."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from tests.conftest import make_text


@pytest.mark.soak
def test_one_line_of_200_megabytes(tmp_path: Path) -> None:
    """With spaces and without: the pieces are bounded, and nothing is lost."""
    for name, block in (
        ("words.txt", make_text(1 << 20).replace("\n", " ").encode()),
        ("letters.txt", b"abcdefgh" * (1 << 17)),
    ):
        file = tmp_path / name
        with open(file, "wb") as stream:
            for _ in range(200_000_000 // len(block)):
                stream.write(block)
        size = file.stat().st_size
        cache = hr.prepare(
            [{"path": str(file), "document": "line"}], tokenizer="bpe:400", out=tmp_path / f"cache-{name}"
        )
        assert cache.num_documents == 1
        lengths = {i: len(cache.tokenizer.decode([i]).encode()) for i in range(1, cache.tokenizer.vocab_size)}
        table = np.zeros(cache.tokenizer.vocab_size, dtype=np.int64)
        # Single bytes of a longer character decode to U+FFFD, but are one byte each.
        table[list(lengths)] = [1 if "�" in cache.tokenizer.decode([i]) else lengths[i] for i in lengths]
        total = sum(
            int(table[tokens].sum())
            for segment in range(len(cache.segments))
            for tokens in cache.tokens(segment, 0, 1 << 40)
        )
        assert total == size if name == "letters.txt" else total > 0
        file.unlink()


@pytest.mark.soak
def test_killed_twenty_times_the_build_ends_with_the_bytes_of_a_clean_one(tmp_path: Path) -> None:
    """Twenty kills of one and the same build, each at a random moment after it has begun to write."""
    corpus = tmp_path / "corpus"
    (corpus / "small").mkdir(parents=True)
    block = make_text(4_000_000)
    for number in range(4):
        (corpus / f"{number}.txt").write_text("".join(f"{number}.{part} {block}" for part in range(25)))
    (corpus / "lines.jsonl.gz").write_bytes(
        gzip.compress("\n".join(json.dumps({"text": f"{n} {block[n:][:2000]}"}) for n in range(5000)).encode(), 1)
    )
    for number in range(500):
        (corpus / "small" / f"{number}.md").write_text(f"{number} {block[number:][:5000]}")
    arguments = [sys.executable, "-m", "headrace", "prepare", str(corpus), "--tokenizer", "bpe:400", "--out"]
    subprocess.run([*arguments, str(tmp_path / "clean")], check=True, capture_output=True)
    rng = random.Random(0)
    for kill in range(20):
        child = subprocess.Popen(
            [*arguments, str(tmp_path / "cache")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = set(tmp_path.glob("cache/tmp/*/tokens"))
        while set(tmp_path.glob("cache/tmp/*/tokens")) <= before:
            assert child.poll() is None, f"the build was over before kill {kill}: the corpus is too small"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.15))
        assert child.poll() is None, f"the build was over before kill {kill}: the corpus is too small"
        child.kill()
        child.wait()
    assert not (tmp_path / "cache" / "manifest.json").exists()
    subprocess.run([*arguments, str(tmp_path / "cache")], check=True, capture_output=True)

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}

    assert contents(tmp_path / "cache") == contents(tmp_path / "clean")
