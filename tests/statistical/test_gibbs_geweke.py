"""Geweke's test of Gibbs: every move, mask, exposure, background, hyperprior and tying; then planted errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.kernels.random.hyperparameter_draws import BY_GAMMA, BY_INVERSE_GAMMA
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.structure import HYPER_PRIORS, Cells, Outer
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.geweke import (
    BACKGROUND,
    DRAWS_OF_HYPER_PRIORS,
    EXPOSURE,
    FIXED,
    LISTED,
    MASK,
    X23,
    X32,
    check_geweke,
    drop_jacobian,
    step_on,
    with_sums,
)
from tests.structures import beside, gamma, model, unknown, unknown_beside

pytestmark = pytest.mark.statistical
SWEEPS, HYPER_SWEEPS = size(3_000, 60_000), size(2_000, 60_000)  # the latter mix faster
PLANTED_SWEEPS, PLANTED_HYPER_SWEEPS, SHEARS = 3_000, 2_000, 6_000

# No two priors are alike, so that an exchange of factors, components or signs shows.
COMPONENTS_W, COMPONENTS_H = np.array([[0.5, 2.0]]), np.array([[1.6], [0.7]])
SPARSE = Cells(
    rows=np.repeat([0, 1], 3), cols=np.tile([0, 1, 2], 2), values=np.zeros(6), shape=(2, 3), is_complete=True
)
OUTER = Outer(of_features=np.array([[0.4], [2.5]]), of_samples=np.array([[0.5, 1.0, 1.6]]))


def plain(**options):
    return model(X23, 2, gamma(COMPONENTS_W, 0.8), gamma(COMPONENTS_H, 1.7), **options)


def partly_known(of_w=None, of_h=None):
    """Rank 3 with one component of W known, or one of H, or a different one of each."""
    W = gamma([[0.5, 2.0]] if of_w else [[0.5, 2.0, 1.0]], 0.8)
    H = gamma([[1.6], [0.7]] if of_h else [[1.6], [0.7], [1.0]], 1.7)
    structure = model(X23, 3, W, H, exposure=EXPOSURE)
    if of_w:
        structure = dataclasses.replace(structure, W=beside(structure.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], of_w))
    if of_h:
        rows = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.6, 1.9, 0.4]]
        structure = dataclasses.replace(structure, H=beside(structure.H, rows, of_h))
    return structure


MODELS = {
    "plain": plain(),
    "tall": model(X32, 2, gamma(COMPONENTS_W, 0.8), gamma(COMPONENTS_H, 1.7)),
    "rank 3": model(
        np.zeros((2, 2)), 3, gamma([[0.5, 2.0, 1.0]], [[1.0, 0.6, 2.0]]), gamma([[1.6], [0.7], [1.0]], 1.7)
    ),
    "square": model(np.zeros((2, 2)), 2, gamma(1.5, 1.0), gamma(1.7, 1.2)),
    "rank 1": model(X23, 1, gamma(0.6, 0.8), gamma(1.9, 1.7)),
    "small shapes": model(X23, 2, gamma(0.25, 0.3), gamma(0.15, 0.2)),
    "large shapes": model(X23, 2, gamma(9.0, 4.0), gamma(15.0, 6.0)),
    "every cell its own": model(
        X23,
        2,
        gamma([[0.6, 2.1], [1.3, 0.4]], [[0.5, 2.0], [1.0, 0.3]]),
        gamma([[1.6, 0.5, 1.0], [0.7, 2.5, 1.2]], [[1.0, 2.0, 0.5], [0.8, 1.5, 3.0]]),
    ),
    "mask": plain(mask=MASK),
    "exposure": plain(exposure=EXPOSURE),
    "exposure of features": plain(exposure=[[0.4], [2.5]]),
    "exposure of samples": plain(exposure=[[0.4, 1.0, 2.5]]),
    "background": plain(background=BACKGROUND),
    "mask, exposure, background": plain(mask=MASK, exposure=EXPOSURE, background=BACKGROUND),
    "listed cells, exposure": plain(data=LISTED, exposure=EXPOSURE),
    "sparse, exposure of both": plain(data=SPARSE, exposure=OUTER, background=[[0.2], [0.5]]),
    "W fixed": model(X23, 2, FIXED, gamma(COMPONENTS_H, 1.7), exposure=EXPOSURE),
    "H fixed": model(X32, 2, gamma(COMPONENTS_W, 1.7), FIXED, mask=MASK.T),
}

PARTLY_KNOWN = {  # without trajectories
    "a component of W": partly_known(of_w=(1, 3)),
    "a component of H": partly_known(of_h=(0, 2)),
    "one of W, another of H": partly_known(of_w=(1, 3), of_h=(0, 2)),
}

A = unknown("a", "gamma", 6.0, 5.0)
U = unknown("u", "uniform", 0.4, 2.0)


def hyper(prior_w, prior_h, **options):
    """Little data, so that the joint chain mixes: hyperparameters and data hold each other back."""
    return model(X23, 2, prior_w, prior_h, exposure=[[0.3, 0.2, 0.4]], **options)


def by_component(name, kind, *args, of):
    """One value for each component, as it broadcasts against W or H."""
    return unknown(name, kind, *args, variable_shape=(2,), shape=(1, 2) if of == "W" else (2, 1))


def by_sample(name, kind, *args):
    return unknown(name, kind, *args, variable_shape=(3,), shape=(1, 3))


def relevances_of_new_components():
    """Rank 3 with one component of W known; the mean of its row of H is a number."""
    new = unknown("t", "inverse_gamma", [12.0, 9.0], [11.0, 9.0], variable_shape=(2,), shape=(1, 2))
    beside_one = unknown_beside("t", "inverse_gamma", [12.0, 9.0], [11.0, 9.0], known=[[1.4], [np.nan], [np.nan]])
    structure = model(X23, 3, gamma(1.3, mean=new), gamma(0.9, mean=beside_one), exposure=[[0.3, 0.2, 0.4]])
    return dataclasses.replace(structure, W=beside(structure.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], (1, 3)))


HYPER_MODELS = {
    "gamma: shape of W": hyper(gamma(A, 0.8), gamma(COMPONENTS_H, 1.7)),
    "inverse_gamma: rates of H by component": hyper(
        gamma(COMPONENTS_W, 0.8), gamma(1.3, by_component("r", "inverse_gamma", 4.0, 5.0, of="H"))
    ),
    "lognormal: means of W by feature": hyper(
        gamma(0.7, mean=unknown("m", "lognormal", 0.2, 0.7, variable_shape=(2, 1))), gamma(COMPONENTS_H, 1.7)
    ),
    "half_normal: means of H by sample": hyper(
        gamma(COMPONENTS_W, 0.8), gamma(1.3, mean=by_sample("m", "half_normal", 1.5))
    ),
    "uniform: shape of both": hyper(gamma(U, 0.8), gamma(U, 1.7)),
    "Gamma(a, a), and a rate of H": hyper(gamma(A, A), gamma(1.3, A), mask=MASK),
    "shape and mean of H, tied otherwise": hyper(
        gamma(COMPONENTS_W, 0.8),
        gamma(
            by_component("a", "lognormal", [0.4, -0.2], 0.4, of="H"),
            mean=by_sample("m", "gamma", [3.0, 4.0, 5.0], [6.0, 5.0, 6.0]),
        ),
    ),
    "one rate by component of both": hyper(
        gamma(0.7, by_component("r", "gamma", 8.0, 6.0, of="W")),
        gamma(1.4, by_component("r", "gamma", 8.0, 6.0, of="H")),
    ),
    "relevances of both": hyper(
        gamma(1.3, mean=by_component("t", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], of="W")),
        gamma(0.9, mean=by_component("t", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], of="H")),
    ),
    "relevances of new components": relevances_of_new_components(),
    "rates of rows and columns": hyper(
        gamma(0.7, unknown("u", "gamma", [5.0, 7.0], 6.0, variable_shape=(2,), shape=(2, 1))),
        gamma(1.4, by_sample("v", "gamma", 6.0, [5.0, 4.0, 6.0])),
    ),
    "a rate beside an unknown shape": hyper(
        gamma(unknown("a", "lognormal", 0.2, 0.4), unknown("r", "gamma", 6.0, 5.0, variable_shape=(2,), shape=(1, 2))),
        gamma(COMPONENTS_H, 1.7),
    ),
    "shape of W by cell, its rate, mean of H": hyper(
        gamma(unknown("a", "gamma", 6.0, 5.0, variable_shape=(2, 2)), unknown("r", "lognormal", 0.0, 0.5)),
        gamma(1.3, mean=unknown("m", "inverse_gamma", 5.0, 4.0)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_moves(name):
    sweeps = 2 * SWEEPS if name == "small shapes" else SWEEPS  # their totals mix slowly
    check_geweke(MODELS[name], sweeps, seed=1)


@pytest.mark.parametrize("moves", [(), ("scale",), ("shear",)])
@pytest.mark.parametrize("name", ["plain", "mask, exposure, background"])
def test_each_move(name, moves):
    sweeps = max(SWEEPS, SHEARS) if moves == ("shear",) else SWEEPS  # which see one at the wrong place
    check_geweke(MODELS[name], sweeps, moves=moves, seed=2)


@pytest.mark.parametrize("name", PARTLY_KNOWN)
def test_joint_draws_agree_beside_known_components(name):
    check_geweke(PARTLY_KNOWN[name], SWEEPS, seed=1)


@pytest.mark.parametrize("name", HYPER_MODELS)
def test_hyperparameters(name):
    """Long: sweeps whose hyperparameters are drawn one by one."""
    check_geweke(HYPER_MODELS[name], HYPER_SWEEPS, seed=3)


def test_every_proper_hyperprior_is_tried():
    tried = {u.prior.kind for structure in HYPER_MODELS.values() for u in structure.unknowns.values()}
    of_chains = {"beta", "normal"}  # no parameter of a factor's prior can have them, and this sampler takes no chains
    assert tried == set(HYPER_PRIORS) - {"flat", *of_chains} == set(DRAWS_OF_HYPER_PRIORS)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(structure, sweeps=PLANTED_SWEEPS, **options):
    """Wrong chains may mix slowly."""
    check_seen(lambda n: check_geweke(structure, n, seed=4, least=50, **options), sweeps, "gate 2, standard errors")


def with_priors(wrong):
    """A sweep with other shapes and rates: wrong(PriorCells) -> PriorCells."""
    return step_on(gibbs, lambda problem: dataclasses.replace(problem, priors=wrong(problem.priors)))


def test_half_the_prior_rate_is_seen():
    """Without any rate there is no joint distribution: that error is planted where the data stay."""
    halved = with_priors(lambda priors: priors._replace(rate_h=priors.rate_h / 2))
    check_is_seen(MODELS["plain"], moves=(), step=halved)  # the moves ask for the prior too


def test_exchanged_priors_are_seen():
    exchanged = prior_cells(model(X23, 2, gamma(1.1, 1.0), gamma(0.7, 0.8)), {})
    check_is_seen(model(X23, 2, gamma(0.7, 0.8), gamma(1.1, 1.0)), moves=(), step=with_priors(lambda _: exchanged))


def with_weights(wrong):
    """A sweep with another mask * exposure: wrong(Weights) -> Weights."""
    return step_on(gibbs, lambda problem: dataclasses.replace(problem, weights=wrong(problem.weights), sweeps=None))


def test_an_inverted_mask_is_seen():
    inverted = with_weights(lambda weights: dataclasses.replace(weights, matrix=1.0 - weights.matrix))
    check_is_seen(model(X23, 2, gamma(COMPONENTS_W, 4.0), gamma(COMPONENTS_H, 4.0), mask=MASK), step=inverted)


def test_one_exposure_for_all_features_is_seen():
    """The largest: with a smaller one the counts of the chain would grow without end."""
    largest = np.full_like(OUTER.of_features, OUTER.of_features.max())
    same = with_weights(lambda weights: dataclasses.replace(weights, of_features=largest))
    check_is_seen(MODELS["sparse, exposure of both"], step=same)


def test_moves_that_take_known_components_along_are_seen(monkeypatch):
    put(monkeypatch, "Gibbs: components that move", lambda structure: None)
    check_is_seen(PARTLY_KNOWN["a component of W"], moves=("scale",))


def test_new_components_with_the_priors_of_others_are_seen():
    step = with_priors(lambda priors: priors._replace(shape_w=priors.shape_w[:, ::-1]))
    check_is_seen(PARTLY_KNOWN["a component of W"], moves=(), step=step)


def test_relevances_from_rows_of_known_components_are_seen(monkeypatch):
    """Each from the row above it: one of them from activations of the known component."""

    def wrong(right):
        def from_above(given, W, Ht):
            sums = right(given, W, Ht)
            for own in sums:
                of_rows = own[given.cells[1].first :]
                of_rows[:] = np.roll(of_rows, 1)
            return sums

        return from_above

    plant(monkeypatch, "hyperparameters: sums of groups", wrong)
    check_is_seen(HYPER_MODELS["relevances of new components"], sweeps=PLANTED_HYPER_SWEEPS)


def sweep_with_early_moves(problem, state, key):
    """The moves between C and H, where the shear does not belong: it changes what C says."""
    weights, priors, workers = problem.weights, problem.priors, problem.workers
    gibbs.draw_sources(problem.layout, problem.order, workers, state, child(key, gibbs.SOURCES))
    shape, rate = (priors.shape_w, state.of_features), (priors.rate_w, weights.over_samples(state.Ht))
    gibbs.draw_side(workers, state.W, shape, rate, child(key, gibbs.WEIGHTS))
    gibbs.move_along_orbit(problem.options.moves, state, priors, key)
    shape, rate = (priors.shape_h, state.of_samples), (priors.rate_h, weights.over_features(state.W))
    gibbs.draw_side(workers, state.Ht, shape, rate, child(key, gibbs.ACTIVATIONS))
    return state, None


def test_a_shear_at_the_wrong_place_is_seen():
    check_is_seen(MODELS["square"], sweeps=SHEARS, moves=("shear",), step=sweep_with_early_moves)


def test_a_scale_at_that_place_is_right():
    check_geweke(MODELS["square"], SWEEPS, moves=("scale",), seed=4, step=sweep_with_early_moves)


WRONG_SHEARS = {
    "rates' sign": lambda aw, rw, ah, rh: (aw, -rw, ah, -rh),
    "shapes one too large": lambda aw, rw, ah, rh: (aw + 1, rw, ah + 1, rh),
    "shapes of the other component": lambda aw, rw, ah, rh: (aw[::-1], rw, ah[::-1], rh),
}


@pytest.mark.parametrize("name", WRONG_SHEARS)
def test_a_wrong_shear_is_seen(name, monkeypatch):
    wrong = WRONG_SHEARS[name]
    plant(
        monkeypatch,
        "Gibbs: shears",
        lambda right: lambda W, H, *rest: right(W, H, *map(as_given, wrong(*rest[:-1])), rest[-1]),
    )
    check_is_seen(MODELS["plain"], moves=("shear",))


def as_given(array):
    """In the layout that the kernel is compiled for: a transposed, read-only view."""
    return np.broadcast_to(np.ascontiguousarray(array.T), array.shape[::-1]).T


WRONG_SCALES = {
    "exponent one too large": lambda p, a, b: (p + 1, a, b),
    "exponent one too small": lambda p, a, b: (p - 1, a, b),
    "exponent of the other sign": lambda p, a, b: (-p, a, b),
    "half the rates": lambda p, a, b: (p, a / 2, b / 2),
}


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_a_wrong_scale_is_seen(name, monkeypatch):
    wrong = WRONG_SCALES[name]
    plant(monkeypatch, "Gibbs: scales", lambda right: lambda out, p, a, b, key: right(out, *wrong(p, a, b), key))
    check_is_seen(MODELS["plain"], moves=("scale",))


def test_a_missing_jacobian_of_hyperparameters_is_seen(monkeypatch):
    drop_jacobian(monkeypatch)
    check_is_seen(HYPER_MODELS["gamma: shape of W"], PLANTED_HYPER_SWEEPS)


def only_of_w(monkeypatch):
    """Hyperparameters are drawn as if H had nothing to say of them."""

    def wrong(right):
        def without_h(given, W, Ht):
            sums = right(given, W, Ht)
            for own in sums:
                own[given.cells[1].first :] = 0.0
            return sums

        return without_h

    plant(monkeypatch, "hyperparameters: sums of groups", wrong)


def test_a_use_of_a_shared_hyperparameter_forgotten_is_seen(monkeypatch):
    only_of_w(monkeypatch)
    check_is_seen(HYPER_MODELS["uniform: shape of both"], PLANTED_HYPER_SWEEPS)


def with_other_cells(monkeypatch):
    """Of a wrong number of cells."""
    plant(monkeypatch, "hyperparameters: sums of groups", with_sums(lambda s: s._replace(n_cells=s.n_cells + 1)))


def without_inverses(monkeypatch):
    """Means as if they were rates."""
    plant(
        monkeypatch,
        "hyperparameters: draws of entries",
        lambda right: (
            lambda entries, *rest: right(
                entries._replace(how=np.where(entries.how == BY_INVERSE_GAMMA, BY_GAMMA, entries.how)), *rest
            )
        ),
    )


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("relevances of both", only_of_w),
        ("relevances of both", with_other_cells),
        ("relevances of both", without_inverses),
        ("rates of rows and columns", with_other_cells),
        ("a rate beside an unknown shape", with_other_cells),
    ],
)
def test_a_wrong_conjugate_draw_is_seen(name, spoil, monkeypatch):
    spoil(monkeypatch)
    check_is_seen(HYPER_MODELS[name], PLANTED_HYPER_SWEEPS)


def test_a_factor_that_moves_less_than_its_scale_is_seen(monkeypatch):
    plant(monkeypatch, "Gibbs: hyperparameters", lambda right: lambda *given: np.sqrt(right(*given)))
    check_is_seen(HYPER_MODELS["inverse_gamma: rates of H by component"], PLANTED_HYPER_SWEEPS)


def test_a_scale_that_forgets_the_change_of_volume_is_seen(monkeypatch):
    def wrong(right):
        def without_change(line, cells, groups, numbers, factor, shift):
            right(line, cells, groups, numbers, factor, shift)
            line[:, 0] -= len(factor)

        return without_change

    plant(monkeypatch, "hyperparameters: density along a scale", wrong)
    check_is_seen(HYPER_MODELS["inverse_gamma: rates of H by component"], PLANTED_HYPER_SWEEPS)


def test_too_few_sweeps_are_refused():
    with pytest.raises(AssertionError, match="gate 1, effective draws"):
        check_geweke(MODELS["plain"], 60, seed=5)
