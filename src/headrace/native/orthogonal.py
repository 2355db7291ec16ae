"""Orthogonalisation of matrices by the native library, each by one thread from beginning to end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.native.library import Matrices, find_library, wanted_instructions


def orthogonalise_in_place(
    matrices: Tensor, polynomials: Sequence[Sequence[float]], is_by_gram: bool, num_threads: int
) -> None:
    """Replace matrices (n, rows, columns) in bfloat16 or float32 by nearly the closest orthogonal ones.

    `polynomials`: the coefficients of each iteration (training/optimizers/newton_schulz.py). `is_by_gram`: iterate on
    the Gram matrices alone; in float32 only.
    """
    is_bfloat16 = matrices.dtype == torch.bfloat16
    assert matrices.is_contiguous() and matrices.device.type == "cpu"
    assert is_bfloat16 or matrices.dtype == torch.float32
    assert not (is_bfloat16 and is_by_gram)
    library = find_library()
    assert library is not None
    coefficients = np.array(polynomials, np.float32)
    number, rows, columns = matrices.shape
    given = Matrices(
        matrices.data_ptr(), rows, columns, coefficients.ctypes.data, len(coefficients), is_bfloat16, is_by_gram
    )
    if not library.headrace_orthogonalise(given, number, num_threads, wanted_instructions()):
        raise MemoryError("not enough memory for the native update: choose training.engine=torch")
