"""Short runs of every engine, so that what they call is compiled: each entry of the registry on the models it runs.

Kernels are compiled for the types of their arguments. So the models differ in what makes other types and other paths:
how X is stored, what is missing, offsets, unknown hyperparameters, the kind of chain, and enough cells for several
chunks. Of each kind the plain one comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.sparse as sp

from nmf_zoo.distributions.chains import CHAINS, GammaChain
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.models import free, gamma_nmf, gap, hmm_nmf, is_nmf, negative_binomial_nmf, normal_nmf, poisson_nmf
from nmf_zoo.prediction.predictive import predict
from nmf_zoo.reading import read
from nmf_zoo.runtime.compile_times import first_run
from nmf_zoo.runtime.engine import Registration, WholeSampler
from nmf_zoo.streaming.stream import stream
from nmf_zoo.structure import Factorisation
from nmf_zoo.verbs.sample_and_fit import fit, sample
from nmf_zoo.workbench.evidence import evidence

F, N, K = 6, 10, 2
_rng = np.random.default_rng(1)
X = _rng.poisson(3.0, (F, N)) + np.eye(F, N, dtype=int)
POWERS = X + 0.5
MASK = np.arange(F * N).reshape(F, N) % 7 != 3
BATCHES = np.arange(N) % 2
DESIGN = np.linspace(-1.0, 1.0, N)[:, None]
EXPOSURE, BACKGROUND = np.full((F, N), 1.5), np.full((F, N), 0.5)
LARGE = _rng.poisson(3.0, (200, 220)) + 1  # for several chunks
THIN = sp.csr_array(_rng.poisson(0.08, (700, 700)))  # as counts of words are
ALPHA: dict[str, Any] = {"alpha_w": 2.0, "alpha_h": 2.0}


def _with_hyperpriors(builder: Callable[..., pm.Model], data: Any, of_all: str, of_each: str, **more: Any) -> pm.Model:
    """Two unknown hyperparameters with priors of the user's."""
    one = np.float64(1)
    with pm.Model() as model:
        unknown = {of_all: pm.Gamma("a", 2 * one, one), of_each: pm.LogNormal("b", 0 * one, one, shape=(K, 1))}
        builder(data, K, **unknown, **more)
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "counts": lambda: gamma_nmf(X, K, **ALPHA),
    "tall counts": lambda: gamma_nmf(X.T, K, **ALPHA),
    "sparse counts": lambda: gamma_nmf(sp.csr_array(X), K, **ALPHA),
    "ratings": lambda: gamma_nmf(sp.csr_array(X), K, observed="stored", **ALPHA),
    "missing counts": lambda: gamma_nmf(X, K, mask=MASK, **ALPHA),
    "counts with offsets": lambda: gamma_nmf(X, K, exposure=EXPOSURE, background=BACKGROUND, **ALPHA),
    "counts with unknown priors": lambda: gamma_nmf(X, K, alpha_h=free(), mean_h=free(tie="obs")),
    "counts with hyperpriors": lambda: _with_hyperpriors(gamma_nmf, X, "alpha_h", "mean_h"),
    "counts with known W": lambda: pm.do(gamma_nmf(X, K), {"W": np.full((F, K), 0.5)}),
    "counts with half-normal priors": lambda: poisson_nmf(X, K, sigma_w=1.0, sigma_h=2.0),
    "counts without priors": lambda: poisson_nmf(X, K),
    "counts with a prior of H": lambda: gap(X, K, alpha_h=2.0),
    "sparse counts with a prior of H": lambda: gap(sp.csr_array(X), K, alpha_h=2.0),
    "missing counts with a prior of H": lambda: gap(X, K, alpha_h=2.0, mask=MASK),
    "counts with a free rate of H": lambda: gap(X, K, alpha_h=2.0, beta_h=free()),
    "few counts": lambda: gamma_nmf(np.eye(2, dtype=int), K),
    "numbers": lambda: normal_nmf(X, K),
    "numbers of unknown sd": lambda: normal_nmf(X, K, sigma=free(), mask=MASK),
    "numbers with errors": lambda: normal_nmf(X, K, sigma=1.0 + 0.1 * X, beta_w=1.0, sigma_h=1.0),
    "numbers of unknown sd with priors": lambda: _with_hyperpriors(normal_nmf, X, "sigma", "beta_h", alpha_w=0.5),
    "counts in batches": lambda: gamma_nmf(X, K, batch=BATCHES, **ALPHA),
    "sparse counts in batches": lambda: gamma_nmf(sp.csr_array(X), K, batch=BATCHES, **ALPHA),
    "counts with covariates": lambda: gamma_nmf(X, K, design=DESIGN, **ALPHA),
    "overdispersed counts": lambda: negative_binomial_nmf(X, K, **ALPHA),
    "overdispersed counts of free dispersion": lambda: negative_binomial_nmf(X, K, alpha=free(), mask=MASK, **ALPHA),
    "powers": lambda: is_nmf(POWERS, K, **ALPHA),
    "missing powers": lambda: is_nmf(POWERS, K, mask=MASK, **ALPHA),
    "powers with offsets": lambda: is_nmf(POWERS, K, exposure=EXPOSURE, background=BACKGROUND, **ALPHA),
    "powers with unknown priors": lambda: is_nmf(POWERS, K, alpha_w=2.0, beta_h=free(tie="obs")),
    "powers with hyperpriors": lambda: _with_hyperpriors(is_nmf, POWERS, "alpha_h", "beta_h", alpha_w=2.0),
    "powers with flat W": lambda: is_nmf(POWERS, K),
    "powers with known W": lambda: pm.do(is_nmf(POWERS, K), {"W": np.full((F, K), 0.5)}),
}
for own in CHAINS:
    kind, chain = f"{own.prior.family}s", own(*own.example)
    plain = partial(hmm_nmf, X, K, chain=chain, background=0.5)
    MODELS |= {
        kind: partial(plain, alpha_w=2.0),
        f"{kind} of sparse counts": partial(hmm_nmf, sp.csr_array(X), K, chain=chain, alpha_w=2.0),
        f"{kind} of missing counts": partial(plain, alpha_w=2.0, mask=MASK),
        f"{kind} without a prior of W": plain,
    }
    if not own.prior.is_bounded:
        MODELS[f"powers with {kind}"] = partial(is_nmf, POWERS, K, chain=chain, alpha_w=2.0, background=BACKGROUND)
