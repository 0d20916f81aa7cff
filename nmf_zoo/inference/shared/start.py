"""Where a chain or a restart begins: the values given, else random factors at the scale of the data.

Or starts read off the data: singular vectors (NNDSVD) and samples far apart (k-means++). Both see X through products
with vectors only, as a sparse matrix plus a rank-one one: cells that are missing stand for the product of their row's
and their column's means. The background is taken off and the exposure divided out.

NNDSVD (Boutsidis and Gallopoulos 2008) keeps of every pair of singular vectors the parts of one sign that hold more of
it; about a hundredth of the mean fills the zeros, which a multiplicative update could not leave. k-means++ (Arthur and
Vassilvitskii 2007) takes profiles of samples as W, each drawn in proportion to the squared Hellinger distance from
those already taken, mixed with the mean profile; H shares every sample's total by likeness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh

from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.kernels.random.draws import draw_factor, draw_some_rows
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.structure import (
    Array,
    Blocked,
    Dense,
    Factor,
    Factorisation,
    Fixed,
    GammaPrior,
    HalfNormalPrior,
    HyperPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
    TruncatedNormalPrior,
)

FILL = 0.01  # of the mean cell, in place of NNDSVD's zeros
MIXED = 0.3  # how much of the mean profile every k-means++ profile holds
LIKENESS = 8.0  # power of the Bhattacharyya coefficient in H's shares
DRAWS_ARE_SEEDED = "rng" in signature(eigsh).parameters  # from SciPy 1.17 on
EXTREME = 200  # powers of 2: data farther from 1 are brought there, since singular vectors square them


class StoredPlusOuter(NamedTuple):
    """X (F, N) as ``stored + outer(of_rows, of_cols)``; ``stored`` is sparse, or dense where X is."""

    stored: Any
    of_rows: Array
    of_cols: Array


def informed_start(structure: Factorisation, key: np.uint64, method: str) -> tuple[Array, Array]:
    """W (F, K) and Ht (N, K), positive, each at a scale of its own; ``method`` is "nndsvd" or "kmeans++"."""
    seen, generator = _see(structure), generator_of(child(key, 2))
    W, Ht = (_nndsvd if method == "nndsvd" else _kmeans)(seen, structure.rank, generator)
    return np.ascontiguousarray(_rescaled(W)), np.ascontiguousarray(_rescaled(Ht))


def _rescaled(array: Array, largest: int = 0) -> Array:
    """Times a power of 4, which with its root rounds nothing: the largest cell near 1 if 2^±``largest`` away."""
    exponent = int(np.frexp(np.max(np.abs(array), initial=0.0))[1]) // 2 * 2
    return np.ldexp(array, -exponent) if abs(exponent) > largest else array


def _see(structure: Factorisation) -> StoredPlusOuter:
    data = structure.data
    if isinstance(data, Dense):
        rows, cols = np.nonzero(np.ones(data.shape, bool) if data.mask is None else data.mask)
        values = data.values[rows, cols]
    else:
        rows, cols, values = data.rows, data.cols, data.values
    exposure = structure.exposure_at(rows, cols)
    values = np.maximum(values - structure.background_at(rows, cols), 0.0)
    values, exposure = _rescaled(values, EXTREME), _rescaled(exposure, EXTREME)
    values = _rescaled(np.divide(values, exposure, out=np.zeros(len(values)), where=exposure > 0), EXTREME)
    F, N = structure.shape
    complete = data.mask is None if isinstance(data, Dense) else data.is_complete
    of_rows, of_cols = np.zeros(F), np.zeros(N)
    if not complete:
        of_rows, of_cols = _margins(rows, cols, values, F, N)
        values = values - of_rows[rows] * of_cols[cols]
    stored = sp.csr_array((values, (rows, cols)), shape=(F, N))
    return StoredPlusOuter(stored.toarray() if isinstance(data, Dense) else stored, of_rows, of_cols)


def _margins(rows: Array, cols: Array, values: Array, F: int, N: int) -> tuple[Array, Array]:
    """Means of rows, and of columns relative to the mean of all, over the observed cells."""
    mean = float(values.mean()) if values.size else 1.0
    totals = [(np.bincount(at, values, n), np.bincount(at, minlength=n)) for at, n in ((rows, F), (cols, N))]
    of_rows, of_cols = (np.where(count > 0, total / np.maximum(count, 1), mean) for total, count in totals)
    return of_rows, of_cols / max(mean, 1e-300)


def _nndsvd(seen: StoredPlusOuter, rank: int, generator: np.random.Generator) -> tuple[Array, Array]:
    F, N = seen.stored.shape
    stored, u, v = seen
    operator = LinearOperator(
        (F, N),
        matvec=lambda x: stored @ x.ravel() + u * (v @ x.ravel()),
        rmatvec=lambda y: stored.T @ y.ravel() + v * (u @ y.ravel()),
        dtype=np.float64,
    )
    k = min(rank, min(F, N) - 1)
    W, Ht = np.zeros((F, rank)), np.zeros((N, rank))
    if k > 0 and (np.any(stored.data if sp.issparse(stored) else stored) or u.any()):
        left, sizes, right = _singular_vectors(operator, k, generator.uniform(0.5, 1.5, min(F, N)))
        for j, at in enumerate(np.argsort(-sizes)):
            W[:, j], Ht[:, j] = _stronger_sign(left[:, at], right[at], sizes[at])
    mean = max((float(stored.sum()) + u.sum() * v.sum()) / (F * N), 1e-300)
    for factor in (W, Ht):
        np.maximum(factor, FILL * np.sqrt(mean / rank) * generator.uniform(0.5, 1.5, factor.shape), out=factor)
    return W, Ht


def _singular_vectors(operator: LinearOperator, k: int, v0: Array) -> tuple[Array, Array, Array]:
    """``svds(operator, k, v0=v0)`` to the bit, except that ARPACK draws what it draws of a matrix of low rank, whose
    vectors run out, from a stream of its own: ``svds`` doesn't hand one down, and those are others in each call.
    """
    tall = operator if operator.shape[0] >= operator.shape[1] else operator.H
    gram = LinearOperator((len(v0), len(v0)), matvec=lambda x: tall.rmatvec(tall.matvec(x)), dtype=np.float64)
    draws = {"rng": np.random.default_rng(0)} if DRAWS_ARE_SEEDED else {}
    basis = np.linalg.qr(eigsh(gram, k, v0=v0, **draws)[1])[0]
    left, sizes, right = np.linalg.svd(tall.matmat(basis), full_matrices=False)
    right = right @ basis.T
    return (left, sizes, right) if tall is operator else (right.T, sizes, left.T)


def _stronger_sign(left: Array, right: Array, size: float) -> tuple[Array, Array]:
    """The parts of one sign of a pair of singular vectors, those with the larger product of norms."""
    pairs = [(np.maximum(sign * left, 0.0), np.maximum(sign * right, 0.0)) for sign in (1.0, -1.0)]
    norms = [(np.linalg.norm(a), np.linalg.norm(b)) for a, b in pairs]
    best = int(norms[1][0] * norms[1][1] > norms[0][0] * norms[0][1])
    (a, b), (of_a, of_b) = pairs[best], norms[best]
    root = np.sqrt(size * of_a * of_b)
    return root * a / max(of_a, 1e-300), root * b / max(of_b, 1e-300)


def _kmeans(seen: StoredPlusOuter, rank: int, generator: np.random.Generator) -> tuple[Array, Array]:
    stored, u, v = seen
    totals = np.maximum(np.asarray(stored.sum(axis=0)).ravel() + u.sum() * v, 0.0)
    profile = np.asarray(stored.sum(axis=1)).ravel() + u * v.sum()
    profile = np.maximum(profile, FILL * max(profile.mean(), 1e-300))
    profile /= profile.sum()
    by_sample = sp.csc_array(stored) if sp.issparse(stored) else stored
    W, likeness, away = np.empty((len(u), rank)), np.empty((len(v), rank)), np.where(totals > 0, 1.0, 0.0)
    roots = _roots(by_sample, totals)
    for k in range(rank):
        chance = away / away.sum() if away.sum() > 0 else np.full(len(v), 1.0 / len(v))
        chosen = int(generator.choice(len(v), p=chance))
        column = by_sample[:, [chosen]].toarray()[:, 0] if sp.issparse(by_sample) else by_sample[:, chosen]
        column = np.maximum(column + u * v[chosen], 0.0)
        mine = column / column.sum() if column.sum() > 0 else profile
        W[:, k] = (1.0 - MIXED) * mine + MIXED * profile
        likeness[:, k] = np.clip(roots.T @ np.sqrt(W[:, k]), 0.0, 1.0)
        away = np.minimum(away, np.where(totals > 0, 1.0 - np.clip(roots.T @ np.sqrt(mine), 0.0, 1.0), 0.0))
    shares = np.maximum(likeness, 1e-3) ** LIKENESS
    shares /= shares.sum(axis=1, keepdims=True)
    W *= generator.uniform(0.9, 1.1, W.shape)  # the same sample drawn twice: equal components would stay equal
    return W, shares * np.maximum(totals, FILL * max(totals.mean(), 1e-300))[:, None]


def _roots(stored: Any, totals: Array) -> Any:
    """Square roots of the samples' profiles, of what is stored of them."""
    scale = 1.0 / np.sqrt(np.where(totals > 0, totals, 1.0))
    if not sp.issparse(stored):
        return np.sqrt(np.maximum(stored, 0.0)) * scale
    return sp.csc_array((np.sqrt(np.maximum(stored.data, 0.0)), stored.indices, stored.indptr), stored.shape) @ (
        sp.diags_array(scale)
    )


