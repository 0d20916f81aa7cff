"""Which component is which: factors of several draws matched by their sources, and read from a posterior.

A component is its source, the rank-one table w_k h_k' that it adds to W H. The cosine of two sources is the product of
the cosines of their columns of W and of their rows of H: it does not depend on how a source shares its scale between
them. Matches are those with the largest sum of cosines (Kuhn 1955; the solver is SciPy's).

All functions take factors W (..., F, K) and H (..., K, N); where either side has no H columns of W are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from nmf_zoo.runtime.workers import OneBlasThread
from nmf_zoo.structure.spans import slices

Array = np.ndarray
ALIKE = 0.9  # cosine above which two sources count as the same one
TIE = 1e-12  # cosines nearer than this are equal
CLEARER = 0.05  # by how much a sum of two must be nearer than either of them
CELLS = 1 << 16  # of tables of cosines at a time: half a megabyte
MODERATE = 200  # of factors up to 2^200 and down to 2^-200 the products of sources, of four factors, are numbers


class Components(NamedTuple):
    """W (..., F, K); H (..., K, N) or None."""

    W: Array
    H: Array | None

    @property
    def rank(self) -> int:
        return self.W.shape[-1]

    def reordered(self, order: Array) -> Components:
        """Component j is the order[..., j]-th of these."""
        W = np.take_along_axis(self.W, order[..., None, :], -1)
        return Components(W, None if self.H is None else np.take_along_axis(self.H, order[..., :, None], -2))


class Matching(NamedTuple):
    """order : (..., K), which component matches each of the reference's; cosine : (..., K) of each match."""

    order: Array
    cosine: Array


def products(one: Components, other: Components) -> Array:
    """(..., K, K) inner products of the sources of ``one`` (rows) and of ``other``."""
    of_w = np.swapaxes(one.W, -1, -2) @ other.W
    if one.H is None or other.H is None:
        return of_w
    return of_w * np.matmul(one.H, np.swapaxes(other.H, -1, -2), dtype=np.float64)  # states have one byte each


def comparable(one: Components, other: Components) -> tuple[Components, Components]:
    """Both without H where one of them has none."""
    if one.H is None or other.H is None:
        return one._replace(H=None), other._replace(H=None)
    return one, other


def _moderate(components: Components, in_all: bool) -> Components:
    """The same sources, in other units where they are immoderate: each its own, or, for their sums, one ``in_all``.

    Units are powers of two, which leave all digits alone.
    """
    W, H = components
    of_w, of_h = _exponents(W, -2), np.zeros(1, np.int64) if H is None else _exponents(H, -1)
    if max(np.max(np.abs(of_w), initial=0), np.max(np.abs(of_h), initial=0)) <= MODERATE:
        return components
    if in_all:
        sizes = of_w + of_h
        of_w = np.max(sizes, axis=-1, keepdims=True) - of_h
    return Components(np.ldexp(W, -of_w[..., None, :]), None if H is None else np.ldexp(H, -of_h[..., None]))


def _exponents(factor: Array, axis: int) -> Array:
    """(..., K) of the power of two next above each component's largest cell."""
    return np.frexp(np.max(factor, axis=axis, initial=0))[1].astype(np.int64)


def norms(components: Components) -> Array:
    """(..., K) norms of the sources."""
    of_w = np.sqrt(np.einsum("...fk,...fk->...k", components.W, components.W))
    if components.H is None:
        return of_w
    return of_w * np.sqrt(np.einsum("...kn,...kn->...k", components.H, components.H, dtype=np.float64))


def cosines(one: Components, other: Components) -> Array:
    """(..., K, K) cosines of the sources of ``one`` (rows) and of ``other``; 0 with one that is empty."""
    one, other = (_moderate(each, in_all=False) for each in comparable(one, other))
    scale = norms(one)[..., :, None] * norms(other)[..., None, :]
    return np.divide(products(one, other), scale, out=np.zeros(scale.shape), where=scale > 0)


def best_pairs(table: Array) -> tuple[Array, Array]:
    """(rows, columns): each row of the table with a column of its own, of the largest sum."""
    from scipy.optimize import linear_sum_assignment  # which takes as long to import as a whole table of a result

    return linear_sum_assignment(table, maximize=True)


def match(components: Components, reference: Components, known: Array | None = None) -> Matching:
    """The components (..., F, K) in the order of the reference's (F, K); those ``known``, (K,) bool, stay in place.

    Of equal matches it is the one that leaves components where they are.
    """
    rank = reference.rank
    free = np.arange(rank) if known is None else np.flatnonzero(~known)
    own, favour = free[:, None], TIE * np.eye(len(free))
    orders, alike = [], []
    for table in _tables(reference, components):
        order = np.tile(np.arange(rank), (len(table), 1))
        value = table[:, own, free] + favour
        for axis in (-1, -2) if free.size else ():  # the best stays the best, and of many it is found in half the time
            value -= value.max(axis, keepdims=True)
        for at, one in enumerate(value):
            order[at, free] = free[best_pairs(one)[1]]
        orders.append(order)
        alike.append(np.take_along_axis(table, order[..., None], -1)[..., 0])
    shape = (*components.W.shape[:-2], rank)
    return Matching(np.concatenate(orders).reshape(shape), np.concatenate(alike).reshape(shape))


