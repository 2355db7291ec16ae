"""Child processes: started, asked in lines of JSON, and never left behind, whichever side ends first.

A child's standard input is a pipe from its parent. It carries the questions, and it ends when the parent does, however
that ends: so a child needs no other sign that it has been orphaned.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from headrace.errors import ChildError, HeadraceError

POLL_S = 1.0
LAST_ANSWER_S = 1.0
"""How long an answer is waited for that a child may have written just before it ended."""


class Child:
    """A process that works for this one.

    It leads a session of its own, so that everything it has started is ended with it. `is_asked`: it answers questions
    (`answer_questions`), and its standard error is kept for its last words; else both streams are the parent's.

    >>> import sys
    >>> code = "from headrace.machine import children; children.answer_questions(lambda question: 2 * question)"
    >>> with Child([sys.executable, "-c", code]) as child:
    ...     child.ask(21)
    42
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | str | None = None,
        is_asked: bool = True,
        own_session: bool = True,
    ) -> None:
        self._own_session = own_session
        self._errors: IO[bytes] | None = tempfile.TemporaryFile() if is_asked else None  # noqa: SIM115 (closed by end)
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if is_asked else None,
            stderr=self._errors,
            start_new_session=own_session,
        )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._next: bytes | None = None
        """An answer that has been seen and not been returned."""
        self._reader = threading.Thread(target=self._read, name="headrace-child", daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, if it still runs. Windows has no SIGKILL to send."""
        if self.exit_code is None:
            self._process.kill()

    def tell(self, question: Any) -> None:
        """Send a question. One that a dead child does not get is noticed when its answer is missing."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, question: Any) -> Any:
        """Send a question and wait for its answer."""
        self.tell(question)
        return self.answer()

    def has_answer(self, wait_s: float) -> bool:
        """Wait until there is an answer, or there never will be: the child has ended."""
        return self._is_answered(wait_s) or self.exit_code is not None

    def answer(self) -> Any:
        """Return the next answer. Raises ChildError with what the child failed at or died of."""
        while not self.has_answer(POLL_S):
            pass
        # The pipe of a dead child need not end: a process that it forked may hold it open.
        if not self._is_answered(LAST_ANSWER_S) or not self._next:
            raise ChildError(self._last_words())
        line, self._next = self._next, None
        reply = json.loads(line)
        if "error" in reply:
            raise ChildError(reply["error"])
        return reply["answer"]

    def end(self) -> None:
        """Kill the child and everything that it has started, and wait until it is gone."""
        with suppress(ProcessLookupError, PermissionError):  # gone already; on a Mac, gone and not waited for
            if self._own_session and hasattr(os, "killpg"):
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._reader.join(LAST_ANSWER_S)
        # A pipe that others hold open stays open here too, or the thread that reads it would read the next file.
        answers = None if self._reader.is_alive() else self._process.stdout
        for stream in (self._process.stdin, answers, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):  # a question that it did not live to read
                    stream.close()

    def _read(self) -> None:
        """Pass lines on in a thread: Windows cannot wait for a pipe and for a time at once. Ends with an empty one."""
        if self._process.stdout is not None:
            # Unbuffered: Python cannot end while a thread waits in a buffered reader.
            with open(self._process.stdout.fileno(), "rb", buffering=0, closefd=False) as pipe:
                for line in pipe:
                    self._answers.put(line)
        self._answers.put(b"")

    def _is_answered(self, wait_s: float) -> bool:
        if self._next is None:
            with suppress(queue.Empty):
                self._next = self._answers.get(timeout=wait_s)
        return self._next is not None

    def _last_words(self) -> str:
        code = self._process.wait()
        if code < 0:
            hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with exit code {code}")


def answer_questions(
    answer: Callable[[Any], Any], count: int | None = None, on_orphaned: Callable[[], object] | None = None
) -> None:
    """In a child: answer its parent's questions, or only the first `count`, and call `on_orphaned` when it is gone.

    An exception is sent to the parent and raised. Whatever else is printed goes to standard error. An orphan ends
    itself and everything that it has started, unless `on_orphaned` is given.
    """
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    watcher = when_orphaned(on_orphaned or _end_session, questions.put)

    def send(reply: dict[str, Any]) -> None:
        try:
            print(json.dumps(reply), file=pipe, flush=True)
        except BrokenPipeError:  # the parent is gone: ending before the watcher acts would leave what was started
            watcher.join()
            raise

    for _ in itertools.count() if count is None else range(count):
        question = json.loads(questions.get())
        try:
            reply = answer(question)
        except Exception as problem:
            is_known = isinstance(problem, HeadraceError)
            why = str(problem) if is_known else f"{type(problem).__name__}: {problem}"
            send({"error": why})
            raise
        send({"answer": reply})


def when_orphaned(act: Callable[[], object], take: Callable[[bytes], object] = lambda line: None) -> threading.Thread:
    """In a child: call `act` in a thread when the parent is gone, and `take` with each line that it sends before."""

    def watch() -> None:
        # Unbuffered: Python cannot end while a thread waits in a buffered reader.
        with open(0, "rb", buffering=0, closefd=False) as pipe:
            for line in pipe:
                take(line)
        act()

    thread = threading.Thread(target=watch, name="headrace-parent", daemon=True)
    thread.start()
    return thread


def _end_session() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
