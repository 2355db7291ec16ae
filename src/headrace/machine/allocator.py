"""glibc told to keep memory instead of mapping and unmapping it: fresh pages cost a third of an eager step."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_LARGEST = (1 << 31) - 1
_LARGE = 4 << 20


def keep_freed_memory(even_large: bool = True) -> bool:
    """Make malloc reuse buffers of this process. True where it could be done (Linux with glibc).

    Without `even_large`, buffers above 4 MiB are given back and mapped anew: their holes are what fragments memory,
    so this takes less of it, and a little more time.
    """
    if sys.platform != "linux":
        return False
    options = {_M_TRIM_THRESHOLD: _LARGEST, _M_TOP_PAD: 64 << 20}
    options |= {_M_MMAP_MAX: 0} if even_large else {_M_MMAP_THRESHOLD: _LARGE, _M_TOP_PAD: 1 << 20}
    try:
        libc = ctypes.CDLL("libc.so.6")
        return all(libc.mallopt(option, value) == 1 for option, value in options.items())
    except (OSError, AttributeError):
        return False


def release_freed_memory() -> None:
    """Give back what has been freed so far, after something that needed more than what follows."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
