"""Documents of Debian's documentation packages, which are downloaded and extracted, never installed.

`apt-get download` takes them from wherever this machine's apt is set up to; nothing here names a place. The version of
each package is kept beside its text, because another version is another corpus.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.data.corpus.formats.html import text_of_page
from headrace.errors import CorpusError

Document = tuple[str, str]
PATIENCE_S = 600
_GENERATED = re.compile(r"/(genindex|py-modindex|search|index-all)[^/]*\.html$")


def python_doc(_texts: Path, downloads: Path) -> Iterator[Document]:
    """Yield the pages of Python's documentation."""
    yield from pages(real_package("python3-doc"), downloads)


def linux_doc(_texts: Path, downloads: Path) -> Iterator[Document]:
    """Yield the pages of the kernel's documentation, without translations."""
    yield from pages(real_package("linux-doc"), downloads, leave_out=r"/translations/")


def books(_texts: Path, downloads: Path) -> Iterator[Document]:
    """Yield the pages of Debian's books in English."""
    yield from pages("debian-handbook", downloads, only=r"/en-US/")
    yield from pages("debian-reference-en", downloads, only=r"\.en\.html$")
    yield from pages("installation-guide-amd64", downloads, only=r"/en/")
    yield from pages("debian-faq", downloads, only=r"\.en\.html$")
    yield from pages("maint-guide", downloads, only=r"\.en\.html$")
    yield from pages("debian-policy", downloads)
    yield from pages("developers-reference", downloads, leave_out=r"/developers-reference\.html$")


def rfc(_texts: Path, downloads: Path) -> Iterator[Document]:
    """Yield the RFCs, which are plain text."""
    for package in dependencies("doc-rfc") or ["doc-rfc"]:
        for name, file in files(package, downloads):
            if re.search(r"/rfc\d+\.txt(\.gz)?$", name):
                raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
                yield name.removesuffix(".gz"), raw.decode("utf-8", "replace")


def pages(package: str, downloads: Path, only: str = "", leave_out: str = "(?!)") -> Iterator[Document]:
    """Yield the text of each HTML page of a package whose name matches `only`, as headrace reads HTML."""
    for name, file in files(package, downloads):
        is_wanted = name.endswith(".html") and re.search(only, name) and not re.search(leave_out, name)
        if is_wanted and not _GENERATED.search(name):
            yield name, text_of_page(file.read_text(encoding="utf-8", errors="replace"))


def files(package: str, downloads: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a package with their names in it, in order; links are left out."""
    root = extract(package, downloads)
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink():
            yield f"{package}/{file.relative_to(root)}", file


def extract(package: str, downloads: Path) -> Path:
    """Download and extract a package, unless that is done; return the folder of its files."""
    place = downloads / package
    if place.is_dir():
        return place
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix="downloading-") as name:
        folder = Path(name)
        _run(["apt-get", "--quiet", "download", package], folder)
        archive = next(folder.glob("*.deb"), None)
        if archive is None:
            raise CorpusError(f"{package}: apt-get downloaded nothing.")
        _run(["dpkg-deb", "-x", str(archive), str(folder / "files")], folder)
        (folder / "files").rename(place)
        (downloads / f"{package}.version").write_text(archive.name + "\n")
    return place


def real_package(name: str) -> str:
    """Return the package of this version that a name such as python3-doc stands for, or the name itself."""
    found = [package for package in dependencies(name) if package.endswith("-doc") or "-doc-" in package]
    return found[0] if found else name


def dependencies(name: str) -> list[str]:
    """Return the packages that a package depends on; none where apt does not know it."""
    if shutil.which("apt-cache") is None:
        return []
    done = subprocess.run(["apt-cache", "depends", name], capture_output=True, text=True, timeout=PATIENCE_S)
    return re.findall(r"^\s*Depends: ([^<\s]+)", done.stdout, re.MULTILINE)


def _run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; what it complains of becomes the error."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        raise CorpusError(
            f"{command[0]}: not on this machine. Make this corpus on a Debian or Ubuntu, and copy its folder."
        ) from None
    except subprocess.TimeoutExpired:
        raise CorpusError(f"{' '.join(command)}: gave no result in {PATIENCE_S} s.") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        why = lines[0].removeprefix("E: ") if lines else f"exit code {done.returncode}"
        raise CorpusError(f"{' '.join(command[:3])}: {why}. Is apt set up here, and `apt-get update` done?")
