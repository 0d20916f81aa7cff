"""Expectation-maximisation: Poisson (Kullback-Leibler) and squared-error NMF, maximum likelihood or a posteriori.

Poisson (Lee and Seung; Cemgil 2009, eq. 10-11, 20-21, 30-31; Paisley eq. 19-20), M the mask times the exposure::

    E[c_fkn] = x_fn w_fk h_kn / ((W H)_fn + background / exposure)
    w_fk = (a_w - 1 + sum_n E[C]) / (r_w + sum_n M h_kn)      then E[C] anew, then H alike

with a = 1, r = 0 for a factor without a prior, and a in the place of a - 1 for the mode in the logarithms (Cemgil's
ICM). Under a normal likelihood the same loop runs on :mod:`nmf_zoo.inference.squared_error`.

GaP (Filstroff 2018, eq. 3-6: W without a prior, H gamma): where W could grow and H shrink for ever (a shape of 1, or a
free rate or mean), the columns of the factor without a prior sum to one, a constraint inside its update. A free rate is
then sum a / sum h over the cells that share it.

The objective is -log p(X, factors), everything included, in nats; it never rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.em_losses import Loss, View, loss_of
from nmf_zoo.inference.em_support import constrained, supports
from nmf_zoo.inference.engine import Engine
from nmf_zoo.inference.multiplicative import FLOOR, peak, peak_on_simplex, stationarity
from nmf_zoo.inference.sides import Side, sum_to, two_sides
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Unknown

MODES = ("density", "log")


class EMState(NamedTuple):
    """W (F, K), Ht (N, K), free parameters by name, and what the data say at these factors."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    view: View


class EMInfo(NamedTuple):
    """objective: -log p at the new factors; residual: the KKT residual, 0 at a stationary point."""

    objective: float
    residual: float


@dataclass(frozen=True, kw_only=True)
class EM:
    """Options of EM.

    Attributes
    ----------
    mode : what a gamma prior means: "density" seeks the mode of the density of W and H, "log" that of log W and log H
    inner : None refreshes the expected sources between W and H; n >= 1 freezes them for n rounds of W and H
    """

    mode: Literal["density", "log"] = "density"
    inner: int | None = None

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}; expected one of {list(MODES)}")
        if self.inner is not None and (type(self.inner) is not int or self.inner < 1):
            raise ValueError(f"inner: got {self.inner!r}; expected None or an integer >= 1")


@dataclass(frozen=True)
class Problem:
    """What all restarts share. ``constrained``: the side whose columns sum to one, or None."""

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    loss: Loss
    constrained: Side | None


def prepare(structure: Factorisation, options: EM, workers: Workers) -> Problem:
    """Lay out the data for the updates."""
    return Problem(
        structure, options, two_sides(structure), loss_of(structure, workers), constrained(structure, options.mode)
    )


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> EMState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start)
    for side, array in zip(problem.sides, (W, Ht), strict=True):
        if not side.is_fixed:
            np.maximum(array, FLOOR, out=array)
    if problem.constrained is not None:
        inside, outside = (Ht, W) if problem.constrained.is_right else (W, Ht)
        total = inside.sum(axis=0)
        inside /= total
        outside *= total
    values = start_hyperparameters(problem.structure, start)
    return EMState(W, Ht, values, _look(problem, W, Ht, values))


def step(problem: Problem, state: EMState, key: np.uint64 | None = None) -> tuple[EMState, EMInfo]:
    """One iteration: W, then H, then the free parameters."""
    loss, values, view = problem.loss, state.values, state.view
    W, at_W = _update(problem, 0, state.W, view.pull_W, loss.drag_W(view, state.Ht), values)
    pull_H, drag_H = loss.for_H(W, state.Ht, values) if problem.options.inner is None else (view.pull_H, loss.drag_H(W))
    Ht, at_H = _update(problem, 1, state.Ht, pull_H, drag_H, values)
    for _ in range(1, problem.options.inner or 1):
        W, _unused = _update(problem, 0, W, view.pull_W, loss.drag_W(view, Ht), values)
        Ht, _unused = _update(problem, 1, Ht, view.pull_H, loss.drag_H(W), values)
    values = _update_hyperparameters(problem, W, Ht, values)
    view = _look(problem, W, Ht, values)
    objective = -view.log_likelihood - _log_prior(problem, W, Ht, values)
    return EMState(W, Ht, values, view), EMInfo(objective, max(at_W, at_H))


def _look(problem: Problem, W: Array, Ht: Array, values: dict[str, Array]) -> View:
    """What the data say at new factors; a free sigma moves to its best value there."""
    return problem.loss.look(W, Ht, values, both=problem.options.inner is not None)


def _update(problem: Problem, which: int, old: Array, pull: Array, drag: Array, values) -> tuple[Array, float]:
    """(the factor's new value, how far from stationary the old one was)"""
    side = problem.sides[which]
    if side.is_fixed:
        return old, 0.0
    if side == problem.constrained:
        new = peak_on_simplex(old, pull, drag)
    else:
        new = peak(side, problem.options.mode, old, pull, drag, values)
    return new, stationarity(old, new)


def _update_hyperparameters(problem: Problem, W: Array, Ht: Array, values: dict[str, Array]) -> dict[str, Array]:
    """Free rates or means in closed form: sum a / sum h, or sum a h / sum a, over the cells that share one."""
    values = dict(values)
    for side, array in zip(problem.sides, (W, Ht), strict=True):
        for role, unknown in side.gamma.parameters.items() if side.is_gamma else ():
            if isinstance(unknown, Unknown):
                cells = side.turn(array)
                a = np.broadcast_to(side.gamma.shape.resolve(values), cells.shape)
                top, bottom = (a, cells) if role == "rate" else (a * cells, a)
                best = sum_to(top, unknown.shape) / sum_to(bottom, unknown.shape)
                values[unknown.name] = best.reshape(unknown.variable_shape)
    return values


def _log_prior(problem: Problem, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
    """Log prior density of the factors, or of their logarithms."""
    total = 0.0
    for side, array in zip(problem.sides, (W, Ht), strict=True):
        if side.is_gamma:
            shape, rate = side.prior(values)
            power = shape - 1.0 if problem.options.mode == "density" else shape
            constant = np.broadcast_to(xlogy(shape, rate) - gammaln(shape), array.shape)
            logs = float(np.sum(power * np.log(array))) if np.any(power) else 0.0
            total += logs - float(np.sum(rate * array)) + float(np.sum(constant))
    return total


def finish(problem: Problem, state: EMState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw, whatever ``draws`` is; declared missing cells are at their mode."""
    structure = problem.structure
    values = {name: value[None] for name, value in state.values.items()}
    for side, array in zip(problem.sides, (state.W, state.Ht), strict=True):
        if not side.is_fixed:
            values[side.factor.name] = side.as_variable(array)[None].copy()
    if structure.imputed is not None:
        mean = structure.mean_at(state.W, state.Ht.T, structure.imputed.rows, structure.imputed.cols)
        values[structure.imputed.name] = (np.floor(mean) if structure.likelihood.kind == "poisson" else mean)[None]
    return values, {}


ENGINE = Engine(
    name="em", verb="fit", options=EM, supports=supports, prepare=prepare, init=init, step=step, finish=finish
)
