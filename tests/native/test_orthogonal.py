"""Native orthogonalisation against PyTorch's products, in every instruction set, on shapes that are awkward for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headrace.native.library import MASK, available_instructions, why_missing
from headrace.training.optimizers.newton_schulz import orthogonalise

pytestmark = pytest.mark.skipif(bool(why_missing()), reason="the native library was not built")

SHAPES = [
    (1, 1),
    (1, 5),
    (7, 1),
    (3, 3),
    (33, 65),
    (65, 33),
    (50, 65),
    (65, 50),
    (96, 96),
    (130, 37),
    (64, 700),
    (20, 701),
    (701, 20),
    (301, 515),
]


def matrices(number: int, rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    return torch.randn(number, rows, columns, generator=generator)


@pytest.mark.parametrize("instructions", available_instructions())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_near_to_exact_products_as_pytorch_is(
    shape: tuple[int, int], instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASK, instructions)
    given = matrices(3, *shape)
    exact = orthogonalise(given)
    rounded = given.bfloat16()
    by_pytorch = float((orthogonalise(rounded) - exact).norm())
    native = float((orthogonalise(rounded.clone(), native_threads=1) - exact).norm())
    assert native <= 1.2 * by_pytorch + 0.02 * float(exact.norm())


@pytest.mark.parametrize("instructions", available_instructions())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_float32_it_computes_what_pytorch_does(
    shape: tuple[int, int], instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASK, instructions)
    given = matrices(3, *shape)
    expected = orthogonalise(given)
    native = orthogonalise(given.clone(), native_threads=1)
    assert float((native - expected).norm()) <= 1e-3 * float(expected.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("number", [2, 5])
def test_any_number_of_threads_computes_the_same_bits(number: int, dtype: torch.dtype) -> None:
    given = matrices(number, 48, 80).to(dtype)
    alone = orthogonalise(given.clone(), native_threads=1)
    assert torch.equal(orthogonalise(given.clone(), native_threads=2), alone)


def test_fewer_matrices_than_threads_are_left_to_pytorch() -> None:
    given = matrices(1, 48, 80).bfloat16()
    untouched = given.clone()
    assert torch.equal(orthogonalise(given, native_threads=2), orthogonalise(untouched))
    assert torch.equal(given, untouched)