SPREAD = 2.0  # gamma shape of the random start: chains start apart, but no cell starts near zero
FLOOR = 1e-10  # of a start, relative to its largest cell, or to 1: an exact zero could never be left by an update


def start_factors(
    structure: Factorisation, key: np.uint64, start: Mapping[str, Array], method: str = "random"
) -> tuple[Array, Array]:
    """W (F, K) and Ht (N, K), newly made: fixed, given in ``start`` by variable name, or by ``method``.

    Where one factor is fixed or given, the other is random.
    """
    values = start_hyperparameters(structure, start)
    scale_w, scale_h = _scales(structure, values)
    factors = structure.W, structure.H
    known = any(not factor.is_free or set(factor.shapes) & set(start) for factor in factors)
    if method != "random" and not known and structure.data is not None:
        W, Ht = informed_start(structure, key, method)
        balance = np.sqrt(scale_w / scale_h * Ht.mean() / W.mean())
        ratio = _ratio_to_data(structure, W, Ht)
        return W * (balance * np.sqrt(ratio)), Ht * (np.sqrt(ratio) / balance)
    W = _start_factor(structure.W, structure.W.shape, scale_w, child(key, 0), start)
    Ht = _start_factor(structure.H, structure.H.shape[::-1], scale_h, child(key, 1), start, turn=True)
    return W, Ht


