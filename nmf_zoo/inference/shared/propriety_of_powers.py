r"""Whether the posterior of exponential data exists when a factor has no prior, or where powers are 0.

A cell has the density ``e^(-x / l) / l`` with ``l = w_f . h_n + background`` (an exposure changes constants only). With
x > 0, or a background, it has a bound; a bare zero, x = 0 without a background, contributes 1 / l, which has none.

W flat, h_kn ~ InverseGamma(alpha_kn, .): all moments of 1 / h are finite, those of h below alpha. Take row f with n
seen cells, z of them bare zeros, m_k = min_n h_kn over these cells and s = sum_k w_k m_k, so that every l >= s and an
integral over w is one over s: dw = const s^(K-1) ds / prod_k m_k.

- s > 1: each cell is at most 1 / s, and s^(K-1-n) has an integral when **n > K**. That is necessary, too.
- s < 1: cells with a bound are constants, bare zeros at most 1 / s: s^(K-1-z) has an integral when **z < K**. More
  zeros are outweighed by positive cells without a background, each at most const l^q for any q >= 0, and
  l <= s max_k h_kn / m_k: then s^(K-1-z+sum q) is integrable when **z < K + sum_n q_fn**. It costs h_kn^q, whose
  expectation is finite when sum_f q_fn < alpha_kn. Each column's least alpha goes to the rows in need in equal parts.

Where some components of W are known and m are not, s is a sum over the latter, and K becomes m. In a row where a known
component is positive, w_k h_kn is a background whose inverse has all moments, and its zeros are not bare.

The rest are moments of 1 / h. A gamma factor (shape a) has such moments below a only: sampled beside bare zeros, whose
1 / l <= const prod_k (w_k h_k)^(-1/K), it must have shapes above z / K along every row. Near 0 a half-normal density is
that of a gamma with shape 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import (
    Array,
    ChainPrior,
    Factor,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
)

NEAR_0 = (GammaPrior, LogLinearGammaPrior, HalfNormalPrior)  # whose cells may be anywhere near it


class SeenCells(NamedTuple):
    """The observed cells: their rows along one factor, across it, and which hold bare zeros or force l up."""

    own: Array
    across: Array
    is_bare: Array
    is_forcing: Array

    def per_row(self, of: Array | slice, length: int) -> Array:
        """Cells of each row, (length,)."""
        return np.bincount(self.own[of], minlength=length)


def is_proper(structure: Factorisation) -> Verdict:
    """CAN_RUN when the posterior is known to be proper, else the reason; hyperparameters have proper priors."""
    W, H = structure.W, structure.H
    told = _is_told_beside(structure)
    if not told:
        return told
    flat = [factor for factor in (W, H) if isinstance(factor.prior, Flat)]
    if len(flat) == 2:
        return Verdict(f"{W.name} and {H.name} have no prior: their posterior is improper")
    if flat:
        axis = 0 if flat[0] is W else 1
        return _is_pinned(structure, axis, _seen(structure, axis))
    return _bears_zeros(structure)


def is_proper_over_blocks(structure: Factorisation, seen: Array, zeros: Array) -> Verdict:
    """What the samples of all blocks together must be: (F,) observed cells and bare zeros of each feature.

    That positive cells outweigh zeros is not asked: it takes the columns of all blocks at once.
    """
    W, H = structure.W, structure.H
    told = _is_told_beside(structure)
    if not told:
        return told
    if isinstance(H.prior, Flat) and not isinstance(W.prior, Fixed):
        return Verdict(f"{H.name} has no prior, and over blocks its posterior is not known to be proper: give it one")
    if isinstance(W.prior, GammaPrior):
        return _bears(structure, W, H, zeros, 0)
    if not isinstance(W.prior, Flat):
        return CAN_RUN
    told, rank = _is_pinnable(W, H), int(structure.free_in_both.sum())
    if told and np.any(seen <= rank):
        return _too_few(W, int(seen.min()), rank)
    return told and _outweighed(W, zeros, zeros >= rank)


def _is_told_beside(structure: Factorisation) -> Verdict:
    """Whether what follows holds beside known components."""
    W, H = structure.W, structure.H
    for factor, other in ((W, H), (H, W)):
        if factor.known is None:
            continue
        words = f"some components of {factor.name} are known, beside which it is not known to be proper"
        near_0 = next((own.prior for own in (W, H) if isinstance(own.prior, NEAR_0)), None)
        if near_0 is not None:
            return Verdict(f"{words} under {near_0.family} priors")
        if isinstance(other.prior, Flat) or not structure.free_in_both.any():
            return Verdict(f"{words} unless {other.name} has a prior")
        if other.known is not None and isinstance(factor.prior, Flat):
            return Verdict(f"{words} without a prior of {factor.variable}")
    return CAN_RUN


def _seen(structure: Factorisation, axis: int) -> SeenCells:
    if structure.data is None:
        nothing = np.empty(0, np.intp)
        return SeenCells(nothing, nothing, nothing.astype(bool), nothing.astype(bool))
    rows, cols, x = structure.observed_cells()
    has_no_floor = structure.background_at(rows, cols) == 0
    own, across = (rows, cols) if axis == 0 else (cols, rows)
    return SeenCells(own, across, has_no_floor & (x == 0), has_no_floor & (x > 0))


def _is_pinned(structure: Factorisation, axis: int, seen: SeenCells) -> Verdict:
    """The two conditions on every row (or column) of X along the flat factor."""
    flat, other = (structure.W, structure.H) if axis == 0 else (structure.H, structure.W)
    if isinstance(other.prior, Fixed):
        return _is_seen(flat, other.prior.value if axis == 0 else other.prior.value.T, flat.shape[axis], seen)
    told = _is_pinnable(flat, other)
    if not told:
        return told
    rank, cells = int(structure.free_in_both.sum()), seen.per_row(slice(None), flat.shape[axis])
    if np.any(cells <= rank):
        return _too_few(flat, int(cells.min()), rank)
    if flat.known is not None:
        is_free = ~np.any(flat.known.values > 0, axis=1 - axis)[seen.own]
        seen = seen._replace(is_bare=seen.is_bare & is_free, is_forcing=seen.is_forcing & is_free)
    shapes = np.broadcast_to(other.prior.shape.resolve({}), other.shape).min(axis=axis)
    zeros = seen.per_row(seen.is_bare, flat.shape[axis])
    return _outweighed(flat, zeros, zeros >= rank + _credit(seen, zeros >= rank, shapes))


def _is_pinnable(flat: Factor, other: Factor) -> Verdict:
    """Whether the prior of the other factor can hold the scale."""
    if other.unknowns:
        return Verdict(f"{flat.name} has no prior and the hyperparameters of {other.name} are unknown")
    if not isinstance(other.prior, InverseGammaPrior):
        reason = "whose cells come close to 0, it is not known to be proper"
        return Verdict(f"{flat.name} has no prior, and under a {other.prior.family} prior of {other.name}, {reason}")
    return CAN_RUN


def _credit(seen: SeenCells, is_needy: Array, shapes: Array) -> Array:
    """sum_n q_fn of every row: each column's shape, in equal parts to the needy rows that it is positive in."""
    helps = seen.is_forcing & is_needy[seen.own]
    own, across = seen.own[helps], seen.across[helps]
    sharers = np.bincount(across, minlength=len(shapes))
    return np.bincount(own, shapes[across] / sharers[across], len(is_needy))


