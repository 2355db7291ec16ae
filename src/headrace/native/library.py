"""The shared library of native steps and updates: found beside this file, and checked to be of this version."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

ABI = 6
"""Number of the interface between this file and src/entry.cpp; a library of another number is not used."""
MASK = "HEADRACE_NATIVE_ISA"
"""Environment variable that names an instruction set to use in place of the best one, such as avx512 or baseline."""
PATH = Path(__file__).with_name("libheadrace.so")


class Shape(ctypes.Structure):
    """The shape of a network and its sequences, as src/network.h has it."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in "kind num_layers width num_heads feed_forward vocabulary context length is_tied is_bfloat16".split()
    ]


class Rows(ctypes.Structure):
    """Sequences of a batch: pointers to arrays of 32 bits, but of 8 for the mask. All but the first two may be None."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("inputs", "targets", "documents", "mask", "keys", "offsets")),
        ("dropout", ctypes.c_double),
        ("num_sequences", ctypes.c_long),
    ]


class Matrices(ctypes.Structure):
    """Matrices that are to be orthogonalised, as src/network.h has it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_long),
        ("columns", ctypes.c_long),
        ("polynomials", ctypes.c_void_p),
        ("num_polynomials", ctypes.c_long),
        ("is_bfloat16", ctypes.c_int32),
        ("is_by_gram", ctypes.c_int32),
    ]


@cache
def find_library() -> ctypes.CDLL | None:
    """Return the library, or None where it was not built; `why_missing` says why."""
    return None if why_missing() else _declare(ctypes.CDLL(str(PATH)))


@cache
def why_missing() -> str:
    """Return why there is no library to use, in words for a person; empty if there is one."""
    if not PATH.exists():
        return "it was not built: no C++ compiler when headrace was installed"
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return f"it does not load here: {error}"
    if library.headrace_abi() != ABI:  # before its other functions are looked for: another version has others
        return "it was built for another version of headrace: install headrace again"
    return ""


def instructions() -> str:
    """Return the name of the instruction set that the library uses on this machine; empty where there is no library."""
    library = find_library()
    return "" if library is None else library.headrace_instructions(wanted_instructions()).decode()


def multiplies_bfloat16() -> bool:
    """Return whether the instruction set that the library uses has products of bfloat16, which are usually faster."""
    return instructions() in ("amx", "avx512bf16")


def available_instructions() -> list[str]:
    """List the instruction sets of the library that this machine can run, the best first."""
    library = find_library()
    known = ("amx", "avx512bf16", "avx512", "avx2", "baseline")
    return [name for name in known if library and library.headrace_instructions(name.encode()).decode() == name]


def wanted_instructions() -> bytes | None:
    """Return the instruction set that the environment asks for."""
    return os.environ.get(MASK, "").encode() or None


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the types of all functions."""
    pointer, integer = ctypes.c_void_p, ctypes.c_long
    shape, rows = ctypes.POINTER(Shape), ctypes.POINTER(Rows)
    for name, result, arguments in (
        ("abi", ctypes.c_int, []),
        ("instructions", ctypes.c_char_p, [ctypes.c_char_p]),
        ("plan_bytes", integer, [shape, integer, integer, integer]),
        ("plan", pointer, [shape, pointer, integer, integer, integer, ctypes.c_char_p]),
        ("free", None, [pointer]),
        ("orthogonalise", ctypes.c_int, [ctypes.POINTER(Matrices), integer, integer, ctypes.c_char_p]),
        ("loss", ctypes.c_double, [pointer, pointer, rows, ctypes.c_float]),
        ("step", ctypes.c_double, [pointer, pointer, pointer, rows, ctypes.c_float, ctypes.c_int, pointer]),
    ):
        function = getattr(library, f"headrace_{name}")
        function.restype, function.argtypes = result, arguments
    return library
