"""Standard output and error that never end a command, even if they are closed, full, or lack a character."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from typing import TextIO


class _SteadyFile(io.RawIOBase):
    """The file behind a stream. After a write has failed, the reason is kept and all further output is dropped."""

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
            except BlockingIOError:  # a program that shares the terminal has made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError as problem:
                self.problem = problem
        return len(data)


_files: dict[str, _SteadyFile] = {}


def _show_instead(problem: UnicodeError) -> tuple[str, int]:
    """Replace a character that the terminal lacks by a question mark, and a byte that is not text by \\xNN."""
    assert isinstance(problem, UnicodeEncodeError)
    unknown = problem.object[problem.start : problem.end]
    return "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else "?" for c in unknown), problem.end


SHOW_INSTEAD = "headrace-show-instead"
codecs.register_error(SHOW_INSTEAD, _show_instead)


def steady_streams() -> None:
    """Replace sys.stdout and sys.stderr by such streams; of a replaced one only the encoding is made safe."""
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
    """Return why results did not reach standard output; None if they did, or if the reader closed the pipe."""
    if "stdout" not in _files:
        return None
    sys.stdout.flush()
    problem = _files["stdout"].problem
    return None if isinstance(problem, BrokenPipeError) else problem


def _occupy_standard_descriptors() -> None:
    """Open the null device for each closed standard stream; the next file to be opened would take its place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError as problem:
            if problem.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
