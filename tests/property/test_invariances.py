"""What must not matter to any optimiser: the order of features, samples and components, and the unit of the exposure.

Objective and a plain step are the same to 1e-10, the end of a converged run to its tolerance. And a matrix in two
parts, X1 with a share c of the exposure and X2 with the rest, says of W and H what their sum says.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmf_zoo.inference.counts import em, vb
from nmf_zoo.inference.hmm import exact
from nmf_zoo.inference.powers import em as power_em
from nmf_zoo.inference.powers import vb as power_vb
from nmf_zoo.structure import BasisChainPrior, Cells, Dense, Factor, Factorisation, Flat, Poisson
from tests.runs import fit
from tests.sizes import size
from tests.structures import gamma, inverse_gamma, model, parameter

F, N, K = size(19, 120), size(14, 90), 3  # below 128: rows of a block share a Newton step's curvature
RNG = np.random.default_rng(12)
EXACT = {"rtol": 1e-10, "atol": 1e-12}
FACTOR = 3.7  # of the exposure


class Problem(NamedTuple):
    """Arrays of a factorisation, each of which moves with its rows: those over X, factors, and priors' cells."""

    x: np.ndarray
    mask: np.ndarray
    exposure: np.ndarray
    background: np.ndarray
    W: np.ndarray
    H: np.ndarray
    of_W: tuple[np.ndarray, np.ndarray]  # the priors' two parameters
    of_H: tuple[np.ndarray, np.ndarray]

    def permuted(self, rows: Any, columns: Any, components: Any) -> Problem:
        """Features, samples and components in another order."""
        grids = [array[np.ix_(rows, columns)] for array in self[:4]]
        W, H = np.ix_(rows, components), np.ix_(components, columns)
        return Problem(
            *grids, self.W[W], self.H[H], *((a[at], b[at]) for (a, b), at in ((self.of_W, W), (self.of_H, H)))
        )

    def in_units(self, factor: float, prior: str) -> Problem:
        """The exposure times ``factor``, H and its prior's scale over it."""
        shape, second = self.of_H
        scaled = second / factor if prior == "inverse gamma" else second * factor
        return self._replace(exposure=factor * self.exposure, H=self.H / factor, of_H=(shape, scaled))


def problem(kind: str) -> Problem:
    W, H = RNG.gamma(2.0, 1.0, (F, K)) + 0.1, RNG.gamma(2.0, 1.0, (K, N)) + 0.1
    exposure, background = RNG.uniform(0.5, 2.0, (F, N)), RNG.uniform(0.1, 0.4, (F, N))
    mean = exposure * (W @ H) + background
    draw = {"poisson": RNG.poisson, "normal": lambda mean: np.maximum(mean + RNG.normal(size=mean.shape), 0.0)}
    x = draw.get(kind, RNG.exponential)(mean).astype(float)
    priors = [(RNG.uniform(1.5, 3.0, part.shape), RNG.uniform(0.4, 1.5, part.shape)) for part in (W, H)]
    start = (part * RNG.uniform(0.5, 1.5, part.shape) for part in (W, H))
    return Problem(x, RNG.random((F, N)) < 0.85, exposure, background, *start, *priors)


PROBLEMS = {kind: problem(kind) for kind in ("poisson", "normal", "exponential")}
PRIORS = {"flat": lambda shape, second: None, "gamma": gamma, "inverse gamma": inverse_gamma}
LAYOUTS = ("dense", "masked", "sparse", "listed")


