"""glibc's allocator, set to keep freed memory: mapping fresh pages costs a third of an eager step."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_LARGEST = (1 << 31) - 1
_LARGE = 4 << 20


def keep_freed_memory(even_large: bool = True) -> bool:
    """Make malloc keep what this process frees. Return whether that is possible here (Linux with glibc).

    Without `even_large`, buffers above 4 MiB are given back and mapped anew each time. This takes a little longer, and
    less memory, because the holes that large buffers leave are what fragments it.
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
    """Give freed memory back to the system, after work that needed more than what follows."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
