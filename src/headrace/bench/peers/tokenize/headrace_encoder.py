"""headrace: its encoder in one thread per core, as `prepare` runs it."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headrace.data.tokens.encoders import make_encoder


def make(tokenizer_json: str) -> Callable[[list[str]], npt.NDArray[np.uint32]]:
    encoders = [make_encoder(tokenizer_json, "special") for _ in range(os.cpu_count() or 1)]
    pool = ThreadPoolExecutor(len(encoders))

    def encode(pieces: list[str]) -> npt.NDArray[np.uint32]:
        raw = [piece.encode() for piece in pieces]
        share = -(-len(raw) // len(encoders))
        parts = [raw[start : start + share] for start in range(0, len(raw), share)]
        return np.concatenate(list(pool.map(lambda job: job[0].encode(job[1])[0], zip(encoders, parts, strict=False))))

    return encode