STEADY: dict[str, Any] = {
    "chain": GammaChain(99.0, 99.0, initial=(99.0, 99.0)),
    "alpha_w": 2.0,
}  # its density has a mode
MODELS |= {
    "gamma chains that hardly change": lambda: hmm_nmf(X, K, **STEADY),
    "powers with gamma chains that hardly change": lambda: is_nmf(POWERS, K, **STEADY),
}
MANY: dict[str, Callable[[], pm.Model]] = {  # estimates of evidence would take minutes, of the same kernels
    "many counts": lambda: gamma_nmf(LARGE, K, **ALPHA),
    "many sparse counts": lambda: gamma_nmf(THIN, K, **ALPHA),
    "many powers": lambda: is_nmf(LARGE + 0.5, K, **ALPHA),
}
SMALL = {  # options, where an entry has them
    **{"particles": 120, "draws": 100, "tune": 20, "max_iter": 3, "restarts": 1},
    **{"burn_in": 1, "batch": 4, "first_frames": 4, "start_columns": 4},
}
QUIET: dict[str, Any] = {"random_seed": 1, "quiet": True, "cores": 1}


class Unit(NamedTuple):
    """An entry of the registry on models of one kind, which share most of what is compiled."""

    name: str
    entry: Registration
    models: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Every process has it in its registry."""
        return any(self.entry is entry for entry in registry.OURS)


def units(names: Sequence[str]) -> list[Unit]:
    """Those of entries of these names."""
    found: dict[tuple[str, int], list[str]] = {}
    for place, entry in enumerate(registry.REGISTRY):
        if entry.name in names and entry.has_kernels:
            is_long = entry.verb == "evidence" or isinstance(entry, WholeSampler)
            for model in MODELS if is_long else MODELS | MANY:
                structure = structure_of(model)
                if _is_run_by(entry, structure):
                    found.setdefault((first_run(entry.name, structure), place), []).append(model)
    return [Unit(name, registry.REGISTRY[place], tuple(models)) for (name, place), models in found.items()]


def _is_run_by(entry: Registration, structure: Factorisation) -> bool:
    """Of those that share its name and options it is the one for the model, and it can run it."""
    options = small(entry)
    return entry in registry.fitting(registry.named(options, entry.verb), structure)[:1] and bool(
        registry.verdict(structure, entry, options)
    )


@cache
def model_of(name: str) -> pm.Model:
    return (MODELS | MANY)[name]()


@cache
def structure_of(name: str) -> Factorisation:
    return read(model_of(name))


def small(entry: Registration) -> Any:
    """Its options, made small where they are numbers."""
    numbers = [field.name for field in fields(entry.options) if field.default is not None]
    return entry.options(**{name: SMALL[name] for name in numbers if name in SMALL})


def run(entry: Registration, models: Iterable[str]) -> float:
    """The entry on some models, one after the other; CPU seconds."""
    began = time.process_time()
    for model in models:
        RUNS[entry.verb](model_of(model), small(entry))
    return time.process_time() - began


def _sample(model: pm.Model, options: Any) -> None:
    if isinstance(options, Gibbs):
        _exchange(model, replace(options, temperatures=3))
    predict(sample(20, tune=40, chains=1, start="random", engine=options, model=model, **QUIET), model, random_seed=1)


def _exchange(model: pm.Model, options: Gibbs) -> None:
    """Replica exchange, which has kernels of its own, where it runs."""
    structure = read(model)
    if registry.verdict(structure, *registry.resolve_engine(options, "sample", structure)):
        sample(2, tune=2, chains=1, start="random", engine=options, model=model, **QUIET)


def _fit(model: pm.Model, options: Any) -> None:
    predict(fit(max_iter=3, tol=0.0, draws=2, search=None, engine=options, model=model, **QUIET), model, random_seed=1)


def _stream(model: pm.Model, options: Any) -> None:
    begun, columns = stream(model, engine=options, random_seed=1, cores=1), read(model).shape[0]
    new = np.resize(X if read(model).likelihood.is_discrete else POWERS, (columns, 5))
    begun.update(new)
    begun.result()
    begun.activations(new)


def _evidence(model: pm.Model, options: Any) -> None:
    evidence(model, options, chains=1, **QUIET)


RUNS: dict[str, Callable[[pm.Model, Any], None]] = {
    "sample": _sample,
    "fit": _fit,
    "stream": _stream,
    "evidence": _evidence,
}
