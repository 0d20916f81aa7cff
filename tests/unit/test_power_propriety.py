"""Which posteriors of powers exist: the conditions, held against integrals over growing boxes."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.shared.propriety import is_proper
from tests.structures import gamma, inverse_gamma, model, unknown

SOME = np.arange(1.0, 13.0).reshape(3, 4)
known = inverse_gamma(1.0, 1.0)


def powers(x, rank, prior_w, prior_h, **more):
    return model(x, rank, prior_w, prior_h, kind="exponential", **more)


def on_both_sides(x, rank, prior, other, **more):
    """The verdict on W with ``prior``; that on the same model turned must be the same."""
    verdict = is_proper(powers(x, rank, prior, other, **more))
    more = {name: np.asarray(value).T for name, value in more.items()}
    prior, other = (np.transpose(side) if isinstance(side, np.ndarray) else side for side in (prior, other))
    assert bool(is_proper(powers(np.transpose(x), rank, other, prior, **more))) == bool(verdict)
    return verdict


# -- against integrals: rank 1, H integrated out in closed form --------------------------------------------------------


def marginal_of_row_weights(x, alpha, log_w):
    """log of the integral over h ~ InverseGamma(alpha, 1) of prod_f e^(-x_fn / l) / l, l = w_f h_n, summed over n."""
    w = np.exp(log_w)  # (points, F)
    at_one = 1.0 + np.sum(np.asarray(x).T[None] / w[:, None, :], axis=2)  # (points, N)
    return -x.shape[1] * log_w.sum(axis=1) - (alpha + x.shape[0]) * np.log(at_one).sum(axis=1)


def integral_in_box(x, alpha, half_width):
    axis = np.arange(-half_width, half_width + 0.125, 0.25)
    log_w = np.stack(np.meshgrid(*[axis] * x.shape[0], indexing="ij"), axis=-1).reshape(-1, x.shape[0])
    return float(np.sum(np.exp(marginal_of_row_weights(x, alpha, log_w) + log_w.sum(axis=1))))


@pytest.mark.parametrize(
    ("x", "alpha", "proper"),
    [
        ([[1]], 1.0, False),  # as many cells as components
        ([[1, 2]], 1.0, True),
        ([[1, 0]], 1.0, True),  # 1 < 1 + alpha
        ([[1, 0, 0]], 1.0, False),  # 2 < 1 + alpha fails
        ([[1, 0, 0]], 1.5, True),
        ([[1, 3, 0, 0]], 0.4, False),
        ([[1, 3, 0, 0]], 0.8, True),
        ([[0, 0]], 5.0, False),
        ([[1, 0, 0], [1, 0, 0]], 1.5, False),  # two rows share the one column that helps
        ([[1, 0, 0], [1, 0, 0]], 2.5, True),
        ([[1, 0, 0], [1, 1, 1]], 1.5, True),  # the other row does not need it
        ([[1, 2, 3], [2, 1, 1]], 0.1, True),
    ],
)
def test_the_conditions_of_rank_one_are_those_of_the_integral(x, alpha, proper):
    x = np.array(x, dtype=np.float64)
    assert bool(on_both_sides(x, 1, None, inverse_gamma(alpha, 1.0))) is proper
    inner, outer = (integral_in_box(x, alpha, half_width) for half_width in (30, 60))
    assert (outer < 1.01 * inner) is proper


# -- rank 2: H by quadrature -------------------------------------------------------------------------------------------


def marginals_of_rank_two(half_width):
    """log w (points, 2), and for x of 0 and 1 the log of the integral of e^(-x / l) / l, l = w_1 h_1 + w_2 h_2."""
    axis, log_h = np.arange(-half_width, half_width + 1.0), np.arange(-4.0, half_width + 8.0, 0.5)
    weight = np.exp(-log_h - np.exp(-log_h))  # of InverseGamma(1, 1) along log h
    log_w = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    out = {0: np.empty(len(log_w)), 1: np.empty(len(log_w))}
    for i, point in enumerate(log_w):
        parts = np.exp(point[:, None] + log_h)
        mean = parts[0][:, None] + parts[1]
        for x, logs in out.items():
            logs[i] = np.log(weight @ (np.exp(-x / mean) / mean) @ weight)
    return log_w, out


def test_the_conditions_of_rank_two_are_those_of_the_integral():
    boxes = [marginals_of_rank_two(half_width) for half_width in (10, 20)]
    for x, proper in (
        ([1, 1], False),
        ([1, 1, 1], True),
        ([1, 1, 0], True),
        ([1, 1, 0, 0, 0], True),  # 3 < 2 + 2 alpha
        ([1, 0, 0, 0, 0], False),  # 4 < 2 + alpha fails
        ([0, 0, 0], False),
    ):
        assert bool(is_proper(powers([x], 2, None, known))) is proper, x
        inner, outer = (np.sum(np.exp(sum(of[cell] for cell in x) + log_w.sum(axis=1))) for log_w, of in boxes)
        assert bool(outer < 1.05 * inner) is proper, (x, outer / inner)


# -- what is said --------------------------------------------------------------------------------------------------


def test_two_inverse_gammas_bear_every_zero():
    assert is_proper(powers(0 * SOME, 3, known, known))
    assert is_proper(powers(0 * SOME, 3, known, np.ones((3, 4))))


def test_two_flat_factors_and_free_hyperparameters_are_refused():
    assert "no prior" in is_proper(powers(SOME, 1, None, None)).reason
    assert "free" in is_proper(powers(SOME, 1, known, inverse_gamma(unknown("a", "flat"), 1.0))).reason
    sampled = inverse_gamma(unknown("a", "gamma", 1.0, 1.0), 1.0)
    assert "unknown" in on_both_sides(SOME, 1, None, sampled).reason
    assert is_proper(powers(SOME, 1, known, sampled))


def test_a_row_needs_more_cells_than_components():
    assert on_both_sides(SOME, 3, None, known)
    assert "more than 4 observed cells" in on_both_sides(SOME, 4, None, known).reason
    mask = np.ones(SOME.shape, dtype=bool)
    mask[1, 2] = False
    assert "the least number is 3" in on_both_sides(SOME, 3, None, known, mask=mask).reason
    mask[1] = False
    assert "the least number is 0" in on_both_sides(SOME, 1, None, known, mask=mask).reason


def test_silence_asks_for_a_prior_or_a_background():
    """A frame of zeros costs every row a zero, and the others can't outweigh as many."""
    silent = np.array(SOME)
    silent[:, 0] = 0
    assert on_both_sides(silent, 2, None, known)  # one zero per row, fewer than components
    silent[:, 1:3] = 0
    verdict = on_both_sides(silent, 2, None, known)
    assert "3 of X's rows or columns along it hold too many zeros (up to 3)" in verdict.reason
    assert "give W a prior or X a background" in verdict.reason
    assert on_both_sides(silent, 2, None, known, background=np.full((3, 4), 0.1))
    assert not on_both_sides(silent, 2, None, known, background=np.where(silent > 0, 0.1, 0.0))