def _start_factor(
    factor: Factor, shape, scale: float, key: np.uint64, start: Mapping[str, Array], turn: bool = False
) -> Array:
    given = factor.prior.value if isinstance(factor.prior, Fixed) else None
    if given is None and set(factor.shapes) & set(start):
        given = factor.value(start)
        given = np.maximum(given, FLOOR * (given.max() or 1.0))
    if given is None:
        out = np.empty(shape)
        draw_factor(out, np.full(shape, SPREAD), np.full(shape, SPREAD / scale), 0, shape[0], key)
        given = out.T if turn else out
    if factor.known is not None:
        given = factor.known.whole(factor.known.part(given))
    return np.array(given.T if turn else given, dtype=np.float64, order="C")


def _scales(structure: Factorisation, values: Mapping[str, Array]) -> tuple[float, float]:
    """Sizes of W's and H's cells with which W H has the mean of the data, in the proportion of their prior means."""
    W, H = structure.W, structure.H
    prior_w, prior_h = _prior_mean(W, values), _prior_mean(H, values)
    if structure.data is None:
        return prior_w, prior_h
    # with cells of the right proportion, the total mean is off by one factor, shared by what is not fixed
    if isinstance(structure.data, Blocked):
        ratio = _ratio(structure, *structure.data.totals)
    else:
        ratio = _ratio_to_data(structure, _typical(W, prior_w), _typical(H, prior_h, turn=True))
    of_w, of_h = W.is_free, H.is_free
    share = np.sqrt(ratio) if of_w == of_h else ratio
    return prior_w * (share if of_w or not of_h else 1.0), prior_h * (share if of_h or not of_w else 1.0)


def _typical(factor: Factor, size: float, turn: bool = False) -> Array:
    """The factor, (rows, K), with unknown cells of one size."""
    if isinstance(factor.prior, Fixed):
        return factor.prior.value.T if turn else factor.prior.value
    whole = np.full(factor.shape[::-1] if turn else factor.shape, size)
    if factor.known is not None:
        np.copyto(whole.T if turn else whole, factor.known.whole(np.full(factor.known.shape, size)))
    return whole


