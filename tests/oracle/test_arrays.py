"""What kernels do with arrays in the place of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.kernels.numerics.arrays import smallest


@pytest.mark.parametrize("n", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("kinds", [1, 2, 5, 1000])
def test_what_stands_at_a_place_of_the_sorted_values(n, kinds):
    values = np.random.default_rng(n).integers(kinds, size=n).astype(float)
    values[n // 2 :: 4] = np.inf
    assert [smallest(values.copy(), place) for place in range(n)] == sorted(values)


def test_values_that_are_no_numbers_end_the_search():
    values = np.array([np.nan, 1.0, np.nan, 0.0])
    for place in range(4):
        smallest(values.copy(), place)
