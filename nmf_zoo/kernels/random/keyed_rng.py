"""Counter-based random streams: a stream *is* a 64-bit key, and a draw is a pure function of its parameters and a key.

Nothing is stored and nothing advances, so that draws do not depend on threads, on blocks or on the order of the work::

    sweep_key = child(seed_key(seed), chain, sweep)      in Python
    key = fold(fold(sweep_key, f), n)                        in a kernel: the stream of one cell in one sweep
    uniform(key, 0), uniform(key, 1), ...                    its uniforms

Children and words are keyed SplitMix: the key plus a multiple of an odd constant, through a bijective 64-bit mixer,
with other constants and another mixer for each, so that the children of a key do not meet its own words. Different
words of ``fold`` give different children.

**Two draws need two keys.** A draw reads its stream from word 0 on and may read many words (rejection), so that two
draws from one key are dependent. Give each its own: ``fold(key, 0)``, ``fold(key, 1)``.

In Python use `child`: a compiled function hands uint64 back as a plain int, which numba may refuse as an argument.

Steele, Lea, Flood (2014), Fast splittable pseudorandom number generators; mixers by D. Stafford (variant 13) and
P. Evensen (moremur).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from nmf_zoo.kernels.compile import kernel

# All of them uint64: numba turns uint64 + int64 into float64.
ONE = np.uint64(1)
FOLD_STEP = np.uint64(0x9E3779B97F4A7C15)
BITS_STEP = np.uint64(0xD1342543DE82EF95)
_FOLD_1, _FOLD_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BITS_1, _BITS_2 = np.uint64(0x3C79AC492BA7B653), np.uint64(0x1C69B3F74AC4AE35)
_S12, _S27, _S30, _S31, _S33 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(33)


def seed_key(seed: int | Sequence[int] | np.random.SeedSequence) -> np.uint64:
    """The key of a whole run, from a non-negative integer of any size, several of them, or a NumPy SeedSequence."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return sequence.generate_state(1, np.uint64)[0]


@kernel
def fold(key, word):
    """The key of child ``word`` (a non-negative integer) of ``key``."""
    z = np.uint64(key) + (np.uint64(word) + ONE) * FOLD_STEP
    z = (z ^ (z >> _S30)) * _FOLD_1
    z = (z ^ (z >> _S27)) * _FOLD_2
    return z ^ (z >> _S31)


def child(key: np.uint64, *words: int) -> np.uint64:
    """``fold`` over several words, for callers in Python, where a compiled function returns uint64 as a plain int."""
    for word in words:
        key = np.uint64(fold(np.uint64(key), word))
    return key


def generator_of(key: np.uint64) -> np.random.Generator:
    """NumPy's generator on a stream, for draws in Python."""
    return np.random.Generator(np.random.Philox(_PhiloxKey(key)))


class _PhiloxKey(ISeedSequence):
    """A seed that is the key itself: ``Philox(key=...)`` asks the system for entropy first, four times the work."""

    def __init__(self, key: np.uint64):
        self.words = np.array([key, 0], np.uint64)

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return self.words


@kernel
def children(key, n):
    """Children 0, 1, ... n - 1 of ``key``, (n,) uint64: for callers in Python that need them all, in one call."""
    out = np.empty(n, np.uint64)
    for word in range(n):
        out[word] = fold(key, word)
    return out


@kernel
def random_bits(key, i):
    """The i-th word of the stream: 64 random bits."""
    z = np.uint64(key) + (np.uint64(i) + ONE) * BITS_STEP
    z = (z ^ (z >> _S27)) * _BITS_1
    z = (z ^ (z >> _S33)) * _BITS_2
    return z ^ (z >> _S27)


@kernel
def uniform(key, i):
    """The i-th uniform of the stream, in the open interval (0, 1): an odd multiple of 2^-53."""
    return (np.float64(np.int64(random_bits(key, i) >> _S12)) + 0.5) * 2.0**-52
