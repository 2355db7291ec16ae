"""glibc told to keep memory instead of mapping and unmapping it: fresh pages cost a third of an eager step."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_LARGEST = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Make malloc reuse large buffers of this process. True where it could be done (Linux with glibc)."""
    if sys.platform != "linux":
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return all(
            libc.mallopt(option, value) == 1
            for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _LARGEST), (_M_TOP_PAD, 64 << 20))
        )
    except (OSError, AttributeError):
        return False
