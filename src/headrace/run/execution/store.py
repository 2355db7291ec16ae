"""Small values in the user's cache, one checked file each: written whole, and ignored where they are damaged."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from headrace.errors import CacheError
from headrace.files import canonical_json, digest, read_checked_json, user_cache, write_checked_json

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Remembered(Generic[Kind]):
    """A value that is remembered under all that it depends on; another value of any of these is another file."""

    kind: type[Kind]
    folder: str
    """Folder in the user's cache."""
    depends_on: dict[str, Any]

    def read(self) -> Kind | None:
        """Return the value; None where there is none, or none that is whole and of this version."""
        try:
            return TypeAdapter(self.kind).validate_python(read_checked_json(self._path))
        except (OSError, CacheError, ValidationError):
            return None

    def write(self, value: Kind) -> None:
        """Keep a value; a cache that cannot be written costs a measurement each time, and nothing else."""
        with suppress(OSError, CacheError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_checked_json(self._path, TypeAdapter(self.kind).dump_python(value, mode="json"))

    def forget(self) -> None:
        """Remove the value, so that the next run measures."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return user_cache() / self.folder / f"{digest(canonical_json(self.depends_on))[:16]}.json"
