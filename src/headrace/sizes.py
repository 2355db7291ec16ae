"""Sizes in bytes as people write them, in configurations and on the command line."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, TypeAdapter, ValidationError


def parse_size(size: Any) -> int | None:
    """Read a size such as 256MiB, 850MB, 1.5G (GiB) or a number of bytes; None or nothing at all is None.

    >>> parse_size("256MiB"), parse_size("")
    (268435456, None)
    """
    if size is None or size == "":
        return None
    text = f"{size.strip()}iB" if isinstance(size, str) and size.strip()[-1:].lower() in "kmgt" else size
    try:
        parsed = int(_SIZE.validate_python(text))
    except (ValidationError, OverflowError):
        parsed = -1
    if not 0 <= parsed < 1 << 63:
        raise ValueError(f"{size!r} is not a size; write it like 256MiB, 850MB or 2GiB")
    return parsed


_SIZE = TypeAdapter(ByteSize)
Size = Annotated[int | None, BeforeValidator(parse_size)]
"""A number of bytes in a configuration, written as people write sizes; None: not given."""
