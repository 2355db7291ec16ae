"""The engine: one thread that computes the steps of all requests in turn, and places that bound how many there are.

Each request is advanced by one token at a time, in the order in which requests ask for it, so a short one is not kept
waiting by a long one. A request computes as it would alone: its text does not depend on what else is being served.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

from headrace.serve.api import MOST_CHOICES, CompletionRequest
from headrace.serve.completing import Delta, Model, complete, encode_prompts

MOST_ROWS = 2 * MOST_CHOICES
"""Most texts that are in the making at once, each with a key-value cache; further requests wait."""

Result = TypeVar("Result")
HasLeft = Callable[[], bool]


class AbandonedError(Exception):
    """A request is not computed any further: its client has left, or the server is ending."""


class Engine:
    """A model, and the thread that computes with it."""

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._places = Places(MOST_ROWS)
        self.num_steps = 0
        """Steps computed so far."""

    @property
    def context(self) -> int:
        """The number of tokens that the network reads at most."""
        return self.model[0].config.context

    def encode(self, request: CompletionRequest) -> list[list[int]]:
        """Return the tokens of a request's prompts."""
        return self._run(lambda: encode_prompts(self.model, request))

    def complete(
        self, prompts: list[list[int]], request: CompletionRequest, has_left: HasLeft
    ) -> Generator[list[Delta]]:
        """Yield the steps of a request, computed in turn with those of others; stop when its client has left."""
        with self._places.taken(request.n, has_left), closing(complete(self.model, prompts, request)) as steps:
            while (deltas := self._run(lambda: self._step(steps))) is not None:
                if has_left():
                    raise AbandonedError
                yield deltas

    def close(self) -> None:
        """End the thread after the step that it is computing; requests that are not finished fail."""
        self._thread.shutdown(cancel_futures=True)

    def _step(self, steps: Iterator[list[Delta]]) -> list[Delta] | None:
        self.num_steps += 1
        return next(steps, None)

    def _run(self, work: Callable[[], Result]) -> Result:
        try:
            future = self._thread.submit(work)
        except RuntimeError:  # closed
            raise AbandonedError from None
        try:
            return future.result()
        except CancelledError:
            raise AbandonedError from None


class Places:
    """A number of places, taken several at a time, in the order of asking."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[object] = deque()
        self._change = threading.Condition()

    @contextmanager
    def taken(self, count: int, has_left: HasLeft) -> Iterator[None]:
        """Hold some places, once there are as many; whoever has left while waiting gets none."""
        self._take(count, has_left)
        try:
            yield
        finally:
            with self._change:
                self._free += count
                self._change.notify_all()

    def _take(self, count: int, has_left: HasLeft) -> None:
        ticket = object()
        with self._change:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or self._free < count:
                    self._change.wait(timeout=0.2)
                    if has_left():
                        raise AbandonedError
                self._free -= count
            finally:
                self._waiting.remove(ticket)
                self._change.notify_all()
