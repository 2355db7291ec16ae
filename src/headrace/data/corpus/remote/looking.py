"""Files that are looked at one after another, several remote ones at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.data.corpus.remote.fetch import stopping_when
from headrace.data.corpus.sources import SourceFile

LOOKED_AT_ONCE = 16
T = TypeVar("T")


def look_ahead(look: Callable[[SourceFile], T], files: Iterable[SourceFile]) -> Iterator[T]:
    """Yield what `look` returns for each file, in order; several remote files are looked at at once."""
    stopped = threading.Event()

    def look_unless_stopped(file: SourceFile) -> T:
        with stopping_when(stopped.is_set):
            return look(file)

    pool: ThreadPoolExecutor | None = None
    waiting: deque[Future[T]] = deque()
    try:
        for file in files:
            if not file.is_remote:
                while waiting:
                    yield waiting.popleft().result()
                yield look(file)
                continue
            pool = pool or ThreadPoolExecutor(LOOKED_AT_ONCE, thread_name_prefix="headrace-look")
            waiting.append(pool.submit(look_unless_stopped, file))
            if len(waiting) >= 2 * LOOKED_AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        stopped.set()
        if pool is not None:
            pool.shutdown(cancel_futures=True)
