"""What kernels do with arrays in the place of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.kernels.numerics.arrays import place_of_largest, smallest


@pytest.mark.parametrize("n", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("kinds", [1, 2, 5, 1000])
def test_what_stands_at_a_place_of_the_sorted_values(n, kinds):
    values = np.random.default_rng(n).integers(kinds, size=n).astype(float)
    values[n // 2 :: 4] = np.inf
    assert [smallest(values.copy(), place) for place in range(n)] == sorted(values)


@pytest.mark.parametrize("kinds", [1, 3, 1000])
def test_the_first_place_of_the_largest_value(kinds):
    drawn = np.random.default_rng(kinds).integers(kinds, size=50)
    values = np.where(drawn > 0, drawn, -np.inf)  # one kind: alone
    assert [place_of_largest(values[:n]) for n in range(1, 51)] == [np.argmax(values[:n]) for n in range(1, 51)]


def test_values_that_are_no_numbers_end_the_search():
    values = np.array([np.nan, 1.0, np.nan, 0.0])
    for place in range(4):
        smallest(values.copy(), place)
