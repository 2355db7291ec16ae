"""Addresses of remote files: which paths are some, what of them may be shown, and where a store ends and a key begins.

An address may carry a secret: a password before its host or, on the web, a signature in its query. So it has a form to
be shown without either, which is what sources, manifests, reports and errors hold. The address as it was given is
remembered in this process and, by an environment variable, in those that it starts; it is never
written to a cache or a run. Where there are too many for a variable, they are in a temporary file that only this user
can read and that is removed when this process ends; the variable then has its name.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import tempfile
import threading
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

WEB_SCHEMES = ("http", "https")
BUCKET_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
GIVEN_VARIABLE = "HEADRACE_GIVEN_ADDRESSES"
VARIABLE_BYTES = 32 << 10
"""The most that the variable holds itself: systems allow about 128 KiB, for all that a process is started with."""
_IN_FILE = "file:"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_WEB_ADDRESS = re.compile(r"(https?://)(?:[^/?#@\s]*@)?([^?#\s\"']*)[?#]?[^\s\"',}\]]*", re.IGNORECASE)
_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?#@:\s]*):[^/\s]*@")
_COLON_SCHEMES = ("github", "git")  # what stands between : and @ there is a repository or a revision
_UNQUOTED = "/:@!$&'()*+,;=~"  # what may stand in the path of a web address as it is


@dataclass(frozen=True)
class Address:
    """The address of a file, a folder or a pattern, in its two parts."""

    store: str
    """What a connection is made for: scheme and bucket, or scheme and host."""
    key: str
    """The path within it."""

    @property
    def scheme(self) -> str:
        return scheme_of(self.store)


def is_remote(path: str) -> bool:
    """Check whether a path is the address of something that is not on this disk.

    >>> is_remote("s3://bucket/corpus/*.txt"), is_remote("corpus/*.txt"), is_remote("C:/corpus")
    (True, False, False)
    """
    return _ADDRESS.match(path) is not None


def scheme_of(address: str) -> str:
    """Return the scheme of an address in lower case."""
    return address.partition("://")[0].lower()


def shown(path: str) -> str:
    """Return a path as it may be shown and stored: without password; a web address also without query and fragment.

    >>> shown("https://me:secret@host/a%20b.txt?X-Amz-Signature=secret"), shown("sftp://me:secret@host/a.txt")
    ('https://host/a b.txt', 'sftp://me@host/a.txt')
    """
    if not is_remote(path):
        return path
    if scheme_of(path) not in WEB_SCHEMES:
        bare = _PASSWORD.sub(_without_password, path)
        if bare != path:  # for all files of this user there, not only for those that are named
            _given.put(_divide(bare)[0], _divide(path)[0])
        return bare
    parts = urlsplit(path)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme.lower(), host, "", "", "")) + unquote(parts.path, errors="surrogateescape")
    if path not in (bare, web_address(bare)):
        _given.put(bare, urlunsplit((parts.scheme.lower(), parts.netloc, parts.path, parts.query, "")))
    return bare


def without_secrets(text: str) -> str:
    """Return text with the addresses in it as they may be shown.

    >>> without_secrets("data.sources=[https://host/a.txt?signature=secret, sftp://me:secret@host]")
    'data.sources=[https://host/a.txt, sftp://me@host]'
    """
    return _PASSWORD.sub(_without_password, _WEB_ADDRESS.sub(r"\1\2", text))


def given(address: str) -> str:
    """Return an address as it was given, with all that a request needs; only ever used to make requests."""
    if scheme_of(address) in WEB_SCHEMES:
        return _given.get(address) or web_address(address)
    place, path = _divide(address)
    return (_given.get(place) or place) + path


def web_address(bare: str) -> str:
    """Return a shown web address with the characters quoted that must be."""
    scheme, _, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe=_UNQUOTED, errors='surrogateescape')}"


def split_address(address: str) -> Address:
    """Divide an address into store and key.

    >>> split_address("s3://bucket/folder/a.txt"), split_address("hf://datasets/me/mine/a.txt")
    (Address(store='s3://bucket', key='folder/a.txt'), Address(store='hf://', key='datasets/me/mine/a.txt'))
    """
    scheme, _, rest = address.partition("://")
    scheme = scheme.lower()
    if scheme not in (*WEB_SCHEMES, *BUCKET_SCHEMES):
        return Address(f"{scheme}://", rest)
    place, _, key = rest.partition("/")
    return Address(f"{scheme}://{place}", key)


def _divide(address: str) -> tuple[str, str]:
    """Divide an address into scheme, user and host, and the path there."""
    scheme, _, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host}", slash + path


def _without_password(found: re.Match[str]) -> str:
    """Return how an address begins without its password; the name of the user stays, because it says whose files."""
    return found[0] if found[1].lower() in _COLON_SCHEMES else f"{found[1]}://{found[2]}@"


class _Given:
    """The addresses as they were given, by their shown forms; in step with the environment variable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._variable = "{}"
        """What the variable said when `_known` was read from it, or written to it."""
        self._file: tuple[int, str] | None = None
        """This process and its file, if there is one; a forked process writes none that is its parent's."""

    def get(self, bare: str) -> str | None:
        """Return what an address was given as; None if it was as it is shown."""
        with self._lock:
            return self._read().get(bare)

    def put(self, bare: str, address: str) -> None:
        """Remember what an address was given as, also for processes that this one starts."""
        with self._lock:
            known = self._read()
            if known.get(bare) == address:
                return
            known[bare] = address
            if self._file == (os.getpid(), self._variable.removeprefix(_IN_FILE)):
                _write_lines(self._file[1], {bare: address})
                return
            text = json.dumps(known)
            self._variable = text if len(text) <= VARIABLE_BYTES else self._move_to_file()
            os.environ[GIVEN_VARIABLE] = self._variable

    def _read(self) -> dict[str, str]:
        variable = os.environ.get(GIVEN_VARIABLE, "{}")
        if variable != self._variable:
            self._known = _parse(variable)
            self._variable = variable
        return self._known

    def _move_to_file(self) -> str:
        handle, path = tempfile.mkstemp(prefix="headrace-addresses-")  # for this user's eyes only
        os.close(handle)
        self._file = (os.getpid(), path)
        atexit.register(_remove, *self._file)
        _write_lines(path, self._known)
        return f"{_IN_FILE}{path}"

    def begin_anew(self) -> None:
        """Replace the lock in a forked process: it may be held in the parent."""
        self._lock = threading.Lock()


def _parse(variable: str) -> dict[str, str]:
    if not variable.startswith(_IN_FILE):
        return dict(json.loads(variable))
    try:
        with open(variable.removeprefix(_IN_FILE), encoding="utf-8") as file:
            return dict(json.loads(line) for line in file)
    except FileNotFoundError:  # the process that was given the addresses has ended: requests without them are refused
        return {}


def _write_lines(path: str, known: dict[str, str]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(pair)}\n" for pair in known.items())


def _remove(process: int, path: str) -> None:
    if process == os.getpid():
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


_given = _Given()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_given.begin_anew)
