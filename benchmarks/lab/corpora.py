"""Corpora of the laboratory: documents in files outside the repository, the last part of them held out.

A corpus is a folder with train.jsonl, held_out.jsonl and corpus.json, which is written last. Documents stand in the
order of a hash of their names, so that the last part, usually a twentieth, is of the same kind as the rest; the same
documents give the same files everywhere. A corpus that judges is not looked at while a recipe is tuned: it is opened
only with --final.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.sources import standard_library
from headrace.errors import CorpusError, UsageError
from headrace.files import digest, temporary_beside, user_cache, write_atomically
from lab import debian

HELD_OUT = 0.05
PROJECT = Path(__file__).resolve().parents[2]
TEXTS = PROJECT.parent / "shared" / "data"
"""Where the user's own texts lie, unless another folder is named."""

Document = tuple[str, str]
"""A name, which is the same on every machine, and a text."""
Documents = Callable[[Path, Path], Iterable[Document]]
"""The documents of a corpus, given the folder of the user's texts and a folder for downloads."""


@dataclass(frozen=True)
class Recipe:
    """How a corpus is made."""

    name: str
    about: str
    documents: Documents
    values: dict[str, Any] = field(default_factory=dict)
    """Configuration values of all runs on it, which presets lie under and variants over."""
    is_judge: bool = False
    held_out: float = HELD_OUT
    """Share of the bytes that is held out."""


@dataclass(frozen=True)
class Corpus:
    """A corpus that has been made."""

    name: str
    train: Path
    held_out: Path
    digest: str
    values: dict[str, Any]


def text_file(name: str, most: int | None = None) -> Documents:
    """Return the one document of a file in the user's folder, or its first `most` characters."""

    def documents(texts: Path, _downloads: Path) -> Iterator[Document]:
        file = texts / name
        if not file.is_file():
            raise CorpusError(f"{file}: no such file. Put it there, or name its folder with --texts FOLDER.")
        yield name, file.read_text(encoding="utf-8", errors="replace")[:most]

    return documents


def library_files(_texts: Path, _downloads: Path) -> Iterator[Document]:
    """Yield the files of the Python standard library that `headrace train` learns by default."""
    for file in iterate_files(standard_library()):
        yield file.name, Path(file.path).read_text(encoding="utf-8", errors="replace")


def some_of(documents: Documents, num_bytes: int) -> Documents:
    """Return as many documents of another corpus, in the order of their hashes, as have so many bytes."""

    def some(texts: Path, downloads: Path) -> Iterator[Document]:
        left = num_bytes
        for name, text in sorted(documents(texts, downloads), key=lambda document: digest(document[0])):
            if left <= 0:
                return
            yield name, text
            left -= len(text.encode("utf-8", "replace"))

    return some


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("shakespeare", "shakespeare.txt of your texts, by characters", text_file("shakespeare.txt"),
               {"data.tokenizer": "char"}),
        Recipe("wikitext2", "wikitext2-valid.txt of your texts", text_file("wikitext2-valid.txt")),
        Recipe("wikitext2-small", "the first 140 kB of that, which come round often",
               text_file("wikitext2-valid.txt", 200_000), held_out=0.3),
        Recipe("stdlib", "the Python standard library on this disk", library_files),
        Recipe("python-doc", "Python's documentation (Debian package)", debian.python_doc),
        Recipe("linux-doc", "the Linux kernel's documentation in English (Debian package)", debian.linux_doc),
        Recipe("linux-doc-small", "3.4 MB of that, which come round a few times", some_of(debian.linux_doc, 3_400_000)),
        Recipe("rfc", "the RFCs (Debian package doc-rfc, where the sources of apt have it)", debian.rfc),
        Recipe("debian-books", "Debian's handbook, reference, policy and guides in English (Debian packages)",
               debian.books, is_judge=True),
    )
}  # fmt: skip
"""The corpora that there are, by name."""


