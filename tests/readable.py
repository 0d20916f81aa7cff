"""Models that the reader accepts, written as a user would: other names, other spellings. Tables for several tests.

Constants are np.float64: PyMC keeps Python floats in single precision, which moves the log-density by 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from nmf_zoo.distributions import RealPoisson, SparsePoisson, cell_rates

F, K, N = 5, 3, 7
RNG = np.random.default_rng(20)
X = RNG.poisson(3.0, (F, N))
MASK = RNG.uniform(size=(F, N)) < 0.7
ROWS, COLS = np.nonzero(MASK)
FEW_ROWS, FEW_COLS = np.array([3, 0, 4]), np.array([6, 2, 0])
EXPOSURE = RNG.uniform(0.5, 2.0, N)
BACKGROUND = RNG.uniform(0.1, 1.0, (F, 1))
KNOWN_B = RNG.gamma(1.0, size=(K, N))
LENGTHS, DEPTHS, OF_FEW = np.linspace(0.5, 2.0, F)[:, None], np.linspace(0.8, 1.7, N)[None], np.array([0.5, 3.0, 1.5])
COORDS = {"word": list("abcde"), "topic": range(K), "text": range(10, 10 + N)}
one, two, three = np.float64(1.0), np.float64(2.0), np.float64(3.0)


def gamma(name, *shape, alpha=two, beta=three):
    return pm.Gamma(name, alpha, beta, shape=shape)


# -- the product: () -> mean, from factors A and B -----------------------------------------------------------------

PRODUCTS = {
    "matmul": lambda: gamma("A", F, K) @ gamma("B", K, N),
    "pt.matmul": lambda: pt.matmul(gamma("A", F, K), gamma("B", K, N)),
    "pm.math.dot": lambda: pm.math.dot(gamma("A", F, K), gamma("B", K, N)),
    "pt.dot": lambda: pt.dot(gamma("A", F, K), gamma("B", K, N)),
    "method": lambda: gamma("A", F, K).dot(gamma("B", K, N)),
    "left transposed": lambda: gamma("A", K, F).T @ gamma("B", K, N),
    "right transposed": lambda: gamma("A", F, K) @ gamma("B", N, K).T,
    "both transposed": lambda: gamma("A", K, F).T @ gamma("B", N, K).T,
    "whole transposed": lambda: (gamma("B", N, K) @ gamma("A", K, F)).T,
    "dot of transposes": lambda: pt.dot(gamma("A", K, F).T, gamma("B", N, K).T),
    "twice transposed": lambda: gamma("A", F, K).T.T @ gamma("B", K, N),
    "einsum": lambda: pt.einsum("fk,kn->fn", gamma("A", F, K), gamma("B", K, N)),
    "einsum, other orders": lambda: pt.einsum("kf,nk->fn", gamma("A", K, F), gamma("B", N, K)),
    "einsum, swapped": lambda: pt.einsum("nk,kf->fn", gamma("B", N, K), gamma("A", K, F)),
    "einsum, implicit": lambda: pt.einsum("ab,bc", gamma("A", F, K), gamma("B", K, N)),
    "Deterministic": lambda: pm.Deterministic("mean", gamma("A", F, K) @ gamma("B", K, N)),
    "Deterministic factor": lambda: pm.Deterministic("A2", gamma("A", F, K)) @ gamma("B", K, N),
}

# -- around it: product -> mean ------------------------------------------------------------------------------------

OFFSETS = {
    "exposure": lambda P: EXPOSURE * P,
    "exposure behind": lambda P: P * EXPOSURE,
    "exposure as data": lambda P: pm.Data("exposure", EXPOSURE) * P,
    "exposure of each feature": lambda P: np.arange(1.0, F + 1)[:, None] * P,
    "exposure scalar": lambda P: two * P,
    "division": lambda P: P / EXPOSURE,
    "background": lambda P: P + BACKGROUND,
    "background in front": lambda P: BACKGROUND + P,
    "background of integers": lambda P: P + pm.Data("background", np.ones((F, N), dtype=int)),
    "both": lambda P: EXPOSURE * P + BACKGROUND,
    "nested": lambda P: two * (EXPOSURE * (P + BACKGROUND) + 0.1) + BACKGROUND,
    "transposed around": lambda P: (P.T * EXPOSURE[:, None] + BACKGROUND.T).T,
}

# -- priors of B (K, N): () -> B -----------------------------------------------------------------------------------


def positive(name, **kwargs):
    return pm.HalfFlat(name, **kwargs)


def rate_and_mean(alpha, mean):
    return pm.Gamma("B", alpha, alpha / mean, shape=(K, N))


def both_as_shape_and_rate():
    a, b = positive("a"), positive("b", shape=(K, 1))
    return pm.Gamma("B", a, b, shape=(K, N))


def same_twice():
    a = positive("a")
    return pm.Gamma("B", a, a, shape=(K, N))


def inverse_same_twice():
    a = positive("a")
    return pm.InverseGamma("B", a, a, shape=(K, N))


def same_twice_per_component():
    a = positive("a", shape=K)[:, None]
    return pm.Gamma("B", a, a, shape=(K, N))


PRIORS = {
    "HalfFlat": lambda: pm.HalfFlat("B", shape=(K, N)),
    "Exponential": lambda: pm.Exponential("B", three, shape=(K, N)),
    "Exponential, free rate": lambda: pm.Exponential("B", positive("r"), shape=(K, N)),
    "Exponential, free scale": lambda: pm.Exponential("B", scale=positive("m"), shape=(K, N)),
    "Exponential, known scale": lambda: pm.Exponential("B", scale=three, shape=(K, N)),
    "Gamma, arrays": lambda: pm.Gamma("B", np.arange(1.0, K + 1)[:, None], np.arange(1.0, N + 1), shape=(K, N)),
    "Gamma, data": lambda: pm.Gamma("B", pm.Data("a", two), pm.Data("b", np.arange(1.0, N + 1)), shape=(K, N)),
    "Gamma, expression": lambda: pm.Gamma("B", pt.exp(pt.as_tensor(one)) * 2, pt.sqrt(pm.Data("b", two)), shape=(K, N)),
    "Gamma, mu and sigma": lambda: pm.Gamma("B", mu=two, sigma=three, shape=(K, N)),
    "free shape": lambda: pm.Gamma("B", positive("a"), two, shape=(K, N)),
    "free shape of each component": lambda: pm.Gamma("B", positive("a", shape=K)[:, None], two, shape=(K, N)),
    "free rate of each sample": lambda: pm.Gamma("B", two, positive("b", shape=N), shape=(K, N)),
    "free rate of each cell": lambda: pm.Gamma("B", two, positive("b", shape=(K, N)), shape=(K, N)),
    "free shape and rate": both_as_shape_and_rate,
    "shape and rate one variable": same_twice,
    "shape and rate one variable of each component": same_twice_per_component,
    "known shape, free mean": lambda: rate_and_mean(two, positive("m")),
    "known shape array, free mean": lambda: rate_and_mean(pt.as_tensor(np.arange(1.0, N + 1)), positive("m")),
    "free shape, known mean": lambda: rate_and_mean(positive("a"), two),
    "free shape, free mean": lambda: rate_and_mean(positive("a"), positive("m")),
    "shape of each component, free mean": lambda: rate_and_mean(positive("a", shape=K)[:, None], positive("m")),
    "free shape, mean of each sample": lambda: rate_and_mean(positive("a"), positive("m", shape=N)),
    "shape of each component, mean of each sample": lambda: rate_and_mean(
        positive("a", shape=(K, 1)), positive("m", shape=(1, N))
    ),
    "InverseGamma": lambda: pm.InverseGamma("B", two, three, shape=(K, N)),
    "InverseGamma, arrays": lambda: pm.InverseGamma(
        "B", np.arange(1.0, K + 1)[:, None], np.arange(1.0, N + 1), shape=(K, N)
    ),
    "InverseGamma, data": lambda: pm.InverseGamma("B", pm.Data("a", two), pm.Data("b", three), shape=(K, N)),
    "InverseGamma, mu and sigma": lambda: pm.InverseGamma("B", mu=two, sigma=three, shape=(K, N)),
    "InverseGamma, free shape": lambda: pm.InverseGamma("B", positive("a"), two, shape=(K, N)),
    "InverseGamma, free scale of each component": lambda: pm.InverseGamma(
        "B", two, positive("b", shape=K)[:, None], shape=(K, N)
    ),
    "InverseGamma, one variable": inverse_same_twice,
    "InverseGamma, both of each sample": lambda: pm.InverseGamma(
        "B", positive("a", shape=N), pm.Gamma("b", two, three, shape=(1, N)), shape=(K, N)
    ),
    "HalfNormal": lambda: pm.HalfNormal("B", three, shape=(K, N)),
    "HalfNormal, of each sample": lambda: pm.HalfNormal("B", sigma=np.arange(1.0, N + 1), shape=(K, N)),
    "HalfNormal, known tau": lambda: pm.HalfNormal("B", tau=np.float64(4.0), shape=(K, N)),
    "HalfNormal, free sigma": lambda: pm.HalfNormal("B", sigma=positive("s", shape=K)[:, None], shape=(K, N)),
    "HalfNormal, root": lambda: pm.HalfNormal("B", sigma=pm.math.sqrt(positive("v")), shape=(K, N)),
    "HalfNormal, root of each component": lambda: pm.HalfNormal(
        "B", sigma=pm.math.sqrt(positive("v", shape=K)[:, None]), shape=(K, N)
    ),
    "HalfNormal, root as a power": lambda: pm.HalfNormal("B", sigma=positive("v", shape=N) ** 0.5, shape=(K, N)),
    "HalfNormal, tau": lambda: pm.HalfNormal("B", tau=positive("p", shape=K)[:, None], shape=(K, N)),
    "HalfNormal, one over a root": lambda: pm.HalfNormal("B", sigma=1 / pm.math.sqrt(positive("p")), shape=(K, N)),
    "HalfNormal, power of a precision": lambda: pm.HalfNormal("B", sigma=positive("p") ** -0.5, shape=(K, N)),
    "known": lambda: pt.as_tensor(KNOWN_B),
    "known data": lambda: pm.Data("B", KNOWN_B),
    "known data of integers": lambda: pm.Data("B", np.full((K, N), 2)),
}

# -- hyperpriors: () -> hyperparameter -----------------------------------------------------------------------------

HYPER_PRIORS = {
    "HalfFlat": lambda: pm.HalfFlat("a"),
    "Gamma": lambda: pm.Gamma("a", two, three),
    "Gamma, entries": lambda: pm.Gamma("a", two, np.arange(1.0, N + 1), shape=N),
    "Exponential": lambda: pm.Exponential("a", three),
    "InverseGamma": lambda: pm.InverseGamma("a", three, two),
    "LogNormal": lambda: pm.LogNormal("a", np.float64(-1.0), two),
    "HalfNormal": lambda: pm.HalfNormal("a", two),
    "Uniform": lambda: pm.Uniform("a", np.float64(0.5), two),
}


def n_and_p(mean, alpha):
    return pm.NegativeBinomial("counts", n=alpha, p=alpha / (mean + alpha), observed=X)


# -- data and likelihoods: product -> None -------------------------------------------------------------------------

DATA = {
    "constant": lambda P: pm.Poisson("counts", P, observed=X),
    "data": lambda P: pm.Poisson("counts", P, observed=pm.Data("x", X)),
    "float data": lambda P: pm.Poisson("counts", P, observed=pm.Data("x", X.astype(float))),
    "not observed": lambda P: pm.Poisson("counts", P),
    "listed": lambda P: pm.Poisson("counts", P[ROWS, COLS], observed=X[ROWS, COLS]),
    "listed as data": lambda P: pm.Poisson(
        "counts", P[pm.Data("rows", ROWS), pm.Data("cols", COLS)], observed=X[ROWS, COLS]
    ),
    "few listed": lambda P: pm.Poisson("counts", P[FEW_ROWS, FEW_COLS], observed=X[FEW_ROWS, FEW_COLS]),
    "listed from the end": lambda P: pm.Poisson("counts", P[FEW_ROWS - F, FEW_COLS], observed=X[FEW_ROWS, FEW_COLS]),
    "boolean index": lambda P: pm.Poisson("counts", P[MASK], observed=X[MASK]),
    "listed with offsets": lambda P: pm.Poisson(
        "counts", (EXPOSURE * P + BACKGROUND)[ROWS, COLS], observed=X[ROWS, COLS]
    ),
    "masked array": lambda P: pm.Poisson("counts", P, observed=np.ma.masked_array(X, ~MASK)),
    "masked array with offsets": lambda P: pm.Poisson(
        "counts", P * EXPOSURE + BACKGROUND, observed=np.ma.masked_array(X, ~MASK)
    ),
    "real": lambda P: RealPoisson("counts", P, observed=X + 0.5),
    "real listed": lambda P: RealPoisson("counts", P[ROWS, COLS], observed=X[ROWS, COLS] + 0.5),
    "normal": lambda P: pm.Normal("counts", P, two, observed=X + 0.5),
    "normal, tau": lambda P: pm.Normal("counts", P, tau=two, observed=X + 0.5),
    "normal, free sigma": lambda P: pm.Normal("counts", P, pm.HalfFlat("s"), observed=X + 0.5),
    "normal, random sigma": lambda P: pm.Normal("counts", P, pm.HalfNormal("s", two), observed=X + 0.5),
    "normal listed": lambda P: pm.Normal("counts", P[ROWS, COLS], pm.HalfFlat("s"), observed=X[ROWS, COLS] - 9.0),
    "normal masked": lambda P: pm.Normal(
        "counts", P, pm.HalfNormal("s", two), observed=np.ma.masked_array(X + 0.5, ~MASK)
    ),
    "normal masked, known sigma": lambda P: pm.Normal("counts", P, two, observed=np.ma.masked_array(X + 0.5, ~MASK)),
    "normal, not observed": lambda P: pm.Normal("counts", P, two),
    "negative binomial": lambda P: pm.NegativeBinomial("counts", mu=P, alpha=two, observed=X),
    "negative binomial, free alpha": lambda P: pm.NegativeBinomial("counts", P, pm.HalfFlat("a"), observed=X),
    "negative binomial, random alpha": lambda P: pm.NegativeBinomial("counts", P, gamma("a"), observed=X),
    "negative binomial, n and p": lambda P: n_and_p(P, gamma("a")),
    "negative binomial, of each feature": lambda P: pm.NegativeBinomial(
        "counts", P, gamma("a", F)[:, None], observed=X
    ),
    "negative binomial, of each sample": lambda P: pm.NegativeBinomial("counts", P, gamma("a", N), observed=X),
    "negative binomial, column": lambda P: pm.NegativeBinomial("counts", P, gamma("a", F, 1), observed=X),
    "negative binomial, known column": lambda P: pm.NegativeBinomial("counts", P, LENGTHS, observed=X),
    "negative binomial, known of each sample": lambda P: pm.NegativeBinomial(
        "counts", P, pm.Data("a", DEPTHS[0]), observed=X
    ),
    "negative binomial, offsets": lambda P: pm.NegativeBinomial(
        "counts", EXPOSURE * P + BACKGROUND, gamma("a"), observed=X
    ),
    "negative binomial listed": lambda P: pm.NegativeBinomial(
        "counts", P[ROWS, COLS], gamma("a"), observed=X[ROWS, COLS]
    ),
    "negative binomial listed, of each feature": lambda P: pm.NegativeBinomial(
        "counts", P[ROWS, COLS], gamma("a", F)[ROWS], observed=X[ROWS, COLS]
    ),
    "negative binomial listed, of each sample": lambda P: pm.NegativeBinomial(
        "counts", P[ROWS, COLS], gamma("a", 1, N)[0, COLS], observed=X[ROWS, COLS]
    ),
    "negative binomial listed, known column": lambda P: pm.NegativeBinomial(
        "counts", P[ROWS, COLS], LENGTHS[ROWS, 0], observed=X[ROWS, COLS]
    ),
    "negative binomial masked": lambda P: pm.NegativeBinomial(
        "counts", P, gamma("a"), observed=np.ma.masked_array(X, ~MASK)
    ),
    "negative binomial, not observed": lambda P: pm.NegativeBinomial("counts", P, two),
    "exponential, scale": lambda P: pm.Exponential("counts", scale=P, observed=X + 0.5),
    "exponential, zeros": lambda P: pm.Exponential("counts", scale=P, observed=X.astype(float)),
    "exponential, integers": lambda P: pm.Exponential("counts", scale=P, observed=X),
    "exponential, rate": lambda P: pm.Exponential("counts", 1 / P, observed=X + 0.5),
    "exponential, rate in double precision": lambda P: pm.Exponential("counts", lam=one / P, observed=X + 0.5),
    "exponential, reciprocal": lambda P: pm.Exponential("counts", pt.reciprocal(P), observed=pm.Data("x", X + 0.5)),
    "exponential, ones": lambda P: pm.Exponential("counts", np.ones((F, N)) / P, observed=X + 0.5),
    "exponential, power": lambda P: pm.Exponential("counts", P**-1, observed=X + 0.5),
    "exponential, named rate": lambda P: pm.Exponential("counts", pm.Deterministic("rate", 1 / P), observed=X + 0.5),
    "exponential, offsets": lambda P: pm.Exponential("counts", scale=EXPOSURE * P + BACKGROUND, observed=X + 0.5),
    "exponential, rate with offsets": lambda P: pm.Exponential(
        "counts", 1 / (EXPOSURE * P + BACKGROUND), observed=X + 0.5
    ),
    "exponential listed": lambda P: pm.Exponential("counts", scale=P[ROWS, COLS], observed=X[ROWS, COLS] + 0.5),
    "exponential listed, rate": lambda P: pm.Exponential("counts", 1 / P[ROWS, COLS], observed=X[ROWS, COLS] + 0.5),
    "exponential, listed rate": lambda P: pm.Exponential("counts", (1 / P)[ROWS, COLS], observed=X[ROWS, COLS] + 0.5),
    "exponential masked": lambda P: pm.Exponential("counts", scale=P, observed=np.ma.masked_array(X + 0.5, ~MASK)),
    "exponential masked, rate": lambda P: pm.Exponential("counts", 1 / P, observed=np.ma.masked_array(X + 0.5, ~MASK)),
    "exponential, not observed": lambda P: pm.Exponential("counts", scale=P),
}


def sparse(complete, turned=False, values=X):
    W, H = (gamma("A", K, F).T, gamma("B", N, K).T) if turned else (gamma("A", F, K), gamma("B", K, N))
    observed = values[ROWS, COLS].astype(float)
    SparsePoisson("counts", W, H, ROWS, COLS, complete=complete, observed=observed)


def rates():
    mean = cell_rates(gamma("A", F, K), gamma("B", K, N), FEW_ROWS, FEW_COLS)
    RealPoisson("counts", mean, observed=X[FEW_ROWS, FEW_COLS].astype(float))


def sparse_with_offsets():
    A, B = LENGTHS * gamma("A", F, K), gamma("B", K, N)
    observed = X[ROWS, COLS].astype(float)
    SparsePoisson("counts", A, B, ROWS, COLS, exposure=DEPTHS, background=pm.Data("b", 0.4), observed=observed)


def rates_with_offsets():
    mean = cell_rates(gamma("A", F, K), gamma("B", K, N), FEW_ROWS, FEW_COLS)
    mean = two * (OF_FEW * mean + 0.3) / OF_FEW + OF_FEW
    RealPoisson("counts", mean, observed=X[FEW_ROWS, FEW_COLS].astype(float))


def scaled():
    poisson((LENGTHS * gamma("A", F, K)) @ (gamma("B", K, N) * DEPTHS))


def scaled_and_turned():
    poisson(two * ((gamma("B", N, K) / DEPTHS.T) @ (LENGTHS * gamma("A", F, K) * two).T).T)


def with_dims():
    a = pm.HalfFlat("a", dims="topic")
    A = pm.Gamma("A", two, three, dims=("word", "topic"))
    B = pm.Gamma("B", a[:, None], a[:, None] / pm.HalfFlat("m", dims="text"), dims=("topic", "text"))
    pm.Poisson("counts", A @ B, observed=pm.Data("x", X, dims=("word", "text")), dims=("word", "text"))


def with_dims_masked():
    A, B = pm.HalfFlat("A", dims=("word", "topic")), pm.Gamma("B", two, three, dims=("topic", "text"))
    pm.Poisson("counts", A @ B, observed=np.ma.masked_array(X, ~MASK), dims=("word", "text"))


def shared_by_both():
    a = pm.Gamma("a", two, three)
    pm.Poisson("counts", gamma("A", F, K, alpha=a) @ gamma("B", K, N, beta=a), observed=X)


def shared_by_turned():
    a = pm.HalfFlat("a", shape=K)
    A, B = gamma("A", F, K, alpha=a), gamma("B", N, K, alpha=a, beta=a)
    pm.Poisson("counts", A @ B.T, observed=X)


def data_as_factor():
    pm.Poisson("counts", pm.Data("A", np.ones((F, K))) @ pm.HalfFlat("B", shape=(K, N)), observed=X)


WHOLE = {
    "sparse, complete": lambda: sparse(True),
    "sparse, incomplete": lambda: sparse(False),
    "sparse, turned": lambda: sparse(True, turned=True),
    "sparse, real": lambda: sparse(True, values=X + 0.5),
    "sparse with offsets": sparse_with_offsets,
    "rates of cells": rates,
    "rates of cells with offsets": rates_with_offsets,
    "rows and columns scaled": scaled,
    "rows and columns scaled, turned": scaled_and_turned,
    "dims": with_dims,
    "dims, masked": with_dims_masked,
    "one hyperparameter for both": shared_by_both,
    "one hyperparameter for both, turned": shared_by_turned,
    "known factor": data_as_factor,
}


def product():
    return gamma("A", F, K) @ gamma("B", K, N)


def poisson(mean):
    return pm.Poisson("counts", mean, observed=X)


def build(declare) -> pm.Model:
    """The model that ``declare()`` fills."""
    with pm.Model(coords=COORDS) as model:
        declare()
    return model


def turned(make) -> pm.Model:
    """A prior of the (K, N) factor B, used for a transposed factor instead: X.T = B.T @ A."""
    return build(lambda: pm.Poisson("counts", make().T @ gamma("A", K, F), observed=np.ascontiguousarray(X.T)))


def accepted() -> dict[str, Callable[[], pm.Model]]:
    """name -> function that builds the model, for every table above."""
    makers = {f"product: {name}": lambda make=make: build(lambda: poisson(make())) for name, make in PRODUCTS.items()}
    makers |= {f"offset: {k}": lambda make=make: build(lambda: poisson(make(product()))) for k, make in OFFSETS.items()}
    makers |= {
        f"prior: {k}": lambda make=make: build(lambda: poisson(gamma("A", F, K) @ make())) for k, make in PRIORS.items()
    }
    untied = "free rate of each cell"  # can't be turned: see the refusals
    makers |= {f"turned prior: {k}": lambda make=make: turned(make) for k, make in PRIORS.items() if k != untied}
    makers |= {
        f"hyperprior: {k}": lambda make=make: build(
            lambda: poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=make(), beta=two))
        )
        for k, make in HYPER_PRIORS.items()
    }
    makers |= {f"data: {k}": lambda make=make: build(lambda: make(product())) for k, make in DATA.items()}
    makers |= {f"model: {k}": lambda make=make: build(make) for k, make in WHOLE.items()}
    makers["pm.do"] = lambda: pm.do(build(lambda: poisson(product())), {"A": np.full((F, K), 0.5)})
    makers["pm.do on both"] = lambda: pm.do(
        build(lambda: pm.Normal("counts", EXPOSURE * product() + BACKGROUND, pm.HalfFlat("s"), observed=X + 0.5)),
        {"A": np.full((F, K), 0.5), "B": KNOWN_B},
    )
    makers["pm.observe"] = lambda: pm.observe(build(lambda: pm.Poisson("counts", product())), {"counts": X})
    makers["pm.do and observe"] = lambda: pm.observe(
        pm.do(build(lambda: pm.Normal("counts", product(), two)), {"B": np.ones((K, N))}), {"counts": X + 0.5}
    )
    return makers