def structure_of(kind: str, given: Problem, prior: str, layout: str) -> Factorisation:
    """The problem as engines see it; squared error has gammas of shape 1 and, sparse, no exposure."""
    make = PRIORS[prior]
    of_W, of_H = given.of_W, given.of_H
    if kind == "normal" and prior == "gamma":
        of_W, of_H = ((np.ones_like(shape), second) for shape, second in (of_W, of_H))
    rest = {"exposure": given.exposure, "background": given.background}
    if kind == "normal" and layout == "sparse":
        rest = {}  # squared error with an exposure would be dense
    mask = given.mask if layout in ("masked", "listed") else None
    structure = model(
        given.x, K, make(*of_W), make(*of_H), mask=mask, kind=kind, sigma=1.3 if kind == "normal" else None, **rest
    )
    if layout in ("dense", "masked"):
        return structure
    rows, columns = np.nonzero(given.x if layout == "sparse" else given.mask)
    cells = Cells(
        rows=rows, cols=columns, values=given.x[rows, columns], shape=given.x.shape, is_complete=layout == "sparse"
    )
    return dataclasses.replace(structure, data=cells)


class Way(NamedTuple):
    engine: Any
    options: Any
    kind: str
    priors: tuple[str, ...]
    in_order: bool = False  # components are updated one after the other, so that their order matters to a step


WAYS = {
    "em": Way(em, em.EM(accelerate=None), "poisson", ("flat", "gamma")),
    "em, refreshed": Way(em, em.EM(accelerate=None, inner=None), "poisson", ("flat", "gamma")),
    "em, frozen": Way(em, em.EM(accelerate=None, inner=3), "poisson", ("flat", "gamma")),
    "em, log": Way(em, em.EM(accelerate=None, mode="log"), "poisson", ("gamma",)),
    "em, momentum": Way(em, em.EM(accelerate="momentum"), "poisson", ("flat", "gamma")),
    "em, Newton": Way(em, em.EM(), "poisson", ("flat", "gamma"), in_order=True),
    "em, Newton, log": Way(em, em.EM(mode="log"), "poisson", ("gamma",), in_order=True),
    "em, squared error": Way(em, em.EM(accelerate=None), "normal", ("flat", "gamma")),
    "em, squared error, momentum": Way(em, em.EM(accelerate="momentum"), "normal", ("flat", "gamma")),
    "em, least squares": Way(em, em.EM(), "normal", ("flat", "gamma"), in_order=True),
    "vb": Way(vb, vb.VB(accelerate=None), "poisson", ("gamma",)),
    "vb, paisley": Way(vb, vb.VB(accelerate=None, order="paisley"), "poisson", ("gamma",)),
    "vb, momentum": Way(vb, vb.VB(), "poisson", ("gamma",)),
    "em, powers": Way(power_em, em.EM(accelerate=None, update="monotone"), "exponential", ("flat", "inverse gamma")),
    "em, powers, longer steps": Way(
        power_em, em.EM(accelerate=None, update="heuristic"), "exponential", ("flat", "inverse gamma", "gamma")
    ),
    "em, powers, log": Way(power_em, em.EM(accelerate=None, mode="log"), "exponential", ("gamma", "inverse gamma")),
    "em, powers, momentum": Way(power_em, em.EM(), "exponential", ("flat", "inverse gamma")),
    "em, powers by component": Way(power_em, em.EM(update="sage"), "exponential", ("flat", "inverse gamma"), True),
    "vb, powers": Way(power_vb, vb.VB(accelerate=None), "exponential", ("inverse gamma", "gamma")),
    "vb, powers, momentum": Way(power_vb, vb.VB(), "exponential", ("inverse gamma", "gamma")),
}
CASES = [(way, prior, layout) for way in WAYS for prior in WAYS[way].priors for layout in LAYOUTS]
WITH_EXPOSURE = [case for case in CASES if WAYS[case[0]].kind != "normal" or case[2] != "sparse"]


def ran(way: Way, given: Problem, prior: str, layout: str, iterations: int, tol: float = 0.0):
    """(W (F, K), H (K, N), objectives) after some iterations from the problem's start."""
    structure = structure_of(way.kind, given, prior, layout)
    verdict = way.engine.supports(structure, way.options)
    assert verdict, verdict.reason
    _, state, _, objective = fit(
        way.engine.ENGINE, structure, way.options, iterations, start={"W": given.W, "H": given.H}, tol=tol
    )
    W = state.Wt.T if hasattr(state, "Wt") else state.W
    Ht = state.Ht if hasattr(state, "Ht") else state.H
    return (
        getattr(W, "mean", W) if isinstance(W, tuple) else W,
        getattr(Ht, "mean", Ht).T if isinstance(Ht, tuple) else Ht.T,
        objective,
    )


