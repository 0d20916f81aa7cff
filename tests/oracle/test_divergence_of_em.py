"""``fit["divergence"]`` of EM: its definition at the solution, and what the objective holds beside it."""

import numpy as np
import pytest
import scipy.sparse
import scipy.special

import nmf_zoo as nz
from nmf_zoo import _compat


def kl(x, mean):
    return np.sum(scipy.special.xlogy(x, x / mean) - x + mean)


@pytest.mark.parametrize("kind", ["counts", "real", "mask", "sparse", "offsets", "normal", "normal, free sigma"])
def test_the_divergence_of_a_fit(kind):
    """Against its definition at the solution; without priors the objective is the divergence and a constant."""
    rng = np.random.default_rng(5)
    x = rng.poisson(4.0, (6, 8)).astype(float) + (0.5 if kind == "real" else 0.0)
    seen = rng.random(x.shape) < (0.8 if kind in ("mask", "normal") else 2.0)
    arguments = {"mask": seen} if not seen.all() else {}
    exposure, background = np.linspace(0.5, 2.0, 8)[None], 0.3
    arguments |= {"exposure": exposure, "background": background} if kind == "offsets" else {}
    sigma = nz.free() if kind == "normal, free sigma" else 1.7
    declare = nz.normal_nmf if kind.startswith("normal") else nz.poisson_nmf
    arguments |= {"sigma": sigma} if kind.startswith("normal") else {}
    model = declare(scipy.sparse.csr_array(x) if kind == "sparse" else x, 2, **arguments)
    idata = nz.fit(model=model, engine="em", max_iter=15, tol=0, random_seed=1, quiet=True, search=None)
    found, draw = _compat.group(idata, "fit"), _compat.group(idata, "posterior").isel(chain=0, draw=0)
    mean = draw["W"].to_numpy() @ draw["H"].to_numpy()
    mean = exposure * mean + background if kind == "offsets" else mean
    x, mean = x[seen], mean[seen]
    if declare is nz.normal_nmf:
        expected = 0.5 * np.sum(np.square(x - mean))
        variance = 1.7**2 if sigma == 1.7 else float(draw["sigma"]) ** 2
        objective = expected / variance + 0.5 * x.size * np.log(2.0 * np.pi * variance)
    else:
        expected = kl(x, mean)
        objective = expected + np.sum(scipy.special.gammaln(x + 1) + x - scipy.special.xlogy(x, x))
    assert float(found["divergence"][0]) == pytest.approx(expected, rel=1e-9)
    assert float(found["objective"][0, -1]) == pytest.approx(objective, rel=1e-9)


def test_the_divergence_does_not_hold_the_priors():
    x = np.random.default_rng(6).poisson(4.0, (6, 8))
    idata = nz.fit(nz.gamma_nmf(x, 2, alpha_h=1.5), engine="em", max_iter=15, random_seed=1, quiet=True, search=None)
    draw = _compat.group(idata, "posterior").isel(chain=0, draw=0)
    mean = draw["W"].to_numpy() @ draw["H"].to_numpy()
    assert float(_compat.group(idata, "fit")["divergence"][0]) == pytest.approx(kl(x, mean), rel=1e-9)
