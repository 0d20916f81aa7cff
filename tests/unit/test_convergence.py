"""Convergence checks: swapped components are no alarm, everything that is wrong with draws is one."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics import convergence
from nmf_zoo.diagnostics.convergence import narrowed
from nmf_zoo.errors import InputError, NmfZooWarning
from tests.planted import plant, put
from tests.sizes import FULL, at_full_size

F, N, K, CHAINS, DRAWS = 7, 9, 3, 4, 300
ORDERS = np.array([[0, 1, 2], [2, 0, 1], [1, 0, 2], [0, 2, 1]])


def factors(draws=DRAWS, seed=0):
    """Independent draws (chain, draw, ...) about one factorisation, all chains in the same order."""
    rng = np.random.default_rng(seed)
    W, H = rng.gamma(0.3, 1.0, (F, K)) + 0.01, rng.gamma(0.5, 4.0, (K, N)) + 0.01
    noise = rng.gamma(400.0, 1 / 400.0, (CHAINS, draws, F, K)), rng.gamma(400.0, 1 / 400.0, (CHAINS, draws, K, N))
    return W * noise[0], H * noise[1]


def swapped(W, H, chain, order):
    """A chain with its components in another order."""
    W, H = W.copy(), H.copy()
    W[chain], H[chain] = W[chain][..., order], H[chain][..., order, :]
    return W, H


DIMS = {"W": ("feature", "component"), "H": ("component", "obs")}
CELL = {"checked_row": ("checked_cell", [0]), "checked_col": ("checked_cell", [0])}


def packed(W, H, names=("W", "H"), mean=None, **stats):
    posterior = {names[0]: (("chain", "draw", "feature", "component"), W)}
    posterior[names[1]] = (("chain", "draw", "component", "obs"), H)
    coords = {"chain": range(W.shape[0]), "draw": range(W.shape[1])}
    groups = {"posterior": xr.Dataset(posterior, coords=coords)}
    if stats:
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), x) for name, x in stats.items()}, coords=coords)
    if mean is not None:
        cells = ("chain", "draw", "checked_cell")
        groups["sample_stats"] = xr.Dataset({"mean": (cells, mean)}, coords=coords | CELL)
    return _compat.inference_data(groups, {})


def draws_of(what):
    """Draws that agree; with components in another order in each chain; in one chain only, which is called aligned."""
    W, H = factors()
    if what == "chains":
        for chain, order in enumerate(ORDERS):
            W, H = swapped(W, H, chain, order)
        return packed(W, H)
    idata = packed(W, H)
    if what == "as they are":
        return idata
    aligned = nz.align(idata)
    group = _compat.group(aligned, "posterior")
    W, H = swapped(group["W"].to_numpy(), group["H"].to_numpy(), 0, [1, 0, 2])
    return _compat.with_groups(aligned, {"posterior": _compat.group(packed(W, H), "posterior")})


def said(idata, **names):
    """What is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nz.check_convergence(idata, **names)
    assert all(one.category is NmfZooWarning and one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


# -- components --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["as they are", "chains"])
def test_swapped_components_are_no_alarm(what):
    assert said(draws_of(what)) == []
    table = nz.check_convergence(draws_of(what))
    assert table["rhat"].max() < 1.01
    assert (table["rhat_raw"].max() > 1.5) == (what == "chains")
    assert list(table.index[-2 * K :]) == [f"{name}[{k}]" for name in "WH" for k in range(K)]
    assert sum(str(row).startswith("mean[") for row in table.index) == 32


def test_without_alignment_they_would_be_one(monkeypatch):
    """So that the test above can fail."""
    put(monkeypatch, "alignment: components in order", lambda group, dims, order: group)
    (text,) = said(draws_of("chains"))
    assert "counterpart" in text or "not settled" in text


def test_a_chain_misaligned_on_purpose_is_caught():
    (text,) = said(draws_of("one chain after alignment"))
    assert text.startswith("R-hat is larger than 1.01 for 4 of 6 aligned columns of W and rows of H, at worst ")
    assert "single components are not settled. Draw longer" in text


def test_a_component_of_one_chain_that_differs_a_little_is_not_settled():
    """W H is the same: what component 0 loses, component 1 gains."""
    W, H = factors()
    H += 1.0
    assert said(packed(W, H)) == []
    W[0, ..., 1], H[0, :, 0] = W[0, ..., 1] + 0.1 * W[0, ..., 0], H[0, :, 0] - 0.1 * H[0, :, 1]
    (text,) = said(packed(W, H))
    assert "single components are not settled" in text


def test_a_component_that_is_split_in_a_chain_is_named():
    W, H = factors()
    H[:, :, 0] = H[:, :, 0] / H[:, :, 0].mean(axis=(0, 1)) * 5.0
    first = np.arange(N) < N // 2
    H[1] = np.stack([H[1, :, 0] * first, H[1, :, 0] * ~first, H[1, :, 1]], axis=1)
    W[1] = W[1][..., [0, 0, 1]]
    mean = np.random.default_rng(0).normal(size=(CHAINS, DRAWS, 1))  # as if W H agreed
    (text,) = said(packed(W, H, mean=mean))
    assert text.startswith("Some components have no counterpart in every chain (")
    assert " split" in text


def test_other_names_and_orientations():
    W, H = factors()
    for chain, order in enumerate(ORDERS):
        W, H = swapped(W, H, chain, order)
    idata = packed(W, H, ("topics", "shares"))
    names = {"weights": "topics", "activations": "shares"}
    assert said(idata, **names) == []
    posterior = _compat.group(idata, "posterior").transpose("draw", "component", "feature", "obs", "chain")
    assert said(_compat.inference_data({"posterior": posterior}, {}), **names) == []
    assert nz.check_convergence(idata, **names).index[-1] == "shares[2]"
    with pytest.raises(InputError, match="one that holds W; name the factors"):
        nz.check_convergence(idata)


def test_weights_alone():
    alone = _compat.group(draws_of("chains"), "posterior")[["W"]]
    assert said(_compat.inference_data({"posterior": alone}, {})) == []
    assert len(nz.check_convergence(_compat.inference_data({"posterior": alone}, {}))) == K


# -- invariants and the sampler ----------------------------------------------------------------------------------


def noise():
    """Of an lp: independent draws."""
    return np.random.default_rng(0).normal(size=(CHAINS, DRAWS))


@pytest.mark.parametrize(
    ("stats", "text"),
    [
        (
            {"lp": np.arange(CHAINS)[:, None] + noise()},
            r"for 1 of 33 invariants .*, at worst [12]\.\d+ for lp: each chain has settled, but in [234] diff",
        ),
        ({"lp": 0.2 * np.arange(CHAINS)[:, None] + noise()}, r"the chains do not quite agree yet\. Draw longer"),
        ({"lp": noise()}, ""),
        (
            {"diverging": np.arange(CHAINS * DRAWS).reshape(CHAINS, DRAWS) < 3},
            r"^There were 3 divergences after tuning\.",
        ),
        (
            {"diverging": np.arange(CHAINS * DRAWS).reshape(CHAINS, DRAWS) < 1},
            r"^There was 1 divergence after tuning\.",
        ),
        ({"maxdepth_reached": np.arange(CHAINS)[:, None] + noise() * 0 == 2}, r"^Chain 2 reached the maximum tree"),
        ({"reached_max_treedepth": noise() > 0}, r"^Chains 0, 1, 2 and 3 reached the maximum tree depth\."),
    ],
)
def test_invariants_and_samplers(stats, text):
    found = said(packed(*factors(), **stats))
    assert len(found) == (text != "")
    assert not text or re.search(text, found[0])


def test_few_effective_draws():
    """An lp that goes up and down slowly, in all chains alike."""
    wave = np.sin(np.linspace(0.0, 60.0, DRAWS)) + 0.1 * noise()
    (text,) = said(packed(*factors(), lp=wave))
    assert re.match(
        r"The effective sample size per chain is smaller than 100 for 1 of 33 invariants .* for lp: R-h", text
    )


@pytest.mark.parametrize(
    ("chains", "draws", "text"),
    [(4, 3, "Only 3 draws per chain"), (4, 60, "Only 60 draws per chain"), (1, 300, "Only one chain was sampled")],
)
def test_too_little_to_judge(chains, draws, text):
    W, H = (array[:chains, :draws] for array in factors())
    (found,) = said(packed(W, H))
    assert found.startswith(text)


def test_fits_are_refused():
    fit = nz.fit(model=nz.gamma_nmf(np.ones((3, 4)), rank=1), random_seed=1, quiet=True)
    with pytest.raises(InputError, match="got a fit; expected draws of a sampler"):
        nz.check_convergence(fit)


# -- the verbs ---------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).poisson(np.kron(np.eye(2), np.full((3, 10), 30.0)))
RUN = {"tune": 100, "random_seed": 1, "progressbar": False}


def sampled(model, draws=1000, **how):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", NmfZooWarning)
        idata = nz.sample(draws, model=model, **RUN | how)
    assert all(one.filename == __file__ for one in caught)
    return idata, [str(one.message) for one in caught]


def test_sample_judges_components_where_the_posterior_is_reached(monkeypatch):
    model = nz.gamma_nmf(X, rank=2)
    assert sampled(model)[1] == []
    plant(
        monkeypatch,
        "convergence: components",
        lambda right: lambda *given: right(*given).assign(became=["matched", "merged"] * 2),
    )
    (text,) = sampled(model)[1]
    assert text.startswith("Some components have no counterpart in every chain (1 merged).")
    (text,) = sampled(model, draws=50)[1]
    assert text.startswith("Only 50 draws per chain")


def test_what_is_not_kept_is_not_judged(tmp_path, monkeypatch):
    model = nz.gamma_nmf(X, rank=2)
    monkeypatch.setattr(convergence, "align", None)  # would fail
    assert sampled(model, keep="moments")[1] == []
    assert sampled(model, var_names=["H"])[1] == []
    pytest.importorskip("zarr")
    assert sampled(model, store=tmp_path / "draws.zarr")[1] == []
    with pytest.raises(TypeError):
        nz.sample(100, model=model, **RUN)
    nz.sample(100, model=model, **RUN, compute_convergence_checks=False)
    nz.sample(100, model=model, **RUN | {"quiet": True})


def test_models_of_other_names_and_orientations():
    with pm.Model() as model:
        A = pm.Gamma("A", 1.0, 1.0, shape=(2, 6))
        B = pm.Gamma("B", 1.0, 1.0, shape=(20, 2))
        pm.Poisson("Y", A.T @ B.T, observed=X)
    assert sampled(model)[1] == []


def test_known_weights():
    model = pm.do(nz.gamma_nmf(X, rank=2), {"W": np.kron(np.eye(2), np.ones((3, 1)))})
    assert sampled(model)[1] == []


# -- cost --------------------------------------------------------------------------------------------------------


def test_of_large_factors_a_part_is_read():
    rng = np.random.default_rng(0)
    W, H = rng.random((2, 600, 500, 5)) * 0.1, rng.random((2, 600, 5, 300)) * 0.1
    W[:, :, 490:] = 1.0
    idata = packed(W, H)
    group = _compat.group(narrowed(idata, "W", "H"), "posterior")
    assert group["W"].shape == (2, 600, 100, 5)
    assert np.all(group["W"].to_numpy()[..., -10:, :] == 1.0)
    assert group["H"].shape == (2, 600, 5, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convergence, "MOST_BYTES", 1 << 20)
        assert _compat.group(narrowed(idata, "W", "H"), "posterior")["H"].shape == (2, 300, 5, 100)


# -- NUTS --------------------------------------------------------------------------------------------------------


@pytest.mark.statistical  # it compiles for seconds
@pytest.mark.parametrize("sampler", ["pymc", pytest.param("nutpie", marks=at_full_size)])
@pytest.mark.usefixtures("compiled_graphs")
def test_draws_of_nuts(sampler, caplog, capfd):
    """PyMC's own checks, of raw factors, stay silent; ours find that chains swap, and nothing else.

    Long: NUTS compiles, and an R-hat below 1.01 wants a thousand draws.
    """
    pytest.importorskip(sampler)
    idata, texts = sampled(nz.gamma_nmf(X, rank=2), engine=nz.NUTS(sampler=sampler), tune=500)
    assert texts == []
    assert "rhat" not in caplog.text.lower() + capfd.readouterr().err.lower()
    group = _compat.group(nz.align(idata, scale="drawn"), "posterior")
    drawn = (group[name].transpose("chain", "draw", *dims).to_numpy() for name, dims in DIMS.items())
    table = nz.check_convergence(packed(*swapped(*drawn, 1, [1, 0])))
    assert table["rhat_raw"].max() > 1.5
    assert table["rhat"].max() < 1.01
    if FULL:  # what PyMC gives itself
        how = {"nuts_sampler": sampler, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
        own = pm.sample(1000, tune=500, chains=4, model=nz.gamma_nmf(X, rank=2), **how)
        assert nz.check_convergence(own)["rhat"].max() < 1.01
