from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headrace.native.library import why_missing
from headrace.training.optimizers.newton_schulz import (
    SQUARE,
    WIDE,
    Polynomial,
    _add_to_diagonal,
    _begin,
    _finish_gram,
    _multiply,
    orthogonalisation_flops,
    orthogonalise,
)

SHAPES = [(64, 64), (64, 160), (160, 64), (65, 33)]
DTYPES = [torch.float32, torch.bfloat16]
WAYS = [pytest.param(dtype, 0, id=str(dtype)) for dtype in DTYPES] + [
    pytest.param(
        dtype,
        1,
        id=f"native-{dtype}",
        marks=pytest.mark.skipif(bool(why_missing()), reason="the native library was not built"),
    )
    for dtype in DTYPES
]
"""Number formats, and the threads of the native library."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.16}
"""Norm of what an orthogonalised matrix should not have, as a share of the norm of an orthogonal matrix."""
SPECTRA = {
    "equal": torch.ones(1000),
    "narrow": torch.logspace(0, -2, 33),
    "wide": torch.logspace(0, -5, 33),
    "one large": torch.tensor([1.0] + 32 * [0.02]),
    "one only": torch.tensor([1.0] + 32 * [0.0]),
    "few large": torch.tensor(4 * [1.0] + 29 * [1e-3]),
}


def matrix(rows: int, columns: int, spectrum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix with these singular values, as its left vectors, values and right vectors."""
    generator = torch.Generator().manual_seed(rows + columns)
    size = min(rows, columns, len(spectrum))
    left, right = (torch.linalg.qr(torch.randn(side, size, generator=generator))[0] for side in (rows, columns))
    return left, spectrum[:size], right


def mapped(values: Tensor, polynomials: tuple[Polynomial, ...]) -> Tensor:
    """The polynomials of all iterations, one after the other."""
    for a, b, c in polynomials:
        values = a * values + b * values**3 + c * values**5
    return values


def errors(orthogonalised: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, float]:
    """Return the singular values along the given vectors, and the norm of the rest as a share of the whole."""
    values = (left.T @ orthogonalised @ right).diagonal()
    rest = orthogonalised - (left * values) @ right.T
    return values, float(rest.norm()) / min(orthogonalised.shape) ** 0.5


@pytest.mark.parametrize(
    ("polynomials", "least", "error", "factor"), [(WIDE, 0.01, 0.29, 76), (SQUARE, 0.003, 0.23, 283)]
)
def test_polynomials_do_what_is_said_of_them(
    polynomials: tuple[Polynomial, ...], least: float, error: float, factor: float
) -> None:
    values = mapped(least ** torch.linspace(0, 1, 1000), polynomials)
    assert float((values - 1).abs().max()) <= error
    assert float(mapped(torch.tensor(1e-5), polynomials)) == pytest.approx(1e-5 * factor, rel=0.01)


@pytest.mark.parametrize(("dtype", "native_threads"), WAYS)
@pytest.mark.parametrize("spectrum", list(SPECTRA))
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_near_one_and_vectors_stay(
    shape: tuple[int, int], spectrum: str, dtype: torch.dtype, native_threads: int
) -> None:
    left, before, right = matrix(*shape, SPECTRA[spectrum])
    result = orthogonalise(((left * before) @ right.T * 1e-3)[None].to(dtype), native_threads)
    assert result.dtype == dtype
    values, rest = errors(result[0].float(), left, right)
    assert rest < TOLERANCE[dtype]
    large = values[before > 0.025]  # the largest value is overestimated by a factor of up to 1.7 here
    assert float(large.min()) > 0.7
    assert float(values.max()) < 1.3


def test_the_gram_form_in_bfloat16_is_wrong() -> None:
    """Rounding the Gram matrix hides singular values below a sixteenth of the largest, and makes up others."""
    left, before, right = matrix(64, 160, torch.logspace(0, -3, 64))
    given = ((left * before) @ right.T)[None]

    def by_gram(matrices: Tensor) -> Tensor:
        x, gram, polynomial = _begin(matrices, WIDE[0])
        first = _add_to_diagonal(polynomial, WIDE[0][0])
        return _multiply(x, _finish_gram(gram.to(matrices.dtype), first, WIDE[1:]))

    assert errors(by_gram(given)[0], left, right)[1] < 1e-3
    assert errors(orthogonalise(given.bfloat16())[0].float(), left, right)[1] < 0.05
    assert errors(by_gram(given.bfloat16())[0].float(), left, right)[1] > 0.2


@pytest.mark.parametrize(("dtype", "native_threads"), WAYS)
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e-12, 1e8])
def test_matrices_of_any_size_give_finite_updates(size: float, dtype: torch.dtype, native_threads: int) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        result = orthogonalise((size * torch.randn(2, *shape)).to(dtype), native_threads)
        assert result.isfinite().all()
        assert float(torch.linalg.matrix_norm(result.float(), 2).max()) < 1.35
        assert result.any() or size < 1e-37


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_counted_flops_are_those_of_pytorch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    with FlopCounterMode(display=False) as counter:
        orthogonalise(torch.randn(1, *shape, dtype=dtype))
    assert counter.get_total_flops() == orthogonalisation_flops(*shape, dtype)
