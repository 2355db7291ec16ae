"""Addresses of remote files: which paths are some, what of them may be shown, and where a store ends and a key begins.

An address may carry a secret: a password before its host or, on the web, a signature in its query. So it has a form to
be shown without either, which is what sources, manifests, reports and errors hold. The address as it was given is
remembered in this process and, by an environment variable, in those that it starts; it is never written to a file.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

WEB_SCHEMES = ("http", "https")
BUCKET_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
GIVEN_VARIABLE = "HEADRACE_GIVEN_ADDRESSES"
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
            _remember(_divide(bare)[0], _divide(path)[0])
        return bare
    parts = urlsplit(path)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme.lower(), host, "", "", "")) + unquote(parts.path, errors="surrogateescape")
    if path not in (bare, web_address(bare)):
        _remember(bare, urlunsplit((parts.scheme.lower(), parts.netloc, parts.path, parts.query, "")))
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
        return _remembered().get(address) or web_address(address)
    place, path = _divide(address)
    return _remembered().get(place, place) + path


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


def _remembered() -> dict[str, str]:
    return dict(json.loads(os.environ.get(GIVEN_VARIABLE, "{}")))


def _remember(bare: str, address: str) -> None:
    """Remember what an address was given as, also for processes that this one starts."""
    known = _remembered()
    if known.get(bare) != address:
        os.environ[GIVEN_VARIABLE] = json.dumps({**known, bare: address})
