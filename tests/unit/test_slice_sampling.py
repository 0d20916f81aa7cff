"""Slice sampling of few entries, in numbers, and of many, in arrays, are one and the same."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.shared import slice_sampling

DENSITIES = {
    "normal": lambda v: -0.5 * v * v,
    "of a logarithm": lambda v: 2.0 * v - np.exp(v),
    "bounded": lambda v: np.where((v > -1.0) & (v < 2.0), 0.0, -np.inf),
    "flat": lambda v: 0.0 * v,
    "nowhere defined above": lambda v: np.where(v > 0.5, np.nan, -v * v),
    "nowhere to go": lambda v: np.where(v == 0.0, 1e9, -np.inf),
}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("name", DENSITIES)
def test_few_entries_are_drawn_as_many_are(name, shape):
    few = many = np.zeros(shape)
    of_few, of_many = np.random.default_rng(1), np.random.default_rng(1)
    with np.errstate(all="ignore"):
        for _ in range(100):
            few = slice_sampling._draw_few(DENSITIES[name], few, of_few)
            many = slice_sampling._draw_many(DENSITIES[name], many, of_many)
            assert (few.shape, few.dtype) == (many.shape, many.dtype)
            np.testing.assert_array_equal(few, many)
    assert of_few.random() == of_many.random()


@pytest.mark.parametrize("size", [slice_sampling.FEW, slice_sampling.FEW + 1])
def test_draws_have_the_law(size):
    generator, entries, kept = np.random.default_rng(2), np.zeros(size), []
    for _ in range(3000):
        entries = slice_sampling.slice_draw(DENSITIES["normal"], entries, generator)
        kept.append(entries)
    assert abs(np.mean(kept)) < 5 * 2.0 / np.sqrt(3000 * size)
    assert abs(np.var(kept) - 1.0) < 5 * 2.0 / np.sqrt(1500 * size)
