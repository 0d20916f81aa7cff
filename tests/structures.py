"""Models built by hand, without PyMC, and short runs of an engine's own functions on them."""

from __future__ import annotations

import dataclasses

import numpy as np

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import (
    BatchedPoisson,
    Covariates,
    Dense,
    Exponential,
    Factor,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    HyperPrior,
    InverseGammaPrior,
    Known,
    KnownComponents,
    Listed,
    LogLinearGammaPrior,
    Multipliers,
    NegativeBinomial,
    Normal,
    Outer,
    Parameter,
    PartlyKnown,
    Poisson,
    Proper,
    TruncatedNormalPrior,
    Unknown,
    UnknownOfBatches,
    UnknownOfCovariates,
)

LIKELIHOODS = {own.family: own for own in (Poisson, Normal, Exponential, NegativeBinomial, BatchedPoisson)}


def unknown(name, kind, *args, variable_shape=(), shape=None):
    """An unknown hyperparameter; ``shape`` is how it broadcasts, its own shape unless given."""
    prior = HyperPrior(kind=kind, args=tuple(np.asarray(arg, dtype=np.float64) for arg in args))
    return Unknown(
        name=name, variable_shape=variable_shape, shape=variable_shape if shape is None else shape, prior=prior
    )


def unknown_beside(name, kind, *args, known):
    """One value for each row (K, 1) of which ``known`` is NaN; the others are these numbers."""
    known = np.asarray(known, dtype=np.float64)
    are_free = np.isnan(known)
    own = unknown(name, kind, *args, variable_shape=(int(are_free.sum()),), shape=known.shape)
    fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
    return PartlyKnown(**fields, known=np.where(are_free, 1.0, known), are_free=are_free)


def multipliers(batch, n_features, n_batches, shape, rate, transposed=False, name="M"):
    """Of batches of samples, with a gamma prior; ``batch`` is `n_batches` for samples of a reference."""
    own = (n_batches, n_features) if transposed else (n_features, n_batches)
    prior = HyperPrior(kind="gamma", args=(np.asarray(shape, dtype=np.float64), np.asarray(rate, dtype=np.float64)))
    variable = UnknownOfBatches(name=name, variable_shape=own, shape=own, prior=prior)
    return Multipliers(variable=variable, batch=np.asarray(batch, dtype=np.int64), transposed=transposed)


def parameter(value):
    return value if isinstance(value, Parameter) else Known(value=np.asarray(value, dtype=np.float64))


def gamma(shape, rate=None, mean=None):
    second = {"rate": parameter(rate)} if mean is None else {"mean": parameter(mean)}
    return GammaPrior(shape=parameter(shape), **second)


def log_linear(base, design, mu, sigma, rank=2, transposed=False, name="slopes"):
    """A gamma prior of H and covariates (N, J) of its samples; mu and sigma of the slopes broadcast to (K, J)."""
    design = np.asarray(design, dtype=np.float64)
    size = (rank, design.shape[1])
    args = tuple(np.broadcast_to(np.asarray(arg, dtype=np.float64), size) for arg in (mu, sigma))
    prior = HyperPrior(kind="normal", args=tuple(arg.T for arg in args) if transposed else args)
    own = size[::-1] if transposed else size
    slopes = UnknownOfCovariates(name=name, variable_shape=own, shape=own, prior=prior)
    return LogLinearGammaPrior(base=base, covariates=Covariates(variable=slopes, design=design, transposed=transposed))


def inverse_gamma(shape, scale):
    return InverseGammaPrior(shape=parameter(shape), scale=parameter(scale))


def half_normal(sigma=None, **other):
    """With one of sigma, variance and precision."""
    own = other if sigma is None else {"sigma": sigma}
    return HalfNormalPrior(**{role: parameter(value) for role, value in own.items()})


def truncated_normal(mu, sigma):
    return TruncatedNormalPrior(mu=parameter(mu), sigma=parameter(sigma))


def model(
    x,
    rank,
    prior_w,
    prior_h,
    mask=None,
    exposure=None,
    background=None,
    data=None,
    kind="poisson",
    sigma=None,
    alpha=2.0,
    batches=None,
):
    """A factorisation of x (F, N), Poisson's unless said; an array as a prior is a fixed factor, None a flat one."""
    x = np.asarray(x, dtype=np.float64)
    mask = None if mask is None else np.asarray(mask, dtype=bool)
    if data is None:
        data = Dense(values=x if mask is None else np.where(mask, x, 0.0), mask=mask)
    optional = {"exposure": exposure, "background": background}
    arrays = {
        name: value if isinstance(value, Outer | Listed) else np.asarray(value, dtype=np.float64)
        for name, value in optional.items()
        if value is not None
    }
    own = {"sigma": parameter(1.0 if sigma is None else sigma)} if kind == "normal" else {}
    own |= {"alpha": parameter(alpha)} if kind == "negative binomial" else {}
    if batches is not None:
        kind, own = "batched poisson", {"multipliers": batches}
    return Factorisation(
        likelihood=LIKELIHOODS[kind](**own, **arrays),
        W=Factor(name="W", shape=(x.shape[0], rank), prior=_prior(prior_w)),
        H=Factor(name="H", shape=(rank, x.shape[1]), prior=_prior(prior_h)),
        data=data,
    )


def _prior(prior):
    if prior is None:
        return Flat()
    return prior if isinstance(prior, Proper) else Fixed(value=np.asarray(prior, dtype=np.float64))


def beside(factor, values, free):
    """The same factor with known components beside those of its prior; ``values`` are of all, of which these count."""
    axis = 1 if factor.name == "W" else 0
    known = KnownComponents(variable=f"{factor.name}_new", values=np.array(values), free=slice(*free), axis=axis)
    return dataclasses.replace(factor, known=known)


def weight_of(structure):
    """mask * exposure as a plain (F, N) array."""
    exposure, mask = structure.likelihood.exposure, structure.data.mask
    weight = np.array(np.broadcast_to(1.0 if exposure is None else exposure, structure.shape))
    return weight if mask is None else weight * mask


def sample_gibbs(structure, sweeps, moves=gibbs.MOVES, seed=0, tune=100, thin=1, step=None):
    """Every thin-th state after warm-up as arrays: W, H, the hyperparameters, and the counts by component of C."""
    step = step or gibbs.step
    problem, key = gibbs.prepare(structure, gibbs.Gibbs(moves=moves), SERIAL), seed_key(seed)
    state = gibbs.init(problem, child(key, 0), {})
    kept = []
    for sweep in range(tune + sweeps):
        state, _ = step(problem, state, child(key, 1, sweep))
        if sweep >= tune and (sweep - tune) % thin == 0:
            arrays = {"W": state.W, "H": state.Ht.T, "of_features": state.of_features, "of_samples": state.of_samples}
            kept.append({name: np.array(value) for name, value in {**arrays, **state.values}.items()})
    return stack(kept)


def stack(draws):
    """A list of dicts of arrays to a dict of arrays with a leading axis."""
    return {name: np.stack([one[name] for one in draws]) for name in draws[0]}