def _ratio_to_data(structure: Factorisation, W: Array, Ht: Array) -> float:
    """The total of the data over that of their mean at these factors; 1 where no cell is observed or a factor is 0."""
    return _ratio(structure, float(structure.data.observed_values.sum()), weigh(structure).total(W, Ht))


def _ratio(structure: Factorisation, of_data: float, total: float) -> float:
    of_data = max(of_data, structure.likelihood.least_total) or 1.0
    return of_data / total if total > 0 else 1.0


def typical_totals(structure: Factorisation) -> tuple[float, float]:
    """Sums of a block's data and of its mean where all unknown cells of a factor have their typical size."""
    values, factors = start_hyperparameters(structure, {}), (structure.W, structure.H)
    W, H = (_typical(own, _prior_mean(own, values), turn=own is structure.H) for own in factors)
    return float(structure.data.observed_values.sum()), weigh(structure).total(W, H)


def start_blocks(structure: Factorisation, key: np.uint64, start: Mapping[str, Array]) -> tuple[Array, RandomRows]:
    """W (F, K) as of :func:`start_factors`, and the rows of a random Ht (N, K) from one sample to another."""
    scale_w, scale_h = _scales(structure, start_hyperparameters(structure, {}))
    W = _start_factor(structure.W, structure.W.shape, scale_w, child(key, 0), start)
    return W, RandomRows(structure.rank, SPREAD / scale_h, child(key, 1))


class RandomRows(NamedTuple):
    """Rows of a random Ht (N, K), the same however they are asked for."""

    rank: int
    rate: float
    key: np.uint64

    def __call__(self, first: int, last: int) -> Array:
        out = np.empty((last - first, self.rank))
        draw_some_rows(out, SPREAD, self.rate, first, self.key)
        return out


def _prior_mean(factor: Factor, values: Mapping[str, Array]) -> float:
    """The typical size of a cell under its prior; where there is none that of the known components, else 1."""
    if isinstance(factor.prior, InverseGammaPrior):  # its mean may be infinite, and is far above most cells
        shape, scale = factor.prior.shape_and_scale(values)
        return float(np.exp(np.mean(np.log(scale / shape))))
    if isinstance(factor.prior, HalfNormalPrior):
        return float(np.exp(-np.mean(np.log(factor.prior.precision_of(values))) / 2))
    if isinstance(factor.prior, TruncatedNormalPrior):
        return float(np.mean(np.maximum(factor.prior.mu.value, factor.prior.sigma.value)))
    if not isinstance(factor.prior, GammaPrior | LogLinearGammaPrior):
        known = np.empty(0) if factor.known is None else factor.known.values
        return float(known[known > 0].mean()) if np.any(known > 0) else 1.0
    shape, rate = factor.prior.shape_and_rate(values)
    return float(np.exp(np.mean(np.log(shape / rate))))


def start_hyperparameters(structure: Factorisation, start: Mapping[str, Array]) -> dict[str, Array]:
    """A value of every unknown hyperparameter: the one given, else the middle of its prior."""
    values = {}
    for name, unknown in structure.unknowns.items():
        middle = start[name] if name in start else _middle(unknown.prior)
        values[name] = np.array(np.broadcast_to(middle, unknown.variable_shape), dtype=np.float64)
        with np.errstate(all="ignore"):
            density = unknown.prior.log_density(values[name])
        if not np.all(np.isfinite(density)):
            got = f"values from {values[name].min()} to {values[name].max()}"
            raise InputError(f"initvals[{name!r}]", got, f"values inside its {unknown.prior.kind} prior")
    return values


def _middle(prior: HyperPrior) -> Array | float:
    """A point well inside a hyperprior."""
    return MIDDLES[prior.kind](*prior.args)


MIDDLES: dict[str, Callable[..., Array | float]] = {
    "flat": lambda: 1.0,
    "gamma": lambda shape, rate: shape / rate,
    "inverse_gamma": lambda shape, scale: scale / (shape + 1),
    "lognormal": lambda mu, sigma: np.exp(mu),
    "half_normal": lambda sigma: sigma,
    "uniform": lambda lower, upper: (lower + upper) / 2,
    "beta": lambda a, b: a / (a + b),
    "normal": lambda mu, sigma: mu,
}
