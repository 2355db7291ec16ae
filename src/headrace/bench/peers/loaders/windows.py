"""Windows of length + 1 tokens over a file of them: what peers read by index, or write in a format of their own."""

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt


class Windows:
    """What a user of torch or Grain writes for tokens in a file: one window by index, from a memory map."""

    def __init__(self, path: str, length: int) -> None:
        self._path, self._length = path, length
        self._tokens: npt.NDArray[np.uint16] | None = None
        self._count = (len(np.memmap(path, np.uint16, "r")) - 1) // length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        if self._tokens is None:  # mapped in the worker process, not pickled
            self._tokens = np.memmap(self._path, np.uint16, "r")
        start = index.__index__() * self._length
        return np.array(self._tokens[start : start + self._length + 1])


def all_windows(path: str, length: int) -> npt.NDArray[np.uint16]:
    """Every window in corpus order, as a view of the mapped file."""
    return np.lib.stride_tricks.sliding_window_view(np.memmap(path, np.uint16, "r"), length + 1)[::length]
