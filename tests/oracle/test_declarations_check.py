"""``check`` passes for every declaration and every kind of data that it takes."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

from nmf_zoo.errors import InputError
from nmf_zoo.models import MODELS, free, gamma_nmf, gap, is_nmf, normal_nmf, poisson_nmf
from nmf_zoo.reading import check, read
from nmf_zoo.structure import Cells, Dense, Flat, InverseGammaPrior

F, N, K = 6, 8, 2
RNG = np.random.default_rng(4)
X = RNG.poisson(3.0, (F, N)) + np.eye(F, N, dtype=int)  # no empty row or column
X[:, N - 2 :] += 1
MASK = np.indices((F, N)).sum(axis=0) % 5 != 0
SPARSE = scipy.sparse.csr_array(np.where(MASK, X, 0))
FEW = scipy.sparse.csr_array(np.where(np.indices((F, N)).sum(axis=0) == 3, X, 0))

TABLES = {
    "dense": {"X": X},
    "real": {"X": X + 0.25},
    "NaN": {"X": np.where(MASK, X, np.nan)},
    "real with NaN": {"X": np.where(MASK, X + 0.25, np.nan)},
    "masked": {"X": np.ma.masked_array(X, ~MASK)},
    "mask": {"X": X, "mask": MASK},
    "few observed": {"X": X, "mask": np.indices((F, N)).sum(axis=0) == 3},
    "exposure": {"X": X, "exposure": RNG.uniform(0.5, 2.0, N)},
    "background": {"X": X, "background": RNG.uniform(0.1, 1.0, (F, 1))},
    "offsets and mask": {"X": X, "mask": MASK, "exposure": RNG.uniform(0.5, 2.0, (F, N)), "background": 0.5},
    "nothing": {"X": None, "shape": (F, N)},
}
SPARSE_TABLES = {
    "sparse": {"X": SPARSE},
    "sparse, real": {"X": SPARSE * 1.5},
    "sparse, stored": {"X": SPARSE, "observed": "stored"},
    "sparse, mask": {"X": SPARSE, "mask": MASK},
    "sparse, few stored": {"X": FEW, "observed": "stored"},
}


def variable(dist, *args, **kwargs):
    """Declared inside the model, as a user would."""
    return lambda: dist(*args, **kwargs)


two = np.float64(2.0)
HYPERPARAMETERS = {
    "known": {"alpha_w": 0.5, "beta_w": 2.0, "alpha_h": np.ones((K, 1)), "beta_h": 3.0},
    "known means": {"alpha_w": 0.5, "mean_w": 2.0, "alpha_h": np.arange(1.0, K + 1)[:, None], "mean_h": 3.0},
    "free, one": {"alpha_w": free(), "beta_w": free(), "alpha_h": free(), "beta_h": free()},
    "free, per component": {"alpha_w": free("feature"), "beta_w": free("feature"), "alpha_h": free("obs")},
    "free, per row or column": {"alpha_w": free("component"), "mean_h": free("component")},
    "free, untied": {"alpha_w": free(None), "mean_h": free(None)},
    "free means": {"mean_w": free(), "alpha_h": free("obs"), "mean_h": free("component")},
    "sampled": {"alpha_w": variable(pm.Gamma, "a", two, two), "mean_h": variable(pm.InverseGamma, "m", two, two)},
    "sampled, per component": {"alpha_h": variable(pm.HalfNormal, "a", two, shape=(K, 1))},
}


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", MODELS)
def test_dense_declarations(name, table):
    if name == "negative-binomial-nmf" and table.startswith("real"):
        with pytest.raises(InputError, match="expected counts"):
            MODELS[name](rank=K, **TABLES[table])
        return
    model = MODELS[name](rank=K, **TABLES[table])
    check(model)
    assert isinstance(
        read(model).data, type(None) if table == "nothing" else Cells if table == "few observed" else Dense
    )


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("table", SPARSE_TABLES)
@pytest.mark.parametrize("builder", [poisson_nmf, gamma_nmf, gap], ids=lambda builder: builder.__name__)
def test_sparse_declarations(builder, table):
    model = builder(rank=K, **SPARSE_TABLES[table])
    check(model)
    structure = read(model)
    assert isinstance(structure.data, Cells)
    assert structure.data.is_complete == ("stored" not in table and "mask" not in table)
    assert structure.likelihood.name == "X"


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_of_gamma_nmf(name):
    with pm.Model() as model:
        given = {k: v() if callable(v) else v for k, v in HYPERPARAMETERS[name].items()}
        gamma_nmf(X, K, **given)
    check(model)
    structure = read(model)
    assert structure.unknowns.keys() == {rv.name for rv in model.free_RVs} - {"W", "H"}
    for side, factor in {"w": structure.W, "h": structure.H}.items():
        assert (factor.prior.mean is not None) == (f"mean_{side}" in given)


INVERSE = {
    "known": {
        "alpha_h": 0.5,
        "beta_h": np.arange(1.0, K + 1)[:, None],
        "alpha_w": np.arange(1.0, K + 1),
        "beta_w": 3.0,
    },
    "W free": {"alpha_h": 2.0, "beta_h": RNG.uniform(1, 2, N)},
    "free, one": {"alpha_h": free(), "beta_h": free(), "alpha_w": free(), "beta_w": free()},
    "free, tied": {"alpha_h": free("obs"), "beta_h": free("component"), "alpha_w": free("feature")},
    "free, untied": {"alpha_h": free(None), "beta_w": free(None), "alpha_w": 2.0},
    "sampled": {"alpha_h": variable(pm.Gamma, "a", two, two), "beta_h": variable(pm.InverseGamma, "b", two, two)},
    "sampled, per component": {"beta_h": variable(pm.HalfNormal, "b", two, shape=(K, 1)), "alpha_w": 1.5},
}


@pytest.mark.parametrize("name", INVERSE)
def test_hyperparameters_of_is_nmf(name):
    with pm.Model() as model:
        given = {k: v() if callable(v) else v for k, v in INVERSE[name].items()}
        is_nmf(X + 0.5, K, **given)
    check(model)
    structure = read(model)
    assert structure.unknowns.keys() == {rv.name for rv in model.free_RVs} - {"W", "H"}
    assert isinstance(structure.H.prior, InverseGammaPrior)
    assert isinstance(structure.W.prior, InverseGammaPrior if "alpha_w" in given else Flat)


@pytest.mark.parametrize("sigma", [0.5, free(), variable(pm.HalfNormal, "s", two)], ids=["known", "free", "sampled"])
def test_sigma_of_normal_nmf(sigma):
    with pm.Model() as model:
        normal_nmf(X, K, sigma=sigma() if callable(sigma) else sigma)
    check(model)