def orders(components: bool):
    """Features, samples and components shuffled; components only if they may."""
    return RNG.permutation(F), RNG.permutation(N), RNG.permutation(K) if components else np.arange(K)


@pytest.mark.parametrize(("name", "prior", "layout"), CASES)
def test_a_step_does_not_know_the_order(name, prior, layout):
    way, given = WAYS[name], PROBLEMS[WAYS[name].kind]
    rows, columns, components = orders(not way.in_order)
    W, H, objective = ran(way, given, prior, layout, 1)
    other_W, other_H, other = ran(way, given.permuted(rows, columns, components), prior, layout, 1)
    np.testing.assert_allclose(other, objective, **EXACT)
    np.testing.assert_allclose(other_W, W[np.ix_(rows, components)], **EXACT)
    np.testing.assert_allclose(other_H, H[np.ix_(components, columns)], **EXACT)


@pytest.mark.parametrize("left", ["exposure", "background", "of_W", "of_H"])
def test_what_does_not_move_with_its_rows_is_seen(left):
    given = PROBLEMS["poisson"]
    moved = given.permuted(np.roll(np.arange(F), 1), np.roll(np.arange(N), 1), np.arange(K))
    _, _, objective = ran(WAYS["em"], given, "gamma", "dense", 1)
    _, _, other = ran(WAYS["em"], moved._replace(**{left: getattr(given, left)}), "gamma", "dense", 1)
    assert abs(other[0] / objective[0] - 1.0) > 1e-6


@pytest.mark.parametrize(("name", "prior", "layout"), WITH_EXPOSURE)
def test_a_step_does_not_know_the_unit_of_the_exposure(name, prior, layout):
    way, given = WAYS[name], PROBLEMS[WAYS[name].kind]
    W, H, objective = ran(way, given, prior, layout, 1)
    other_W, other_H, other = ran(way, given.in_units(FACTOR, prior), prior, layout, 1)
    of_density = isinstance(way.options, em.EM) and way.options.mode == "density" and prior != "flat"
    lost = H.size * np.log(FACTOR) if of_density else 0.0  # a density of H is one per its unit
    np.testing.assert_allclose(other, objective - lost, **EXACT)
    np.testing.assert_allclose(other_W, W, **EXACT)
    np.testing.assert_allclose(FACTOR * other_H, H, **EXACT)


@pytest.mark.parametrize(("name", "prior"), [(way, prior) for way in WAYS for prior in WAYS[way].priors])
def test_the_end_does_not_know_order_nor_unit(name, prior):
    way, given = WAYS[name], PROBLEMS[WAYS[name].kind]
    most, tol = (300, 0.0) if way.options.accelerate is None else (20_000, 1e-6)  # EM's own updates are slow at the end
    W, H, objective = ran(way, given, prior, "masked", most, tol)
    assert len(objective) < most or not tol
    rows, columns, components = orders(not way.in_order)  # in another order there may be another optimum
    moved = given.permuted(rows, columns, components).in_units(FACTOR, prior)
    other_W, other_H, _ = ran(way, moved, prior, "masked", most, tol)
    product = (W @ H)[np.ix_(rows, columns)]
    np.testing.assert_allclose(FACTOR * other_W @ other_H, product, rtol=1e-3, atol=1e-3 * product.mean())


# -- binary chains: their activations have no unit, and samples are in order -----------------------------------------


def chains(x, exposure, start, p, q, components) -> tuple[Factorisation, dict[str, np.ndarray]]:
    law = (parameter(np.asarray(part)[components, None]) for part in (p, q))
    structure = Factorisation(
        likelihood=Poisson(exposure=exposure, background=np.full((1, 1), 0.1)),
        W=Factor(name="W", shape=start.shape, prior=Flat()),
        H=Factor(
            name="H", shape=(K, x.shape[1]), prior=BasisChainPrior(**dict(zip("pq", law, strict=True)), initial=None)
        ),
        data=Dense(values=x),
    )
    return structure, {"W": start}