class Library:
    """The corpora in a folder; each is made when it is first opened."""

    def __init__(self, folder: Path, texts: Path = TEXTS, is_final: bool = False) -> None:
        self.folder, self._texts, self._is_final = folder, texts, is_final

    def check(self, names: Iterable[str]) -> None:
        """Refuse a corpus that does not exist, or that judges before the end."""
        for name in names:
            if name not in RECIPES:
                raise UsageError(f"corpus {name!r}: no such corpus. Corpora: {', '.join(RECIPES)}.")
            if RECIPES[name].is_judge and not self._is_final:
                raise UsageError(
                    f"corpus {name!r} judges at the end, and nobody looks at it while tuning. With --final, it is used."
                )

    def open(self, name: str, say: Callable[[str], None] = lambda line: None) -> Corpus:
        """Return a corpus, after making it where it is not there yet."""
        self.check([name])
        place = self.folder / name
        if not (place / "corpus.json").exists():
            say(f"making the corpus {name} in {place}")
            recipe = RECIPES[name]
            write_corpus(place, recipe.documents(self._texts, self.folder / "packages"), recipe.held_out)
        return read_corpus(place, RECIPES[name].values)


def default_folder() -> Path:
    """Return where corpora lie unless another folder is named."""
    return user_cache() / "lab-corpora"


def read_corpus(place: Path, values: dict[str, Any]) -> Corpus:
    """Read what `write_corpus` wrote."""
    try:
        found = json.loads((place / "corpus.json").read_bytes())
        sizes = [(place / name).stat().st_size for name in found["files"]]
        is_whole = sizes == list(found["files"].values())
        content_digest = str(found["digest"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_whole, content_digest = False, ""
    if not is_whole:
        raise CorpusError(f"{place}: damaged. Delete this folder, and the corpus is made again.")
    return Corpus(place.name, place / "train.jsonl", place / "held_out.jsonl", content_digest, values)


def write_corpus(place: Path, documents: Iterable[Document], share: float = HELD_OUT) -> None:
    """Write a corpus: documents in the order of their hashes, the last `share` of the bytes held out."""
    place.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    ordered: list[tuple[str, str]] = []
    for name, text in documents:
        content = digest(text)
        if text.strip() and content not in seen:  # the same page under two names is one document
            seen.add(content)
            ordered.append((digest(name), text))
    if not ordered:
        raise CorpusError(f"{place.name}: no document was found for this corpus.")
    ordered.sort()
    train, held_out = split([text for _, text in ordered], share)
    files = {}
    for name, texts in (("train.jsonl", train), ("held_out.jsonl", held_out)):
        files[name] = _write_lines(place / name, texts)
    facts = {
        "digest": digest(*train, "held out", *held_out),
        "documents": {"train": len(train), "held_out": len(held_out)},
        "bytes": {"train": _num_bytes(train), "held_out": _num_bytes(held_out)},
        "files": files,
    }
    write_atomically(place / "corpus.json", json.dumps(facts, indent=1).encode())


def split(texts: list[str], share: float = HELD_OUT) -> tuple[list[str], list[str]]:
    """Cut documents in two, so that the last `share` of their bytes is the second part; a cut document ends at a line.

    >>> split(["a\\n" * 50, "b\\n" * 50], share=0.1)[1]
    ['b\\nb\\nb\\nb\\nb\\nb\\nb\\nb\\nb\\nb\\n']
    """
    keep = round((1 - share) * _num_bytes(texts))
    for number, text in enumerate(texts):
        raw = text.encode("utf-8", "replace")
        if len(raw) <= keep:
            keep -= len(raw)
            continue
        cut = raw.rfind(b"\n", 0, keep) + 1
        parts = raw[:cut].decode(), raw[cut:].decode()
        return [*texts[:number], *([parts[0]] if cut else [])], [parts[1], *texts[number + 1 :]]
    return texts, []


def held_out_texts(corpus: Corpus, max_bytes: int | None) -> list[str]:
    """Return the held-out documents, as many as begin within the first `max_bytes`; the last is cut at a line."""
    texts, left = [], max_bytes if max_bytes else 1 << 62
    with open(corpus.held_out, encoding="utf-8") as file:
        for line in file:
            raw = json.loads(line)["text"].encode("utf-8", "replace")
            if len(raw) > left:
                raw = raw[: raw.rfind(b"\n", 0, left) + 1]
            if raw:
                texts.append(raw.decode())
            left -= len(raw)
            if left <= 0 or len(raw) == 0:
                break
    if not texts:
        raise UsageError(f"judge_bytes {max_bytes}: less than the first line of {corpus.held_out}. Raise it.")
    return texts


def _write_lines(path: Path, texts: list[str]) -> int:
    """Write documents as lines of JSON, by way of a temporary file; return its size."""
    temporary = temporary_beside(path)
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    os.replace(temporary, path)
    return path.stat().st_size


def _num_bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
