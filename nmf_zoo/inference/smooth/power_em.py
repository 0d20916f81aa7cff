"""EM where H is a gamma chain, beside powers (Itakura-Saito): a mode of W and H, the auxiliaries z integrated out.

With p = x / exposure and l = W H + background / exposure over observed cells, sum log l + p / l is below a majoriser
that touches it (Fevotte and Idier 2011), and the log density of the chain above a minorant (EM's, over z). For a cell v
of either factor, u the other one's row, their sum is::

    v sum u / l + (v0^2 / v) sum u p / l^2 - power log v + rate v + inverse / v

whose minimum is the root of a quadratic. Powers, rates and inverses are those of the prior of W, and of the chain with
E[z] (:mod:`nmf_zoo.inference.smooth.em`). So the objective never rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.em import EM, EMInfo
from nmf_zoo.inference.hmm.gibbs_chain import chain_of
from nmf_zoo.inference.powers.spectra import Spectra, read_spectra
from nmf_zoo.inference.shared.acceleration import Momentum
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, two_sides
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.inference.shared.requirements import takes_scale
from nmf_zoo.inference.smooth.em import SCALES, has_maximum, step_with_momentum, takes_known_parameters, terms_of_chain
from nmf_zoo.inference.smooth.requirements import (
    has_no_zeros,
    is_smooth,
    takes_defaults_of_chains,
    takes_weights_of_powers,
)
from nmf_zoo.inference.smooth.start import start_of_chain
from nmf_zoo.inference.smooth.terms import PriorTermsOfCells, best_scale, peak, terms_of_weights
from nmf_zoo.kernels.numerics.multiplicative import largest_slope
from nmf_zoo.runtime.engine import Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Exponential, Factorisation, GammaChainPrior


class SmoothPowerEMState(NamedTuple):
    """W (F, K), Ht (N, K), -log p there, and where the last update led."""

    W: Array
    Ht: Array
    objective: float
    momentum: Momentum = Momentum()
    updated: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class SmoothPowerEMProblem:
    """What all restarts share."""

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    spectra: Spectra

    @property
    def prior(self) -> GammaChainPrior:
        """That of H."""
        return cast(GammaChainPrior, chain_of(self.structure))


def supports(structure: Factorisation, options: EM) -> Verdict:
    """Powers that are not 0, W gamma, inverse gamma, known or without a prior; a mode that exists."""
    asked = has_data(structure) and is_smooth(structure) and takes_weights_of_powers(structure)
    asked = asked and takes_defaults_of_chains(structure, options, "inner", "start", "precision", "update")
    asked = asked and has_no_zeros(structure) and takes_known_parameters(structure)
    return asked and has_maximum(structure, options) and takes_scale(structure, "EM", *SCALES)


def prepare(structure: Factorisation, options: EM, workers: Workers) -> SmoothPowerEMProblem:
    """The spectrogram frame by frame."""
    return SmoothPowerEMProblem(structure, options, two_sides(structure), read_spectra(structure)[0])


def init(problem: SmoothPowerEMProblem, key: np.uint64, start: Mapping[str, Array]) -> SmoothPowerEMState:
    """The start given, or a random one at the scale of the data."""
    W, Ht, _ = start_of_chain(problem.structure, weigh(problem.structure), key, start)
    return _at(problem, np.maximum(W, FLOOR), np.maximum(Ht, FLOOR))


def step(
    problem: SmoothPowerEMProblem, state: SmoothPowerEMState, key: np.uint64 | None = None
) -> tuple[SmoothPowerEMState, EMInfo]:
    """One iteration: W, H, the scales between them."""
    return step_with_momentum(problem, state, _update_both, _at)


def _update_both(problem: SmoothPowerEMProblem, state: SmoothPowerEMState) -> tuple[tuple[Array, Array], float]:
    """(W, Ht; the larger KKT residual)"""
    side, (W, Ht), residual, mode = problem.sides[0], state[:2], 0.0, problem.options.mode
    terms = terms_of_weights(side, {}, mode)
    if not side.is_fixed:
        numerator, denominator = (own.T @ Ht for own in _slopes(problem.spectra, W, Ht))
        W = lowest(W, numerator, denominator, terms)
        residual = largest_slope(state.W, W)
    numerator, denominator = (own @ W for own in _slopes(problem.spectra, W, Ht))
    power, rate = terms_of_chain(problem.prior, mode, Ht)
    new = lowest(Ht, numerator, denominator, PriorTermsOfCells(power, rate, np.zeros((1, 1))))
    residual = max(residual, largest_slope(Ht, new))
    if not side.is_fixed:
        *_, shape, first = (np.broadcast_to(np.ravel(own), W.shape[1]) for own in problem.prior.law({}))
        less = len(new) * (mode == "density")
        c = best_scale(terms.over_rows(W), shape - less, first * new[0])
        W, new = np.maximum(W * c, FLOOR), np.maximum(new / c, FLOOR)
    return (W, new), residual


def lowest(old: Array, numerator: Array, denominator: Array, terms: PriorTermsOfCells) -> Array:
    """The minimum of each cell's majoriser."""
    a, c = denominator + terms.rate, numerator * np.square(old) + terms.inverse
    found = peak(PriorTermsOfCells(terms.power, a, c))
    return np.maximum(np.where(np.isfinite(found), found, old), FLOOR)  # where nothing is seen and there is no prior


def _slopes(spectra: Spectra, W: Array, Ht: Array) -> tuple[Array, Array]:
    """p / l^2 and 1 / l, (N, F), 0 where not observed."""
    inverse = 1.0 / _means(spectra, W, Ht)
    if spectra.seen.size:
        inverse = np.where(spectra.seen, inverse, 0.0)
    return spectra.power * np.square(inverse), inverse


def _means(spectra: Spectra, W: Array, Ht: Array) -> Array:
    mean = Ht @ W.T
    return mean + spectra.background if spectra.background.size else mean


def _at(problem: SmoothPowerEMProblem, W: Array, Ht: Array) -> SmoothPowerEMState:
    structure, total = problem.structure, 0.0
    if problem.options.mode == "log":
        total = float(np.sum(np.log(Ht))) + (0.0 if _has_no_prior(problem.sides[0]) else float(np.sum(np.log(W))))
    total += structure.log_likelihood(W, Ht.T, {}) + structure.W.log_density(W, {}) + structure.H.log_density(Ht.T, {})
    return SmoothPowerEMState(W, Ht, -total)


def _has_no_prior(side: Side) -> bool:
    return side.is_fixed or side.is_flat


def finish(
    problem: SmoothPowerEMProblem, state: SmoothPowerEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw."""
    return as_one_draw(problem.structure, state.W, state.Ht, {}), {}


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(Exponential,),
    chains=(GammaChainPrior,),
    projects=4,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
