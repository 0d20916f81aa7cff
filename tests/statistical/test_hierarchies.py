"""Rates and means with conjugate priors (HPF, ARD and models of one's own): VB's bound and q, Gibbs, NUTS' density."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from scipy import stats
from scipy.integrate import quad
from scipy.special import gammaln, logsumexp, psi

import nmf_zoo as nz
from nmf_zoo._compat import group, group_names
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.shared.hyperparameters import gamma_divergence
from tests.planted import plant, put
from tests.runs import fit, largest_loss
from tests.structures import gamma, model, unknown

RNG = np.random.default_rng(8)
F, N, K = 6, 7, 2
X = RNG.poisson(RNG.gamma(0.7, 1.0, (F, K)) @ RNG.gamma(0.7, 2.0, (K, N)))
X[np.arange(F), np.arange(F)] += 1
X[0, F] += 2


def by_row(name, kind, *args, rows=F):
    return unknown(name, kind, *args, variable_shape=(rows,), shape=(rows, 1))


def by_column(name, kind, *args, columns=N):
    return unknown(name, kind, *args, variable_shape=(columns,))


SHAPES = RNG.uniform(0.5, 2.0, (F, K))
MODELS = {
    "rates of rows and columns": lambda rank=K: model(
        X, rank, gamma(0.3, by_row("u", "gamma", 0.4, 0.5)), gamma(0.6, by_column("v", "gamma", 1.2, 0.7))
    ),
    "one rate of both": lambda rank=K: model(
        X, rank, gamma(0.8, unknown("u", "gamma", 1.5, 2.0)), gamma(1.3, unknown("u", "gamma", 1.5, 2.0))
    ),
    "rates of cells": lambda rank=K: model(
        X, rank, gamma(0.8, unknown("u", "gamma", 1.5, 2.0, variable_shape=(F, rank))), gamma(1.3, 0.7)
    ),
    "relevances": lambda rank=K: model(
        X,
        rank,
        gamma(1.0, mean=unknown("t", "inverse_gamma", 4.0, 2.0, variable_shape=(rank,), shape=(1, rank))),
        gamma(0.7, mean=unknown("t", "inverse_gamma", 4.0, 2.0, variable_shape=(rank,), shape=(rank, 1))),
    ),
    "a mean, shapes of cells": lambda rank=K: model(
        X, rank, gamma(SHAPES[:, :rank], mean=unknown("m", "inverse_gamma", 3.0, 1.5)), gamma(0.7, 1.1)
    ),
    "a prior beside a free shape": lambda rank=K: model(
        X, rank, gamma(0.8, by_row("u", "gamma", 1.5, 2.0)), gamma(unknown("s", "flat"), 1.1)
    ),
}


@pytest.mark.parametrize("accelerate", ["momentum", None])
@pytest.mark.parametrize("order", ["cemgil", "paisley"])
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_never_falls(name, order, accelerate):
    *_, objective = fit(vb, MODELS[name](), vb.VB(order=order, accelerate=accelerate), 200)
    assert largest_loss(objective, maximise=True) < 1e-9


def log_ratios(structure, problem, state, draws, seed):
    """log p(X, W, H, u) - log q(W, H, u) at draws from q, (draws,)."""
    values, parameters = vb.finish(problem, state, np.uint64(seed), draws)
    ratios = np.empty(draws)
    for i in range(draws):
        own = {name: value[i] for name, value in values.items()}
        log_q = 0.0
        for name in (n[: -len("_shape")] for n in parameters if n.endswith("_shape")):
            shape, rate, v = parameters[f"{name}_shape"], parameters[f"{name}_rate"], own[name]
            density = shape * np.log(rate) - gammaln(shape)
            if name in problem.conjugates and problem.conjugates[name].role == "mean":
                log_q += np.sum(density - (shape + 1) * np.log(v) - rate / v)
            else:
                log_q += np.sum(density + (shape - 1) * np.log(v) - rate * v)
        ratios[i] = structure.log_joint(own) - log_q
    return ratios


@pytest.mark.parametrize("name", [name for name in MODELS if "free" not in name])
def test_at_rank_1_the_bound_is_the_mean_log_ratio(name):
    """Nothing is shared out there, so that q(C) gives nothing away."""
    structure = MODELS[name](1)
    problem, state, info, _ = fit(vb, structure, vb.VB(), 60)
    ratios = log_ratios(structure, problem, state, 4000, 3)
    assert abs(ratios.mean() - info.objective) < 4 * ratios.std() / np.sqrt(4000)


def without_spread(found, values):
    return sum(
        -np.sum(gamma_divergence(u.shape, u.rate(values[n]), u.prior_shape, u.prior_rate)) for n, u in found.items()
    )


def without_divergence(found, values):
    return sum(np.sum((u.shape - u.prior_shape) * (psi(u.shape) - np.log(u.shape))) for u in found.values())


@pytest.mark.parametrize("wrong", [without_spread, without_divergence])
def test_a_bound_without_a_term_is_seen(wrong, monkeypatch):
    put(monkeypatch, "VB: bound of hyperparameters", wrong)
    with pytest.raises(AssertionError):
        test_at_rank_1_the_bound_is_the_mean_log_ratio("rates of rows and columns")


def test_an_update_that_forgets_a_factor_is_seen(monkeypatch):
    """The bound then falls, or q is not where it is highest."""

    def forgetting(right):
        return lambda found, *rest: right({name: u._replace(uses=u.uses[:1]) for name, u in found.items()}, *rest)

    plant(monkeypatch, "VB: updates of hyperparameters", forgetting)
    *_, objective = fit(vb, MODELS["one rate of both"](), vb.VB(accelerate=None), 200)
    assert largest_loss(objective, maximise=True) > 1e-9


@pytest.mark.parametrize("name", [name for name in MODELS if "free" not in name])
def test_above_rank_1_it_is_below(name):
    structure = MODELS[name]()
    problem, state, info, _ = fit(vb, structure, vb.VB(), 200)
    ratios = log_ratios(structure, problem, state, 2000, 3)
    assert info.objective < ratios.mean() + 4 * ratios.std() / np.sqrt(2000)


def test_the_bound_is_below_the_evidence_of_one_cell():
    """w ~ Gamma(s, u), u ~ Gamma(a, b), x ~ Poisson(w h), h known: one integral over w of a known marginal."""
    s, a, b, h, x = 0.8, 1.4, 0.6, 1.7, 5
    structure = model([[x]], 1, gamma(s, unknown("u", "gamma", a, b)), np.array([[h]]))

    def joint(w):
        compound = (
            gammaln(s + a) - gammaln(s) - gammaln(a) + a * np.log(b) + (s - 1) * np.log(w) - (s + a) * np.log(b + w)
        )
        return np.exp(compound + x * np.log(w * h) - w * h - gammaln(x + 1))

    exact = np.log(quad(joint, 0, np.inf, epsabs=1e-14)[0])
    problem, state, info, _ = fit(vb, structure, vb.VB(), 300)
    assert exact - 0.5 < info.objective < exact
    ratios = log_ratios(structure, problem, state, 40_000, 1)
    assert logsumexp(ratios) - np.log(len(ratios)) == pytest.approx(exact, abs=0.02)  # importance sampling by q


def test_q_of_a_rate_is_exact_where_its_cell_is_known():
    """5,000 counts say what w is to a hundredth and a half, and E[u | w] = (s + a) / (b + w)."""
    s, a, b, h, x = 0.8, 1.4, 0.6, 1000.0, 5000
    structure = model([[x]], 1, gamma(s, unknown("u", "gamma", a, b)), np.array([[h]]))
    _, state, *_ = fit(vb, structure, vb.VB(), 300)
    near = np.linspace(4.5, 5.5, 4001)
    weight = np.exp((x + s - 1) * np.log(near / 5) - h * (near - 5) - (s + a) * np.log(b + near))
    exact = np.sum(weight * (s + a) / (b + near)) / np.sum(weight)
    assert float(state.values["u"]) == pytest.approx(exact, rel=1e-3)
    assert float(state.values["u"]) != pytest.approx(a / b, rel=0.1)  # of the prior


# -- the declarations ------------------------------------------------------------------------------------------------


def hpf_by_hand(table):
    """As one would write it."""
    with pm.Model() as found:
        u, v = (pm.Gamma(name, np.float64(0.3), np.float64(0.3), shape=n) for name, n in (("u", F), ("v", N)))
        W = pm.Gamma("W", np.float64(0.3), u[:, None], shape=(F, K))
        H = pm.Gamma("H", np.float64(0.3), v, shape=(K, N))
        pm.Poisson("X", W @ H, observed=table)
    return found


def test_hpf_is_what_one_would_write():
    declared, by_hand = nz.gamma_nmf(X, K, prior="hpf"), hpf_by_hand(X)
    values = {"W": RNG.gamma(1.0, 1.0, (F, K)), "H": RNG.gamma(1.0, 1.0, (K, N))}
    u, v = RNG.gamma(1.0, 1.0, F), RNG.gamma(1.0, 1.0, N)
    ours, theirs = nz.read(declared), nz.read(by_hand)
    expected = theirs.log_joint({**values, "u": u, "v": v})
    assert ours.log_joint({**values, "beta_w": u, "beta_h": v}) == pytest.approx(expected, rel=1e-12)
    point = {f"{name}_log__": np.log(value) for name, value in {**values, "u": u, "v": v}.items()}
    assert by_hand.compile_logp(jacobian=False, mode="FAST_COMPILE")(point) == pytest.approx(expected, rel=1e-10)
    assert nz.check(declared) is None


def test_relevances_are_the_means_of_both_and_fit_the_data():
    structure = nz.read(nz.gamma_nmf(X, K, prior="ard"))
    assert list(structure.unknowns) == ["relevance"]
    shape, scale = (float(np.ravel(arg)[0]) for arg in structure.unknowns["relevance"].prior.args)
    assert (shape, scale) == (5.0, pytest.approx(np.sqrt(12 * X.mean() / K)))
    assert K * (scale / 4) * (scale / 3) == pytest.approx(X.mean())  # E[W H] = K E[relevance^2]
    sparse = nz.gamma_nmf(
        scipy.sparse.csr_array(X), K, prior=nz.ARD(shape=5.0), exposure=(np.full((F, 1), 2.0), 1.0 + np.zeros((1, N)))
    )
    own = nz.read(sparse).unknowns["relevance"].prior.args[1]
    assert float(np.ravel(own)[0]) == pytest.approx(scale / np.sqrt(2))


@pytest.mark.parametrize("prior", ["hpf", nz.ARD(shape=3.0, scale=1.0)])
def test_engines_run_them(prior):
    declared = nz.gamma_nmf(X, K, prior=prior)
    fitted = nz.fit(model=declared, engine="vb", random_seed=1, quiet=True)
    assert bool(group(fitted, "fit")["converged"].all())
    drawn = nz.sample(model=declared, draws=50, tune=50, chains=2, random_seed=1, quiet=True)
    assert group(drawn, "posterior")["W"].shape == (2, 50, F, K)
    assert "search" in group_names(drawn)  # VB's, before the chains


@pytest.mark.parametrize("prior", ["hpf", nz.ARD(shape=3.0, scale=1.0)])
def test_the_evidence_method_has_the_fits_bound(prior):
    """Of one component there is one optimum."""
    declared = nz.gamma_nmf(X, 1, prior=prior)
    fitted = nz.fit(model=declared, engine="vb", tol=1e-8, search=None, random_seed=1, quiet=True)
    bound = nz.evidence(declared, nz.Bound(restarts=2, search=None, tol=1e-8), random_seed=2, quiet=True).attrs[
        "log_evidence"
    ]
    assert bound == pytest.approx(float(group(fitted, "fit")["objective"].max()), rel=1e-8)


def test_sparse_counts_have_them_too():
    first, second = (
        nz.fit(
            model=nz.gamma_nmf(table, K, prior="hpf"), engine="vb", search=None, random_seed=1, max_iter=20, quiet=True
        )
        for table in (X, scipy.sparse.csr_array(X))
    )
    np.testing.assert_allclose(group(first, "fit")["objective"], group(second, "fit")["objective"], rtol=1e-10)


LAWS = [(cells, law) for cells in ("exponential", "half-normal") for law in ("inverse-gamma", "gamma")]


@pytest.mark.parametrize(("cells", "law"), LAWS)
def test_forms_of_ard_are_what_one_would_write(cells, law):
    prior = nz.ARD(shape=4.0, scale=2.0, cells=cells, law=law)
    declared = nz.gamma_nmf(X, K, prior=prior)
    W, H, t = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (K, N)), RNG.gamma(2.0, 1.0, K)
    mean = t if law == "inverse-gamma" else 1 / t
    own = stats.invgamma(4.0, scale=2.0) if law == "inverse-gamma" else stats.gamma(4.0, scale=1 / 2.0)
    of_cells = (
        (lambda m: stats.expon(scale=m)) if cells == "exponential" else lambda v: stats.halfnorm(scale=np.sqrt(v))
    )
    expected = own.logpdf(t).sum() + of_cells(mean).logpdf(W).sum() + of_cells(mean[:, None]).logpdf(H).sum()
    expected += stats.poisson(W @ H).logpmf(X).sum()
    assert nz.read(declared).log_joint({"W": W, "H": H, prior.name: t}) == pytest.approx(expected, rel=1e-12)
    assert nz.check(declared) is None


@pytest.mark.parametrize(("cells", "law"), LAWS)
def test_the_prior_mean_of_x_is_that_of_the_data(cells, law):
    """By simulation, in units of its error."""
    prior = nz.ARD(shape=6.0, cells=cells, law=law)
    args = nz.read(nz.gamma_nmf(X, K, prior=prior)).unknowns[prior.name].prior.args
    shape, scale = (float(np.ravel(arg)[0]) for arg in args)
    rng = np.random.default_rng(4)
    mean = scale / rng.gamma(shape, size=(40_000, K))
    of_w, of_h = (rng.exponential(size=mean.shape) for _ in range(2))
    if cells == "half-normal":
        of_w, of_h, mean = *(np.abs(rng.normal(size=mean.shape)) for _ in range(2)), np.sqrt(mean)
    product = np.sum(of_w * of_h * mean**2, axis=1)
    assert abs(product.mean() - X.mean()) < 4 * product.std() / np.sqrt(len(product))


def test_half_normal_cells_have_no_shapes_and_vb_says_why_not():
    prior = nz.ARD(cells="half-normal")
    with pytest.raises(InputError, match=r"alpha_w: got a value; expected alpha_w to be left out: half-normal cells"):
        nz.gamma_nmf(X, K, prior=prior, alpha_w=2.0)
    with pytest.raises(UnsupportedModel, match=r"W has a half-normal prior, .*engines that can: .*em.*gibbs.*nuts"):
        nz.fit(model=nz.gamma_nmf(X, K, prior=prior), engine="vb")
    for method in ("bound", "chib"):
        with pytest.raises(UnsupportedModel, match="W has a half-normal prior"):
            nz.evidence(nz.gamma_nmf(X, K, prior=prior), method)


def test_gibbs_draws_them_and_what_comes_after_takes_them():
    declared = nz.gamma_nmf(X, 4, prior=nz.ARD(cells="half-normal"))
    drawn = nz.sample(model=declared, draws=40, tune=40, chains=2, random_seed=1, quiet=True)
    assert group(drawn, "posterior")["relevance_variance"].shape == (2, 40, 4)
    assert nz.components_in_use(drawn).attrs["count"] >= 1
    assert nz.predict(drawn, declared, random_seed=1) is not None
    new = nz.project(drawn, X[:, :3], model=declared, quiet=True)
    assert group(new, "posterior")["H"].shape[-2:] == (4, 3)
    told = nz.read(nz.poisson_nmf(X, K, sigma_w=2.0, sigma_h=[[1.0], [3.0]]))
    assert told.H.prior.sigma.value.tolist() == [[1.0], [3.0]]


REFUSED = {
    "log-normal": (
        gamma(0.8, by_row("u", "lognormal", 0.0, 1.0)),
        "not one of the conjugate ones, gamma priors of rates",
    ),
    "gamma of a mean": (gamma(0.8, mean=by_row("u", "gamma", 2.0, 1.0)), "and inverse-gamma priors of means"),
    "of a shape": (gamma(by_row("u", "gamma", 2.0, 1.0), 0.8), "not one of the conjugate ones"),
    "two roles": (gamma(by_row("u", "gamma", 2.0, 1.0), by_row("u", "gamma", 2.0, 1.0)), "more than one role"),
    "beside a free shape": (
        gamma(unknown("s", "flat"), by_row("u", "gamma", 2.0, 1.0)),
        "the shape beside it is unknown",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_conjugate_is_refused(name):
    prior, words = REFUSED[name]
    verdict = vb.supports(model(X, K, prior, gamma(1.0, 1.0)), vb.VB())
    assert words in verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prior": "hfp"}, r"prior: got 'hfp'; expected one of \['hpf', 'ard'\], nz.HPF"),
        ({"prior": "hpf", "beta_w": 1.0}, "beta_w: got a value; expected beta_w to be left out beside prior="),
        ({"prior": "ard", "mean_h": nz.free()}, "mean_h: got a value"),
    ],
)
def test_wrong_arguments_get_a_line(arguments, words):
    with pytest.raises(InputError, match=words):
        nz.gamma_nmf(X, K, **arguments)


@pytest.mark.parametrize("make", [lambda: nz.HPF(shape=0), lambda: nz.HPF(mean=np.inf), lambda: nz.ARD(shape=2.0)])
def test_wrong_recipes_get_a_line(make):
    with pytest.raises(InputError, match=r"^(shape|mean): got .*; expected a"):
        make()


def test_what_an_engine_cannot_do_names_those_that_can():
    with pytest.raises(UnsupportedModel, match=r"engines that can: .*vb"):
        nz.fit(model=nz.gamma_nmf(X, K, prior="hpf"), engine="mcem")