def cosines_of_matches(components: Components, reference: Components, order: Array) -> Array:
    """(..., K) cosines of each of the reference's components with the one that ``order`` says it is."""
    flat, found, first = order.reshape(-1, reference.rank, 1), [], 0
    for table in _tables(reference, components):
        found.append(np.take_along_axis(table, flat[first : first + len(table)], -1)[..., 0])
        first += len(table)
    return np.concatenate(found).reshape(order.shape)


def _tables(reference: Components, components: Components) -> Iterator[Array]:
    """Yields (draws, K, K) cosines of some of the draws (..., F, K) after the other.

    So few at a time that the tables stay in the processor's caches. Products of them are too small to be shared among
    BLAS's threads, which wait for each other for longer than they work.
    """
    W, H = (None if factor is None else factor.reshape(-1, *factor.shape[-2:]) for factor in components)
    assert W is not None
    with OneBlasThread():
        for part in slices(len(W), max(1, CELLS // reference.rank**2)):
            yield cosines(reference, Components(W[part], None if H is None else H[part]))


def correspondence(mean: Components, reference: Components) -> list[str]:
    """What became of each of the reference's components in ``mean``, which is in the reference's order.

    "matched"; "split" into the sum of two components; "merged" with another one of the reference's in one component;
    "different" where none of these is alike.
    """
    alike = np.diagonal(cosines(reference, mean))
    mean, reference = (_moderate(each, in_all=True) for each in comparable(mean, reference))
    own, theirs, cross = products(mean, mean), products(reference, reference), products(reference, mean)
    return [
        "matched" if alike[k] >= ALIKE else _what_became(k, alike[k], own, theirs, cross) for k in range(reference.rank)
    ]


def _what_became(k: int, alike: float, own: Array, theirs: Array, cross: Array) -> str:
    """``own`` and ``theirs``: products within the mean and within the reference; ``cross``: (theirs, own)."""
    pairs = ~np.eye(len(own), dtype=bool)
    of_two = _cosine(cross[k][:, None] + cross[k], theirs[k, k], _of_sums(own))
    split = of_two.max(where=pairs, initial=0.0)
    of_mine = _cosine(cross[k] + cross, np.diagonal(own), _of_sums(theirs)[k][:, None])  # (other reference's, mean's)
    merged = of_mine.max(where=pairs[k][:, None], initial=0.0)
    if max(split, merged) < ALIKE or max(split, merged) < alike + CLEARER:
        return "different"
    return "split" if split >= merged else "merged"


def _of_sums(products: Array) -> Array:
    """(K, K) squared norms of the sums of two components."""
    squares = np.diagonal(products)
    return squares[:, None] + 2 * products + squares


def _cosine(product: Array, square: Array, other_square: Array) -> Array:
    """Of sources with these squared norms; 0 with one that is empty."""
    scale = np.sqrt(square) * np.sqrt(other_square)  # a product of squares may be beyond all numbers
    return np.divide(product, scale, out=np.zeros(np.shape(scale)), where=scale > 0)


def column_sums(draws: Components) -> np.ndarray:
    """Sums of W's columns, 1 for one of zeros."""
    sums = draws.W.sum(axis=-2)
    return np.where(sums > 0, sums, 1.0)


def known_components(draws: Components) -> Array:
    """(K,) which components have a column of W, or a row of H, that is the same in all of several draws.

    Nobody drew it: it has its place from the model, and no other component can take it. Where all columns are the same
    the whole factor is a point, of a fit perhaps, and says nothing of places; nor do rows of states.
    """
    first = (0,) * (draws.W.ndim - 2)
    return fixed_places([unchanged(draws, Components(draws.W[first], None if draws.H is None else draws.H[first]))])


def unchanged(draws: Components, one: Components) -> list[Array]:
    """Of W and of H, (K,): which components are in all draws as in the one (F, K), (K, N). None of rows of states."""
    found = []
    for factor, other, cells in ((draws.W, one.W, -2), (draws.H, one.H, -1)):
        if factor is not None and factor.dtype.kind == "f":
            found.append(np.all(factor == other, axis=(*range(factor.ndim - 2), cells)))
    return found


def fixed_places(parts: Iterable[list[Array]]) -> Array:
    """(K,) the components that are known, from which are unchanged in several parts of the draws."""
    of_factors = [np.all(of_parts, axis=0) for of_parts in zip(*parts, strict=True)]
    fixed = [constant for constant in of_factors if not constant.all()]  # one draw is the same as itself
    return np.any(fixed, axis=0) if fixed else np.zeros(len(of_factors[0]), dtype=bool)


def with_unit_sums(draws: Components) -> Components:
    sums = column_sums(draws)
    return Components(draws.W / sums[..., None, :], None if draws.H is None else draws.H * sums[..., :, None])


def mean_over(draws: Components, axis: int | tuple[int, ...]) -> Components:
    """The mean of both factors."""
    return Components(draws.W.mean(axis), None if draws.H is None else draws.H.mean(axis))
