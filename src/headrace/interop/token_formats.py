"""Formats of token files of other projects: place and type of the tokens, and the ends of documents.

    nanoGPT    NAME.bin                 raw uint16
    Megatron   NAME.bin + NAME.idx      uint16, int16 or int32 in the order of the index
    datatrove  NAME.ds + NAME.ds.index  raw uint16 or uint32; the index has document ends as uint64
    OLMo       NAME.npy                 raw uint16 or uint32; files with a real .npy header are read as well

What cannot be mapped as it is (other types, gaps, masks) is an error that says so.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import TokenFileError

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
MEGATRON_HEADER = struct.Struct("<9sQBQQ")
LLM_C_MAGICS = (20240520, 20240801)


@dataclass(frozen=True)
class TokenFile:
    """The tokens of a file: their place, type and number."""

    path: Path
    dtype: np.dtype[Any]
    """uint16 or uint32, little-endian; a signed type of the same width is read as this."""
    offset: int
    num_tokens: int
    ends: npt.NDArray[np.int64] | None
    """The ends of documents; None if each end-of-text token is one."""
    identity: tuple[int, ...]

    def check_unchanged(self) -> None:
        """Raise TokenFileError if the file was written to, replaced or removed."""
        try:
            now = identity(self.path)
        except OSError:
            raise TokenFileError(f"{self.path}: is gone while in use. Put it back, and open it again.") from None
        if now != self.identity:
            raise TokenFileError(
                f"{self.path}: was changed while in use ({self.identity[0]:,} bytes before, {now[0]:,} now; or another"
                " time of change). Open it again; a run must start anew, since its order was that of the old file."
            )


def identity(path: Path) -> tuple[int, ...]:
    """Return size, time and inode of a file, which change whenever it is written to or replaced."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def read_token_file(path: Path, raw_dtype: np.dtype[Any]) -> TokenFile:
    """Recognise a token file by its name and its neighbours; `raw_dtype` is for files that do not record theirs."""
    if path.suffix == ".idx":
        path = path.with_suffix(".bin")
    try:
        if path.suffix == ".bin":
            index = path.with_suffix(".idx")
            return _megatron(path, index) if index.exists() else _nanogpt(path, raw_dtype)
        if path.suffix == ".ds":
            return _datatrove(path, raw_dtype)
        if path.suffix == ".npy":
            return _numpy(path, raw_dtype)
    except OSError as problem:
        raise TokenFileError(f"{problem.filename or path}: cannot be read ({problem.strerror}).") from None
    raise TokenFileError(f"{path}: not a token file by its name; known are .bin (with or without .idx), .ds and .npy.")


def _token_file(
    path: Path, dtype: np.dtype[Any], offset: int = 0, ends: npt.NDArray[np.int64] | None = None
) -> TokenFile:
    if dtype.kind not in "iu" or dtype.itemsize not in (2, 4) or dtype.byteorder == ">":
        raise TokenFileError(
            f"{path}: holds {dtype.name} values{' (big-endian)' if dtype.byteorder == '>' else ''}; only little-endian"
            " integers of 16 or 32 bits can be used without copying. Convert the file to uint16 or uint32."
        )
    known = identity(path)
    nbytes = known[0] - offset
    if nbytes % dtype.itemsize:
        raise TokenFileError(
            f"{path}: {nbytes:,} bytes are no whole number of {dtype.name} tokens: truncated, or of another type."
        )
    num_tokens = nbytes // dtype.itemsize
    if num_tokens == 0:
        raise TokenFileError(f"{path}: holds no tokens.")
    if ends is not None:
        last = int(ends[-1]) if len(ends) else 0
        if last != num_tokens or (np.diff(ends) < 0).any():
            raise TokenFileError(
                f"{path}: its index ends at token {last:,}, but it holds {num_tokens:,}: one of the two is truncated,"
                " or they do not belong together."
            )
        ends = np.unique(ends)  # documents without tokens end where the one before them does
    return TokenFile(path, np.dtype(f"<u{dtype.itemsize}"), offset, num_tokens, ends, known)


def _nanogpt(path: Path, dtype: np.dtype[Any]) -> TokenFile:
    with open(path, "rb") as file:
        start = file.read(4)
    if len(start) == 4 and struct.unpack("<i", start)[0] in LLM_C_MAGICS:
        raise TokenFileError(f"{path}: is a file of llm.c, with a header of 1,024 bytes; nanoGPT's .bin has none.")
    return _token_file(path, dtype)


def _megatron(path: Path, index: Path) -> TokenFile:
    data = index.read_bytes()
    if not data.startswith(MEGATRON_MAGIC) or len(data) < MEGATRON_HEADER.size:
        raise TokenFileError(f"{index}: not an index of Megatron's memory-mapped datasets (MMIDIDX).")
    _, version, code, num_sequences, num_bounds = MEGATRON_HEADER.unpack_from(data)
    if version != 1 or code not in MEGATRON_DTYPES:
        raise TokenFileError(f"{index}: version {version}, type code {code}: not an index that headrace reads.")
    expected = MEGATRON_HEADER.size + 12 * num_sequences + 8 * num_bounds
    if len(data) != expected:
        raise TokenFileError(
            f"{index}: {expected:,} bytes expected, {len(data):,} found: truncated, or of a multimodal dataset."
        )
    dtype = np.dtype(MEGATRON_DTYPES[code])
    lengths = np.frombuffer(data, "<i4", num_sequences, MEGATRON_HEADER.size).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", num_sequences, MEGATRON_HEADER.size + 4 * num_sequences)
    bounds = np.frombuffer(data, "<i8", num_bounds, MEGATRON_HEADER.size + 12 * num_sequences)
    stops = np.concatenate([[0], np.cumsum(lengths)])
    if (pointers != stops[:-1] * dtype.itemsize).any():
        raise TokenFileError(
            f"{index}: its sequences do not lie one after the other in {path.name}, so it cannot be mapped. Write the"
            " dataset again in order."
        )
    if len(bounds) and (bounds.min() < 0 or bounds.max() > num_sequences):
        raise TokenFileError(f"{index}: names documents beyond its {num_sequences:,} sequences: it is damaged.")
    return _token_file(path, dtype, ends=stops[bounds[bounds > 0]])


def _datatrove(path: Path, dtype: np.dtype[Any]) -> TokenFile:
    if Path(f"{path}.loss").exists():
        raise TokenFileError(f"{path}.loss: this file has a loss mask, which headrace does not read.")
    index = Path(f"{path}.index")
    if not index.exists():
        return _token_file(path, dtype)
    raw = index.read_bytes()
    if len(raw) % 8 or not raw:
        raise TokenFileError(f"{index}: {len(raw):,} bytes are not document ends of 8 bytes each: truncated or empty.")
    ends = np.frombuffer(raw, "<u8").astype(np.int64)
    # The index counts tokens, so the size of the file gives the bytes per token.
    width = os.path.getsize(path) / max(int(ends[-1]), 1)
    return _token_file(path, np.dtype(f"<u{int(width)}") if width in (2, 4) else dtype, ends=ends)


def _numpy(path: Path, dtype: np.dtype[Any]) -> TokenFile:
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            return _token_file(path, dtype)
        file.seek(0)
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        except ValueError as problem:
            raise TokenFileError(f"{path}: damaged .npy header ({problem}).") from None
        if len(shape) != 1:
            raise TokenFileError(f"{path}: an array of shape {shape}; tokens must be one long row. Save it flattened.")
        return _token_file(path, dtype, file.tell())
