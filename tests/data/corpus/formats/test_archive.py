"""Archives: members are files, in order and within bounds; nothing is written, and hostile archives are refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError
from tests.conftest import make_text
from tests.data.corpus.test_readers import COMPRESS, documents

Members = dict[str, bytes]
MIXED: Members = {
    "b/large.txt": make_text(30_000).encode(),
    "b/rows.csv": b'id,text\n1,"a, b"\n2,c\n',
    "a.jsonl.gz": gzip.compress(b'{"text": "line one"}\n{"text": "line two"}\n'),
    "page.html": b"<p>paragraph</p>",
    "list.json": b'["item one", {"text": "item two"}]',
    **{f"many/{number:03}.md": f"small file {number}".encode() for number in range(300)},
    "__MACOSX/._a.txt": b"hidden",
    ".git/config.txt": b"hidden",
    "picture.png": b"\x89PNG",
    "data.parquet": b"PAR1",
    "nested.zip": b"PK\x03\x04",
    "empty.txt": b"",
}
TEXTS = [b"a, b", b"c", b"line one", b"line two", b"paragraph\n", b"item one", b"item two"]


def write_zip(path: Path, members: Members, method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)


def write_tar(path: Path, members: Members, compress: Callable[[bytes], bytes] = bytes) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    path.write_bytes(compress(data.getvalue()))


def write(path: Path, members: Members) -> Path:
    if path.suffix == ".zip":
        write_zip(path, members)
    else:
        short = {".tgz": ".gz", ".tar": ""}
        write_tar(path, members, COMPRESS[short.get(path.suffix, path.suffix)])
    return path


ARCHIVES = ["a.zip", "a.tar", "a.tgz", "a.tar.gz", "a.tar.zst", "a.tar.bz2", "a.tar.xz"]


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("name", ARCHIVES)
def test_members_are_read_as_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, MIXED)
    cache = hr.prepare(path, tokenizer="byte", out=tmp_path / "cache")
    found = documents(Source(path=str(path)))
    assert found[0] == MIXED["b/large.txt"]
    assert found[1:8] == TEXTS
    assert found[8:] == [MIXED[f"many/{number:03}.md"] for number in range(300)]
    assert cache.num_documents == len(found)
    assert cache.noticed == {
        "member(s) of archives with the suffix .png, left out": 1,
        "member(s) of archives with the suffix .parquet, left out": 1,
        "member(s) of archives with the suffix .zip, left out": 1,
        "empty member(s) of archives, left out": 1,
    }
    with hr.Loader(cache, 4, 64, shuffle=False) as loader:
        files = {span.file for step in range(200) for row in loader.explain(step) for span in row.spans}
    assert f"{path}/b/large.txt" in files
    assert f"{path}/many/007.md" in files


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_tokens_are_the_same_for_any_number_of_workers_and_after_a_kill(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, MIXED)
    hashes = []
    for workers in (1, 3):
        cache = hr.prepare(path, tokenizer="byte", out=tmp_path / f"{workers}", num_workers=workers)
        assert len(cache.segments) > 1
        hashes.append(cache.content_hash(range(len(cache.segments))))
    os.rename(tmp_path / "3" / "manifest.json", tmp_path / "3" / "partial.json")
    shards = sorted((tmp_path / "3" / "shards").glob("*.json"))
    shards[len(shards) // 2].unlink()
    again = hr.prepare(path, tokenizer="byte", out=tmp_path / "3")
    hashes.append(again.content_hash(range(len(again.segments))))
    assert len(set(hashes)) == 1


def test_a_document_of_an_archive_can_be_skipped_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", {"one.txt": b"first text", "two.txt": b"second text"})
    cache = hr.prepare(path, tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, 1, 4, shuffle=False, skip=[f"{path}/two.txt#0.0"]) as loader:
        text = cache.tokenizer.decode([token for batch in loader.epoch() for token in batch.inputs[0]])
    assert text.startswith("first text")
    assert "second" not in text


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
@pytest.mark.parametrize("escape", ["../../out.txt", "/etc/out.txt", "a/../../out.txt", "..\\out.txt", "C:\\out.txt"])
def test_names_that_lead_out_of_the_archive_are_left_out(tmp_path: Path, name: str, escape: str) -> None:
    (tmp_path / "inner").mkdir()
    path = write(tmp_path / "inner" / name, {escape: b"evil", "fine.txt": b"fine"})
    cache = hr.prepare(path, tokenizer="byte", out=tmp_path / "inner" / "cache")
    assert documents(Source(path=str(path))) == [b"fine"]
    assert cache.noticed == {"member(s) of archives whose names lead out of them, left out": 1}
    assert sorted(os.listdir(tmp_path)) == ["inner"]


@pytest.fixture
def small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What expands to more than a MiB, and more than 100 times its size, counts as a bomb."""
    monkeypatch.setattr("headrace.data.corpus.expansion.BOMB_FREE_BYTES", 1 << 20)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.zst"])
