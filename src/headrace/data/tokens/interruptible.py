"""Work that does not listen to signals, waited for in a way that does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run_interruptibly(work: Callable[[], Result]) -> Result:
    """Run something that may stay in native code for long. A signal's exception is raised here at once.

    The work itself cannot be ended: it goes on in its thread, unheard, until it is done or the process ends.

    >>> run_interruptibly(lambda: 6 * 7)
    42
    """
    done = threading.Event()
    results: list[Result] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:
            problems.append(problem)
        finally:
            done.set()

    threading.Thread(target=run, name="headrace-interruptible", daemon=True).start()
    done.wait()
    if problems:
        raise problems[0]
    return results[0]
