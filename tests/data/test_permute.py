from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.permute import make_key, permute


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_is_a_permutation(size: int, seed: int) -> None:
    result = permute(np.arange(size), size, make_key("test", seed))
    assert np.array_equal(np.sort(result), np.arange(size))


def test_an_element_does_not_depend_on_its_company() -> None:
    size, key = 10**9, make_key("test", 7)
    alone = [int(permute(np.array([i]), size, key)[0]) for i in range(50)]
    assert permute(np.arange(50), size, key).tolist() == alone


def test_values_are_fixed_forever() -> None:
    """Order must not change between versions: resuming an old run would give other batches."""
    assert permute(np.arange(12), 12, make_key("rows", 0, 0, 0)).tolist() == FROZEN


FROZEN = [7, 2, 1, 11, 9, 3, 6, 0, 8, 4, 5, 10]


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_places_are_uniform(size: int) -> None:
    """Over many keys, the first elements land everywhere about equally often."""
    landed = np.zeros((4, size))
    tries = 400 * size if size < 100 else 40 * size
    for seed in range(tries):
        landed[np.arange(4), permute(np.arange(4), size, make_key("uniform", seed))] += 1
    expected = tries / size
    chi_square = ((landed - expected) ** 2 / expected).sum(axis=1) / (size - 1)
    assert (chi_square < 3).all()


def test_neighbours_are_scattered() -> None:
    size = 100_000
    result = permute(np.arange(size), size, make_key("test", 1))
    assert abs(np.corrcoef(result[:-1], result[1:])[0, 1]) < 0.02