@pytest.mark.parametrize("hidden", [False, True])
def test_a_known_factor_must_show_every_cell_often_enough(hidden):
    given = np.ones((2, 4))
    given[1, :2] = 0.0 if hidden else 0.5
    assert bool(on_both_sides(SOME, 2, None, given)) is not hidden
    zeros = np.where(SOME % 4 == 1, SOME, 0.0)  # three zeros and one positive cell in each row
    assert bool(on_both_sides(zeros, 2, None, given)) is not hidden
    assert not on_both_sides(0 * SOME, 2, None, given)


def test_zeros_and_unknown_hyperparameters_are_refused():
    zero = np.array(SOME)
    zero[0, 0] = 0
    sampled = inverse_gamma(2.0, unknown("b", "half_normal", 1.0))
    assert "hyperparameter b is unknown, and X holds 1 zeros" in on_both_sides(zero, 2, sampled, known).reason
    assert on_both_sides(zero, 2, sampled, known, background=np.ones((3, 4)))


def test_gamma_factors_bear_few_zeros():
    assert on_both_sides(SOME, 2, gamma(0.1, 1.0), known)
    zero = np.array(SOME)
    zero[0, :2] = 0
    assert on_both_sides(zero, 2, gamma(1.1, 1.0), known)  # 2 zeros in a row: shapes above 2 / K
    assert "gamma prior" in on_both_sides(zero, 2, gamma(0.9, 1.0), known).reason
    assert "gamma prior of H" in is_proper(powers(SOME, 2, None, gamma(5.0, 1.0))).reason


@pytest.mark.parametrize("kind", ["poisson", "normal"])
def test_an_inverse_gamma_factor_pins_a_flat_one_in_other_likelihoods(kind):
    """All moments of 1 / h are finite."""
    assert is_proper(model(SOME, 2, None, inverse_gamma(0.1, 1.0), kind=kind))
    mask = np.ones(SOME.shape, dtype=bool)
    mask[1] = False
    assert "no observed cell" in is_proper(model(SOME, 2, None, known, kind=kind, mask=mask)).reason


@pytest.mark.parametrize("family", ["gamma", "half-normal"])
def test_nothing_is_known_beside_known_components_under_priors_that_come_close_to_0(family):
    """Three known profiles that are 0 where X has two zeros: the integral over the new one's row of H diverges."""
    X = np.ones((4, 3))
    X[0, :2] = 0.0
    profiles = np.r_[np.zeros((1, 3)), np.eye(3)]
    with pm.Model():
        W_new, H = (
            pm.HalfNormal(name, 1.0, shape=shape) if family == "half-normal" else pm.Gamma(name, 2.0, 1.0, shape=shape)
            for name, shape in (("W_new", (4, 1)), ("H", (4, 3)))
        )
        W = pm.Deterministic("W", pt.concatenate([profiles, W_new], axis=1))
        pm.Exponential("X", scale=W @ H, observed=X)
        structure = nz.read(pm.modelcontext(None))
    assert f"not known to be proper under {family} priors" in is_proper(structure).reason
