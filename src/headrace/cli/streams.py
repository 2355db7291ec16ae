"""Standard output and error that never end a command: not when they are closed, full, or know few characters."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from typing import TextIO


class _SteadyFile(io.RawIOBase):
    """The file behind a stream. Once it cannot be written, output is dropped and the reason is kept."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: bytes) -> int:  # type: ignore[override]  # any buffer
        while self.problem is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # whoever shares the terminal made it so
                select.select([], [self._descriptor], [])
            except OSError as problem:
                self.problem = problem
        return len(data)


_files: dict[str, _SteadyFile] = {}


def _show_instead(problem: UnicodeError) -> tuple[str, int]:
    """Show a question mark for a character that a terminal lacks, and a byte of a path that is not text as \\xNN."""
    assert isinstance(problem, UnicodeEncodeError)
    unknown = problem.object[problem.start : problem.end]
    return "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else "?" for c in unknown), problem.end


SHOW_INSTEAD = "headrace-show-instead"
codecs.register_error(SHOW_INSTEAD, _show_instead)


def steady_streams() -> None:
    """Make sys.stdout and sys.stderr such streams; one that somebody has replaced only copes with characters."""
    _occupy_standard_descriptors()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=SHOW_INSTEAD)
            continue
        _files[name] = _SteadyFile(descriptor)
        steady = io.TextIOWrapper(
            io.BufferedWriter(_files[name]),  # type: ignore[type-var]  # its stub asks for more than it uses
            encoding=stream.encoding if stream else "utf-8",
            errors=SHOW_INSTEAD,
            line_buffering=name == "stderr" or _files[name].isatty(),
        )
        setattr(sys, name, steady)


def lost_output() -> OSError | None:
    """Return why results did not reach standard output; None if they did, or if their reader has gone away."""
    if "stdout" not in _files:
        return None
    sys.stdout.flush()
    problem = _files["stdout"].problem
    return None if isinstance(problem, BrokenPipeError) else problem


def _occupy_standard_descriptors() -> None:
    """Put the null device where a standard stream is closed, or the next file that is opened would take its place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError as problem:
            if problem.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
