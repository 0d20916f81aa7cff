"""Variational Bayes for powers against the exact evidence by quadrature, and against exact posteriors by Gibbs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.powers import vb
from nmf_zoo.kernels.numerics.gig_moments import Orders, draw_gig_factor
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.structure import InverseGammaPrior
from tests.naive.powers import composite_bound as naive
from tests.planted import plant, put
from tests.runs import fit
from tests.sizes import size
from tests.statistical.composite_chain import sample_composite
from tests.statistical.gates import check_means
from tests.structures import beside, gamma, inverse_gamma, model

pytestmark = pytest.mark.statistical
STEP = 0.35  # of a logarithm: the trapezoidal rule is exact to 1e-6 for what is integrated here
GRID = np.exp(np.arange(-9.0, 25.0, STEP))


def powers(x, rank, *priors, **setting):
    return model(np.asarray(x), rank, *priors, kind="exponential", **setting)


def log_density(prior, v):
    """log of prior density times v, which makes it one of log v; 1 without a prior."""
    if prior is None:
        return np.log(v)
    if isinstance(prior, InverseGammaPrior):
        return np.log(v) + naive.log_inverse_gamma(*(float(part) for part in prior.shape_and_scale({})))(v)
    return np.log(v) + naive.log_gamma(*(float(part) for part in prior.shape_and_rate({})))(v)


def log_cells(x, mean):
    return -np.log(mean) - x / mean


def evidence_of_one_component(x, prior_w, prior_h, background=0.0):
    """F = 2, N = 1 or 2: for each pair of activations (or for the one), the rows are independent."""
    own_h, own_w = log_density(prior_h, GRID), log_density(prior_w, GRID)
    # (frame, row) -> log p(x_fn | w, h) on the grid (w, h)
    cells = [[log_cells(one, np.outer(GRID, GRID) + background) for one in row] for row in x]
    if len(x[0]) == 1:
        rows = [logsumexp(own_w[:, None] + row[0], axis=0) for row in cells]
        return logsumexp(own_h + sum(rows)) + (len(x) + 1) * np.log(STEP)
    total = own_h[:, None] + own_h[None]
    for first, second in cells:
        total = total + logsumexp((own_w[:, None] + first)[:, :, None] + second[:, None, :], axis=0)
    return logsumexp(total) + (len(x) + 2) * np.log(STEP)


def evidence_of_two_components(x, prior_w, prior_h):
    """F = N = 1: each component's power w h has a density of its own; then two integrals."""
    log_w = log_density(prior_w, GRID)
    logs = np.arange(-14.0, 30.0, STEP)  # of w h
    product = np.array([logsumexp(log_w + log_density(prior_h, np.exp(at) / GRID)) for at in logs])
    mean = np.exp(logs)[:, None] + np.exp(logs)[None]
    return logsumexp(product[:, None] + product[None] + log_cells(x, mean)) + 4 * np.log(STEP)


PRIORS = {
    "inverse gamma": (inverse_gamma(1.5, 0.8), inverse_gamma(1.0, 1.2)),
    "steep": (inverse_gamma(6.0, 5.0), inverse_gamma(4.0, 4.0)),
    "gamma": (gamma(1.7, 0.9), inverse_gamma(2.0, 1.5)),
}


def best_bound(structure, starts=1):
    return max(fit(vb.ENGINE, structure, VB(), 400, seed=seed, tol=1e-9)[3][-1] for seed in range(starts))


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("x", [[[1.3], [0.4]], [[5.0], [0.02]], [[0.0], [2.0]], [[1.0, 3.0], [0.2, 0.9]]])
def test_the_bound_is_below_the_evidence_and_near(x, name):
    exact = evidence_of_one_component(x, *PRIORS[name])
    bound = best_bound(powers(x, 1, *PRIORS[name]))
    unknowns = len(x) + len(x[0])
    assert exact - 0.5 * unknowns < bound < exact, f"got {bound}, exact {exact}"