def _outweighed(flat: Factor, zeros: Array, is_bad: Array) -> Verdict:
    if not np.any(is_bad):
        return CAN_RUN
    return Verdict(
        f"{flat.name} has no prior, and {int(is_bad.sum())} of X's rows or columns along it hold too many zeros (up to "
        f"{zeros[is_bad].max()}) for its posterior to be known to be proper: give {flat.name} a prior or X a background"
    )


def _too_few(flat: Factor, least: int, rank: int) -> Verdict:
    return Verdict(
        f"{flat.name} has no prior, so that its posterior is proper only if every row or column of X along it has more "
        f"than {rank} observed cells, the rank; the least number is {least}"
    )


def _is_seen(flat: Factor, known: Array, length: int, seen: SeenCells) -> Verdict:
    """With a known other factor, (K, across), rows are independent: each cell of the flat one is in > K seen means.

    A set of a row's cells that grows makes as many means grow as it is in, and these must be more than its cells. Bare
    zeros that see all components go to 0 only with the whole row, where one positive cell outweighs them.
    """
    rank = len(known)
    in_means = np.array([np.bincount(seen.own, known[k, seen.across] > 0, length) for k in range(rank)])
    if np.any(in_means <= rank):
        return _too_few(flat, int(in_means.min()), rank)
    zeros, forcing = seen.per_row(seen.is_bare, length), seen.per_row(seen.is_forcing, length)
    sees_all = np.all(known > 0, axis=0)[seen.across]
    partial = seen.per_row(seen.is_bare & ~sees_all, length)
    return _outweighed(flat, zeros, (partial > 0) | ((zeros >= rank) & (forcing == 0)))


def _bears_zeros(structure: Factorisation) -> Verdict:
    """Both factors have a prior or are known: only bare zeros can make the posterior improper."""
    for axis, (factor, other) in enumerate(((structure.W, structure.H), (structure.H, structure.W))):
        falls = isinstance(factor.prior, ChainPrior) and bool(factor.prior.never)
        if not factor.unknowns and not falls and not isinstance(factor.prior, GammaPrior | HalfNormalPrior):
            continue
        seen = _seen(structure, axis)
        if not np.any(seen.is_bare):
            return CAN_RUN
        if factor.unknowns:
            names = ", ".join(unknown.name for unknown in factor.unknowns)
            return Verdict(
                f"hyperparameter {names} is unknown, and X holds {int(seen.is_bare.sum())} zeros, where the density "
                f"has no bound as {factor.name} goes to 0: give X a background or {names} a value"
            )
        if falls:
            return Verdict(
                f"{factor.name} is a {factor.prior.family}, a row of which may be {factor.prior.never}, and X holds "
                f"{int(seen.is_bare.sum())} zeros, where the density has no bound then: give X a background"
            )
        if isinstance(factor.prior, GammaPrior | HalfNormalPrior):
            told = _bears(structure, factor, other, seen.per_row(seen.is_bare, factor.shape[axis]), axis)
            if not told:
                return told
    return CAN_RUN


def _bears(structure: Factorisation, factor: Factor, other: Factor, zeros: Array, axis: int) -> Verdict:
    """Whether the shapes of a factor that may be near 0 are above the bare zeros of each of its rows."""
    shared = 1 if isinstance(other.prior, Fixed) and np.any(other.prior.value == 0) else structure.rank
    shape = 1.0 if isinstance(factor.prior, HalfNormalPrior) else factor.prior.shape.resolve({})
    shapes = np.broadcast_to(shape, factor.shape).min(axis=1 - axis)
    if np.any(zeros >= shared * shapes):
        return Verdict(
            f"{factor.name} has a {factor.prior.family} prior, and X holds too many zeros for its posterior to "
            f"be known to be proper: give {factor.name} an inverse-gamma prior or X a background"
        )
    return CAN_RUN
