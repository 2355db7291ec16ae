"""Windows of sequence_length + 1 tokens over a token file, which peers read by index or write in their own format."""

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt


class Windows:
    """A dataset as users of torch or Grain write it: one window by index, from a memory map."""

    def __init__(self, path: str, sequence_length: int) -> None:
        self._path, self._sequence_length = path, sequence_length
        self._tokens: npt.NDArray[np.uint16] | None = None
        self._count = (len(np.memmap(path, np.uint16, "r")) - 1) // sequence_length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        if self._tokens is None:  # mapped in the worker process, not pickled
            self._tokens = np.memmap(self._path, np.uint16, "r")
        start = index.__index__() * self._sequence_length
        return np.array(self._tokens[start : start + self._sequence_length + 1])


def all_windows(path: str, sequence_length: int) -> npt.NDArray[np.uint16]:
    """Return every window in corpus order, as a view of the mapped file."""
    return np.lib.stride_tricks.sliding_window_view(np.memmap(path, np.uint16, "r"), sequence_length + 1)[
        ::sequence_length
    ]
