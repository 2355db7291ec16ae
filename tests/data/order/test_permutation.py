from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.order.permutation import make_key, permute


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
    assert permute(np.arange(12), 1000, make_key("rows", 0, 0, 0)).tolist() == FROZEN_OF_A_THOUSAND


FROZEN = [3, 8, 6, 5, 10, 9, 4, 1, 11, 2, 0, 7]
FROZEN_OF_A_THOUSAND = [564, 538, 920, 536, 776, 130, 262, 273, 145, 933, 476, 924]


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


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_of_a_small_range_are_equally_likely(size: int) -> None:
    num_permutations = math.factorial(size)
    tries = 100 * num_permutations
    found = Counter(tuple(permute(np.arange(size), size, make_key("small", seed)).tolist()) for seed in range(tries))
    assert len(found) == num_permutations
    chi_square = sum((count - 100) ** 2 / 100 for count in found.values())
    freedom = num_permutations - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("size", [6, 8, 9, 10])
def test_pairs_of_places_in_a_small_range_are_equally_likely(size: int) -> None:
    tries = 200 * size * (size - 1)
    counts = np.zeros((size, size))
    for seed in range(tries):
        one, two = permute(np.arange(2), size, make_key("pairs", seed))
        counts[one, two] += 1
    seen = counts[~np.eye(size, dtype=bool)]
    freedom = len(seen) - 1
    assert ((seen - 200) ** 2 / 200).sum() < freedom + 5 * math.sqrt(2 * freedom)


def test_neighbours_are_scattered() -> None:
    size = 100_000
    result = permute(np.arange(size), size, make_key("test", 1))
    assert abs(np.corrcoef(result[:-1], result[1:])[0, 1]) < 0.02