@pytest.mark.parametrize("iterations", [1, 25])
def test_exact_chains_do_not_know_order_nor_unit(iterations):
    given, p, q = PROBLEMS["poisson"], (0.9, 0.7, 0.8), (0.6, 0.8, 0.7)
    rows, components = RNG.permutation(F), RNG.permutation(K)
    found = []
    for at, which, factor in ((np.arange(F), np.arange(K), 1.0), (rows, components, FACTOR)):
        start = given.W[np.ix_(at, which)] / factor
        structure, start = chains(given.x[at], factor * given.exposure[at], start, p, q, which)
        _, state, _, objective = fit(exact.ENGINE, structure, exact.HMMExact(), iterations, start=start)
        found.append((factor * state.W, state.marginals, objective))
    (W, marginals, objective), (other_W, other_marginals, other) = found
    loose = {"rtol": 1e-10 * iterations, "atol": 1e-12 * iterations}
    np.testing.assert_allclose(other, objective, **EXACT)
    np.testing.assert_allclose(other_W, W[np.ix_(rows, components)], **loose)
    np.testing.assert_allclose(other_marginals, marginals[:, components], **loose)


# -- two parts of a count ----------------------------------------------------------------------------------------------


def in_two_parts(share: float, prior: str):
    """(X1 + X2 under an exposure, X1 beside X2 under its shares) with H's prior over both parts' columns."""
    given = PROBLEMS["poisson"]
    first = np.random.default_rng(3).binomial(given.x.astype(int), share).astype(float)
    double = given._replace(
        x=np.hstack([first, given.x - first]),
        mask=np.hstack([given.mask] * 2),
        exposure=np.hstack([share * given.exposure, (1.0 - share) * given.exposure]),
        background=np.hstack([share * given.background, (1.0 - share) * given.background]),
        H=np.hstack([given.H] * 2),
        of_H=tuple(np.hstack([part] * 2) for part in given.of_H),
    )
    return given, double


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_the_likelihood_of_two_parts_is_that_of_their_sum(share, layout):
    differences = []
    for scale in (0.7, 1.0, 2.5):
        values = []
        for given in in_two_parts(share, "flat"):
            structure = structure_of("poisson", given, "flat", layout)
            values.append(structure.log_joint({"W": scale * given.W, "H": given.H**scale}))
        differences.append(values[1] - values[0])
    np.testing.assert_allclose(differences, differences[0], rtol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_em_learns_the_same_from_two_parts(share, layout):
    way = WAYS["em"]
    (W, H, _), (other_W, other_H, _) = (ran(way, one, "flat", layout, 1) for one in in_two_parts(share, "flat"))
    np.testing.assert_allclose(other_W, W, **EXACT)
    of_parts = share * other_H[:, :N] + (1.0 - share) * other_H[:, N:]
    np.testing.assert_allclose(of_parts, H, **EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_vb_learns_the_same_from_two_parts(share, layout):
    """q(W), and the counts and exposures that q(H)'s shapes and rates add to the prior's."""
    laws = []
    for given in in_two_parts(share, "gamma"):
        structure = structure_of("poisson", given, "gamma", layout)
        _, state, _, _ = fit(vb.ENGINE, structure, vb.VB(accelerate=None), 1, start={"W": given.W, "H": given.H})
        shape, rate = (part.T for part in given.of_H)
        laws.append((state.W.shape, state.W.rate, state.H.shape - shape, state.H.rate - rate))
    (W_shape, W_rate, counts, weight), (other_shape, other_rate, other_counts, other_weight) = laws
    np.testing.assert_allclose(other_shape, W_shape, **EXACT)
    np.testing.assert_allclose(other_rate, W_rate, **EXACT)
    np.testing.assert_allclose(other_counts[:N] + other_counts[N:], counts, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(other_weight[:N] + other_weight[N:], weight, rtol=1e-9, atol=1e-10)