@pytest.mark.parametrize("member", ["bomb.txt", "bomb.bin"])
def test_a_bomb_is_refused(tmp_path: Path, small_bombs: None, name: str, member: str) -> None:
    if name == "a.zip" and member == "bomb.bin":
        pytest.skip("members of a zip archive that are left out are not expanded")
    path = write(tmp_path / name, {member: b"\n" * (4 << 20), "fine.txt": b"fine"})
    with pytest.raises(CorpusError, match=r"decompression bomb.*data\.max_expansion=FACTOR"):
        hr.prepare(path, tokenizer="byte", out=tmp_path / "cache")


def test_many_members_that_are_a_bomb_together(tmp_path: Path, small_bombs: None) -> None:
    path = write(tmp_path / "a.zip", {f"{number}.txt": b"\n" * (300 << 10) for number in range(10)})
    with pytest.raises(CorpusError, match="decompression bomb"):
        documents(Source(path=str(path)))


def test_a_zip_that_lies_about_its_sizes(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"a.txt": b"words " * 1000}, zipfile.ZIP_STORED)
    data = (tmp_path / "a.zip").read_bytes()
    size = (6000).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data.replace(size, (1 << 31).to_bytes(4, "little")))
    with pytest.raises(CorpusError, match=r"a\.zip"):
        documents(Source(path=str(tmp_path / "a.zip")))


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"secret.txt": b"words"})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    data[6] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(CorpusError, match=r"a\.zip/secret\.txt: encrypted\. Unpack the archive with its password"):
        documents(Source(path=str(tmp_path / "a.zip")))


def test_an_unusual_compression_is_named(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"a.txt": b"words"}, zipfile.ZIP_LZMA)
    with pytest.raises(CorpusError, match=r"a\.zip/a\.txt: compressed with lzma"):
        documents(Source(path=str(tmp_path / "a.zip")))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.zst"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.97])
def test_a_truncated_archive_is_refused(tmp_path: Path, name: str, share: float) -> None:
    path = write(tmp_path / name, {f"{number}.txt": make_text(5000, number).encode() for number in range(20)})
    data = path.read_bytes()
    if name == "a.tar":
        data = data.rstrip(b"\0")
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CorpusError, match="damaged or truncated"):
        documents(Source(path=str(path)))


def test_a_tar_that_is_cut_between_two_members_is_refused(tmp_path: Path) -> None:
    """`tarfile` takes this for the end."""
    path = write(tmp_path / "a.tar", {"a.txt": b"a" * 512, "b.txt": b"b" * 512})
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(CorpusError, match="damaged or truncated tar archive"):
        documents(Source(path=str(path)))
    path = write(tmp_path / "a.tar", {"a.txt": b"a" * 512, "b.txt": b"b" * 512})
    data = bytearray(path.read_bytes())
    data[1024 + 10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="damaged or truncated tar archive"):
        documents(Source(path=str(path)))


def test_links_devices_and_giant_headers_of_tar(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
        fine = tarfile.TarInfo("fine.txt")
        fine.size = 4
        file.addfile(fine, io.BytesIO(b"fine"))
    (tmp_path / "a.tar").write_bytes(data.getvalue())
    assert documents(Source(path=str(tmp_path / "a.tar"))) == [b"fine"]
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    (tmp_path / "b.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096)
    with pytest.raises(CorpusError, match="a header of 8,589,934,592 bytes"):
        documents(Source(path=str(tmp_path / "b.tar")))


def test_a_zip_with_too_many_members_is_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.data.corpus.formats.zip.DIRECTORY_LIMIT_BYTES", 1000)
    path = write(tmp_path / "a.zip", {f"{number}.txt": b"a" for number in range(30)})
    with pytest.raises(CorpusError, match="too many members"):
        documents(Source(path=str(path)))


def test_an_archive_without_text_says_what_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"a.png": b"1", "b.png": b"2"})
    with pytest.raises(CorpusError, match=r"no readable file in this archive \(2 member\(s\) .* suffix \.png"):
        documents(Source(path=str(path)))


def test_archives_in_a_folder_are_read_when_they_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    write(folder / "a.zip", {"b.txt": b"zipped"})
    write(folder / "a.tar.gz", {"b.txt": b"tarred"})
    cache = hr.prepare(folder, tokenizer="byte", out=tmp_path / "cache")
    assert cache.skipped == {"archive(s), read only when named": 2}
    assert documents(Source(path=f"{folder}/*")) == [b"tarred", b"text", b"zipped"]


def test_errors_in_a_member_name_the_member(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", {"x/a.jsonl": b'{"text": "a"}\n{broken\n'})
    with pytest.raises(CorpusError, match=r"a\.zip/x/a\.jsonl:2: not valid JSON"):
        documents(Source(path=str(path)))
