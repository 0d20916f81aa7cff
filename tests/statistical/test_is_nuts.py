"""Composite Gibbs and NUTS agree on the same declaration."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from tests.sizes import at_full_size, size
from tests.statistical.gates import check_means, standard_errors

pytestmark = pytest.mark.statistical
RNG = np.random.default_rng(4)
X = RNG.exponential(RNG.gamma(2.0, size=(4, 2)) @ (1 / RNG.gamma(3.0, size=(2, 6))))
MASK = RNG.random(X.shape) < 0.8


def declare():
    return nz.is_nmf(X, 2, alpha_h=2.0, beta_h=1.0, alpha_w=2.5, beta_w=1.5, mask=MASK, background=np.full((4, 1), 0.1))


def quantities(idata):
    """(draws, quantities) of one chain after the other: logs of the means, the log joint, the factors' total sizes."""
    posterior, stats = _compat.group(idata, "posterior"), _compat.group(idata, "sample_stats")
    W, H = posterior["W"].values, posterior["H"].values
    n = W.shape[0] * W.shape[1]
    tables = np.log(W @ H), stats["lp"].values, np.log(W).sum((2, 3)), np.log(H).sum((2, 3))
    return np.concatenate([table.reshape(n, -1) for table in tables], axis=1)


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_nuts_agrees():
    """At reduced size another such table is among those of test_engines_against_nuts.py, by `make test-further`."""
    options = {"chains": 2, "random_seed": 1, "progressbar": False, "cores": 2}
    ours = nz.sample(model=declare(), engine="gibbs", extend=1, draws=size(10_000, 100_000), tune=1000, **options)
    peer = quantities(nz.sample(model=declare(), engine="nuts", draws=size(1_000, 10_000), tune=1000, **options))
    names = [f"log mean[{i}]" for i in range(X.size)] + ["lp", "sum log W", "sum log H"]
    check_means(names, quantities(ours), peer.mean(axis=0), standard_errors(peer)[0])
