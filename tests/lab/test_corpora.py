"""Corpora: deterministic, the last twentieth held out, the judge kept away; packages extracted and never installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import CorpusError, UsageError
from tests.conftest import make_text

if TYPE_CHECKING:
    from lab.corpora import Library


def test_the_last_twentieth_is_held_out_and_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    from lab.corpora import read_corpus, write_corpus

    documents = [(f"page {number}", make_text(1000 + number, seed=number)) for number in range(40)]
    write_corpus(tmp_path / "a", documents)
    write_corpus(tmp_path / "b", [*reversed(documents), ("again", documents[3][1])])
    facts = json.loads((tmp_path / "a" / "corpus.json").read_bytes())
    assert facts["bytes"]["held_out"] / sum(facts["bytes"].values()) == pytest.approx(0.05, abs=0.01)
    assert sum(facts["bytes"].values()) == sum(len(text.encode()) for _, text in documents)
    assert read_corpus(tmp_path / "a", {}).digest != ""
    one, other = ((tmp_path / name / "train.jsonl").read_bytes() for name in "ab")
    assert one == other  # the copy under another name is left out; which of the two names counts is their order


def test_a_damaged_corpus_is_refused(library: Library) -> None:
    corpus = library.open("small")
    corpus.train.write_text("")
    with pytest.raises(CorpusError, match="damaged"):
        library.open("small")


def test_the_judge_is_opened_at_the_end_only(library: Library, tmp_path: Path) -> None:
    from lab.corpora import Library

    with pytest.raises(UsageError, match="--final"):
        library.open("secret")
    assert Library(tmp_path, is_final=True).open("secret").train.exists()


def test_held_out_text_is_cut_at_a_line(library: Library) -> None:
    from lab.corpora import held_out_texts

    corpus = library.open("small")
    whole, part = held_out_texts(corpus, None), held_out_texts(corpus, 700)
    assert 0 < sum(len(text.encode()) for text in part) <= 700
    assert "".join(whole).startswith("".join(part))


def test_missing_texts_name_the_option(tmp_path: Path) -> None:
    from lab.corpora import Library

    with pytest.raises(CorpusError, match="--texts"):
        Library(tmp_path / "corpora", texts=tmp_path).open("shakespeare")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
def test_pages_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import debian

    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: mill-doc\nVersion: 1\nArchitecture: all\nMaintainer: m <m@example.org>\nDescription: mills\n"
    )
    pages = tree / "usr" / "share" / "doc"
    pages.mkdir(parents=True)
    for name in ("wheel.html", "genindex.html", "notes.txt"):
        (pages / name).write_text(f"<p>The <b>{name}</b> turns.</p>")
    run = debian._run

    def build_instead(command: list[str], folder: Path) -> None:
        is_download = command[0] == "apt-get"
        run(
            ["dpkg-deb", "--root-owner-group", "-b", str(tree), "mill-doc_1_all.deb"] if is_download else command,
            folder,
        )

    monkeypatch.setattr(debian, "_run", build_instead)
    expected = [("mill-doc/usr/share/doc/wheel.html", "The wheel.html turns.\n")]
    assert list(debian.pages("mill-doc", tmp_path / "packages")) == expected
    assert (tmp_path / "packages" / "mill-doc.version").read_text() == "mill-doc_1_all.deb\n"
    monkeypatch.setattr(debian, "_run", None)  # the second time, nothing is downloaded
    assert list(debian.pages("mill-doc", tmp_path / "packages")) == expected


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import debian

    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "W: hm\nE: Unable to locate package mill-doc\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(CorpusError, match="Unable to locate package mill-doc"):
        debian.extract("mill-doc", tmp_path)
    assert list(tmp_path.iterdir()) == []
