"""Kernels of smooth chains against their slow twins."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.kernels.hmm.gamma_levels import GammaLaws, LevelTerms, move_gamma_levels
from nmf_zoo.kernels.random.keyed_rng import seed_key
from tests.naive.hmm import gamma_levels as naive

K, N = 3, 12
RNG = np.random.default_rng(4)
H = RNG.gamma(2.0, 1.0, (K, N))
LAWS = GammaLaws(*(RNG.uniform(0.5, 3.0, K) for _ in GammaLaws._fields))
NOTHING = np.zeros((0, 0))


def moved(terms, key):
    Ht, scratch = np.ascontiguousarray(H.T), np.empty((3, N))
    for first in range(K):  # a row alone, as threads take them
        move_gamma_levels(Ht, LAWS, terms, scratch, first, first + 1, key)
    return Ht.T


@pytest.mark.parametrize("data", ["counts", "powers"])
def test_levels_move_as_their_slow_twins(data):
    """Of counts the data have a power and a rate; of powers a term in 1 / h in the rate's place."""
    power, other, key = RNG.poisson(2.0, (K, N)).astype(float), RNG.gamma(2.0, 1.0, (K, N)), seed_key(7)
    zero, is_counts = np.zeros((K, N)), data == "counts"
    rate, scale = (other, zero) if is_counts else (zero, other)
    sign = 1.0 if is_counts else -1.0
    of_kernel = LevelTerms(sign * power.T, rate.T if is_counts else NOTHING, NOTHING if is_counts else scale.T)
    found = moved(of_kernel, key)
    np.testing.assert_allclose(found, naive.moved_levels(H, LAWS, sign * power, rate, scale, key), rtol=1e-10)
    with pytest.raises(AssertionError):  # the twin without the data
        np.testing.assert_allclose(found, naive.moved_levels(H, LAWS, zero, zero, zero, key), rtol=1e-10)