@pytest.mark.parametrize("x", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("name", PRIORS)
def test_two_components(x, name):
    exact = evidence_of_two_components(x, *PRIORS[name])
    bound = best_bound(powers([[x]], 2, *PRIORS[name]), starts=3)
    assert exact - 2.0 < bound < exact, f"got {bound}, exact {exact}"


def test_without_a_prior_it_bounds_the_integral_over_dw():
    x = [[1.0, 3.0], [0.2, 0.9]]
    exact = evidence_of_one_component(x, None, inverse_gamma(3.0, 2.0))
    structure = powers(x, 1, None, inverse_gamma(3.0, 2.0))
    assert vb.supports(structure, VB())
    assert exact - 2.0 < best_bound(structure) < exact


def test_with_a_background():
    x, background = [[1.3], [0.4]], 0.5
    exact = evidence_of_one_component(x, *PRIORS["inverse gamma"], background)
    bound = best_bound(powers(x, 1, *PRIORS["inverse gamma"], background=np.full((1, 1), background)))
    assert exact - 1.5 < bound < exact


def evidence_beside_a_known_component(x, known, prior_w, priors_h):
    """N = 1: for each pair of activations (of the known component and the new one) the rows are independent."""
    of_known, of_new = (log_density(prior, GRID) for prior in priors_h)
    total = of_known[:, None] + of_new[None]
    for cell, profile in zip(x, known, strict=True):
        mean = profile * GRID[:, None, None] + GRID[None, :, None] * GRID  # known h, new h, w
        total = total + logsumexp(log_density(prior_w, GRID) + log_cells(cell, mean), axis=2)
    return logsumexp(total) + (len(x) + 2) * np.log(STEP)


def without_prior(side, q, values):
    """A factor's part of the bound without its prior."""
    return q.height


def test_beside_a_known_component(monkeypatch):
    """And where the priors of what is free are left out, planted, the bound leaves the interval."""
    x, known, prior_w = [1.3, 0.4], [0.7, 0.0], inverse_gamma(1.5, 0.8)
    exact = evidence_beside_a_known_component(x, known, prior_w, (inverse_gamma(2.5, 1.2), inverse_gamma(1.0, 0.5)))
    structure = powers(np.transpose([x]), 2, prior_w, inverse_gamma([[2.5], [1.0]], [[1.2], [0.5]]))
    structure = replace(structure, W=beside(structure.W, [[0.7, 0.0], [0.0, 0.0]], (1, 2)))
    assert exact - 2.0 < best_bound(structure, starts=3) < exact
    put(monkeypatch, "VB of powers: a factor's part of the bound", without_prior)
    assert not exact - 2.0 < best_bound(structure) < exact


def test_a_bound_without_a_normaliser_would_be_seen(monkeypatch):
    """Planted: the prior's constants dropped, q's height doubled in order; both leave the interval."""
    structure, exact = (
        powers([[1.3], [0.4]], 1, *PRIORS["steep"]),
        evidence_of_one_component([[1.3], [0.4]], *PRIORS["steep"]),
    )
    for wrong in (lambda right: without_prior, lambda right: lambda *given: right(*given) + 0.5):
        with monkeypatch.context() as patch:
            plant(patch, "VB of powers: a factor's part of the bound", wrong)
            assert not exact - 1.5 < best_bound(structure) < exact


def test_draws_have_the_moments_of_the_law():
    rng = np.random.default_rng(3)
    draws, shape = size(4000, 40000), (3, 4)
    p = np.array([[-3.0, -0.6, 1.0, 2.5]])
    rho, tau = np.exp(rng.normal(size=shape)), np.exp(rng.normal(size=shape))
    orders, key = Orders(p, np.full(p.shape, -1), np.empty((0, 0, 0))), seed_key(1)
    out = np.empty((draws, *shape))
    for draw in range(draws):
        draw_gig_factor(out[draw], rho, tau, orders, child(key, draw))
    mean, harmonic = naive.means(np.broadcast_to(p, shape), rho, tau)
    flat = np.concatenate([out.reshape(draws, -1), 1.0 / out.reshape(draws, -1)], axis=1)
    check_means([str(i) for i in range(flat.shape[1])], flat, np.concatenate([mean.ravel(), 1.0 / harmonic.ravel()]))


def test_posterior_means_are_near_those_of_gibbs():
    """Data that say much: W H to a few per cent, while q's spread is the smaller, as its first bound makes it."""
    rng = np.random.default_rng(8)
    F, N, K = 12, 150, 2
    W = 1.0 / rng.gamma(2.0, 1.0, (F, K))
    H = 1.0 / rng.gamma(2.0, 1.0, (K, N))
    structure = powers(rng.exponential(W @ H), K, inverse_gamma(2.0, 1.0), inverse_gamma(2.0, 1.0))
    ends = [fit(vb.ENGINE, structure, VB(), 2000, seed=seed, tol=1e-8) for seed in range(4)]
    state = max(ends, key=lambda end: end[3][-1])[1]
    draws = sample_composite(structure, size(3000, 20000), tune=1000)
    exact = np.einsum("dfk,dkn->fn", draws["W"], draws["H"]) / len(draws["W"])
    ratio = state.W.mean @ state.H.mean.T / exact
    assert abs(np.median(ratio) - 1.0) < 0.05
    assert np.quantile(np.abs(np.log(ratio)), 0.9) < 0.35
