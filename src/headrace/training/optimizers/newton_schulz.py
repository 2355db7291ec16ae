"""Orthogonalisation by Newton-Schulz iterations (docs/design/muon.md): matrix products and next to nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headrace.native.orthogonal import orthogonalise_in_place

Polynomial = tuple[float, float, float]

# Odd polynomials a x + b x^3 + c x^5, one per iteration: each brings the singular values that the one before it leaves
# as near to 1 as such a polynomial can (Polar Express, Amsel et al., 2025). All but the last are stretched by 1%, so
# that rounding in bfloat16 cannot carry a value out of the range where they converge.
WIDE = ((7.9103, -22.0788, 15.8691), (3.6073, -2.6467, 0.5110), (2.6713, -1.9853, 0.4535))
"""Polynomials for wide and tall matrices: singular values from 0.01 of the largest on end between 0.71 and 1.28;
smaller ones are magnified 76 times."""
SQUARE = ((8.1377, -22.7137, 16.3254), (3.9652, -2.8364, 0.5225), (3.4887, -2.5622, 0.5016), (2.5115, -1.8524, 0.4388))
"""Polynomials for square matrices, which have more small singular values: from 0.003 of the largest on, they end
between 0.77 and 1.21; smaller ones are magnified 283 times."""
NORM_MARGIN = 1.02
"""Factor on the estimate of the largest singular value, for what bfloat16 rounds off it."""
LEAST_WIDE_RATIO = 1.5
"""Long side over short side from which a matrix counts as wide, and iterating on its Gram matrix takes fewer FLOPs."""


def orthogonalise(matrices: Tensor, native_threads: int = 0) -> Tensor:
    """Return nearly the closest orthogonal matrices (n, rows, columns): U V of the singular value decomposition.

    Products are computed in the number format of the matrices. `native_threads`: threads of the native library, which
    may overwrite what is given; 0: PyTorch computes them. The library gives each thread whole matrices, so it is left
    out where there are fewer matrices than threads.
    """
    number, rows, columns = matrices.shape
    is_by_gram = _is_by_gram(rows, columns, matrices.dtype)
    if 0 < native_threads <= number:
        orthogonalise_in_place(matrices, coefficients(rows, columns), is_by_gram, native_threads)
        return matrices
    first, *others = coefficients(rows, columns)
    x, gram, polynomial = _begin(matrices, first)
    if is_by_gram:
        return _multiply(x, _finish_gram(gram, _add_to_diagonal(polynomial, first[0]), others))
    x = _multiply_add(x, polynomial, first[0])
    for a, b, c in others:
        gram = _gram(x)
        x = _multiply_add(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), a)
    return x


def orthogonalisation_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Return the FLOPs of the products in `orthogonalise` for one matrix."""
    short, long = sorted((rows, columns))
    steps = len(coefficients(rows, columns))
    if _is_by_gram(rows, columns, dtype):
        return 2 * 2 * short * short * long + (steps + 3 * (steps - 1)) * 2 * short**3
    return steps * (2 * 2 * short * short * long + 2 * short**3)


def coefficients(rows: int, columns: int) -> tuple[Polynomial, ...]:
    """Return the polynomials for matrices of this shape, one per iteration."""
    return WIDE if _is_wide(rows, columns) else SQUARE


def _is_wide(rows: int, columns: int) -> bool:
    short, long = sorted((rows, columns))
    return long > LEAST_WIDE_RATIO * short


def _is_by_gram(rows: int, columns: int, dtype: torch.dtype) -> bool:
    """Return whether iterations run on the Gram matrix alone: in bfloat16 it would lose the small singular values."""
    return dtype != torch.bfloat16 and _is_wide(rows, columns)


def _begin(matrices: Tensor, first: Polynomial) -> tuple[Tensor, Tensor, Tensor]:
    """Scale matrices to largest singular values just below 1; return them, their Gram matrices G, and b G + c G^2.

    The largest singular value is estimated by the eighth root of the sum of eighth powers, which the norm of G^2 tells,
    and the first iteration needs G^2 anyway. For 512 equal values that is 2.2 times too large; the norm of the matrix,
    which is the usual estimate, is 23 times too large, and takes another iteration to make up for.
    """
    _, b, c = first
    x = matrices * (1 / (_norm(matrices) + 1e-7)).to(matrices.dtype)
    gram = _gram(x)
    square = gram @ gram
    # The limit is the least that a matrix of norm 1 can have: it binds only where there is next to no gradient.
    largest = (NORM_MARGIN * _norm(square) ** 0.25).clamp_min(gram.shape[-1] ** -0.5)
    scale = (1 / largest).to(matrices.dtype)
    x *= scale
    # From here on in float32 throughout: operations on mixed number formats take up to 50 times as long.
    scale = scale.float()
    gram = gram.float() * scale**2
    polynomial = torch.addcmul(b * gram, square.float(), c * scale**4)
    return x, gram, polynomial.to(matrices.dtype)


def _finish_gram(gram: Tensor, polynomial: Tensor, others: Iterable[Polynomial]) -> Tensor:
    """Return the product of the polynomials of all iterations; the first one is given, with its Gram matrix."""
    product = polynomial
    for a, b, c in others:
        gram = polynomial @ gram @ polynomial
        polynomial = _add_to_diagonal(torch.baddbmm(gram, gram, gram, beta=b, alpha=c), a)
        product = product @ polynomial
    return product


def _norm(matrices: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True, dtype=torch.float32)
    return norm


def _add_to_diagonal(matrices: Tensor, number: float) -> Tensor:
    matrices.diagonal(dim1=1, dim2=2).add_(number)
    return matrices


def _is_tall(x: Tensor) -> bool:
    return x.shape[1] > x.shape[2]


def _gram(x: Tensor) -> Tensor:
    """Return the products of rows with rows, or of columns with columns where there are fewer of them."""
    return x.mT @ x if _is_tall(x) else x @ x.mT


def _multiply(x: Tensor, square: Tensor) -> Tensor:
    """Multiply matrices by square ones, on the side where these fit."""
    return x @ square if _is_tall(x) else square @ x


def _multiply_add(x: Tensor, square: Tensor, a: float) -> Tensor:
    """Add the product of matrices and square ones to a times the matrices."""
    return torch.baddbmm(x, x, square, beta=a) if _is_tall(x) else torch.baddbmm(x, square, x, beta=a)
