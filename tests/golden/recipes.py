"""What is made: a call at fixed seeds for everything that draws, fits, streams or judges, by name.

Models are those of the contract tests, and some that are large enough for whole lanes and several tiles. Engines,
streams and methods are found by asking: a public class of options is one of an engine if ``nz.sample`` or ``nz.fit``
takes it, and so on. So nothing is typed out, and only public names are used: the same recipes run on earlier commits.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import product
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp

import nmf_zoo as nz
from tests.contract.test_engines import MAKERS, MASK, F, K, X

Case = tuple[str, Callable[[], Any]]

CALLS: dict[str, Callable[..., Any]] = {
    "sample": partial(nz.sample, start="random"),
    "fit": partial(nz.fit, search=None),
}
SEED: dict[str, Any] = {"random_seed": 1, "quiet": True, "cores": 1}
FEW = {"sample": {"draws": 6, "tune": 3, "chains": 2}, "fit": {"max_iter": 5, "draws": 6, "restarts": 2}}
MORE: dict[str, dict[str, Any]] = {
    "sample": {"draws": 30, "tune": 120, "thin": 3, "chains": 1, "discard_tuned_samples": False},
    "fit": {"max_iter": 25, "draws": 6, "restarts": 1, "tol": 0.0},
}
SMALL = {  # options of streams and methods, where they have them
    **{"particles": 120, "draws": 100, "tune": 20, "max_iter": 40, "restarts": 2},
    **{"burn_in": 3, "batch": 4, "first_frames": 4, "start_columns": 4, "search": None},
}

RNG = np.random.default_rng(5)
TALL, RANK = (70, 45), 5
COUNTS = RNG.poisson(RNG.gamma(1.0, 2.0, (TALL[0], RANK)) @ RNG.gamma(1.0, 1.0, (RANK, TALL[1]))) + np.eye(*TALL)
POWERS = COUNTS + RNG.exponential(size=TALL) + 0.1
SERIES = RNG.poisson(RNG.gamma(1.0, 4.0, (TALL[0], 2)) @ RNG.integers(0, 2, (2, TALL[1])) + 0.5)
OBSERVED = RNG.random(TALL) > 0.1
THIN = sp.csr_array(np.where(RNG.random(TALL) < 0.2, COUNTS, 0) + np.eye(*TALL))
PRIORS: dict[str, Any] = {"alpha_w": 0.8, "alpha_h": 0.8}
LARGER = {
    "poisson_nmf, larger": lambda: nz.poisson_nmf(COUNTS, RANK),
    "normal_nmf, larger": lambda: nz.normal_nmf(POWERS, RANK),
    "gamma_nmf, larger": lambda: nz.gamma_nmf(COUNTS, RANK, **PRIORS),
    "gamma_nmf, larger mask": lambda: nz.gamma_nmf(COUNTS, RANK, mask=OBSERVED, **PRIORS),
    "gamma_nmf, larger sparse": lambda: nz.gamma_nmf(THIN, RANK, **PRIORS),
    "gamma_nmf, larger offsets": lambda: nz.gamma_nmf(COUNTS, RANK, exposure=POWERS, background=0.5, **PRIORS),
    "gap, larger": lambda: nz.gap(COUNTS, RANK, alpha_h=2.0),
    "is_nmf, larger": lambda: nz.is_nmf(POWERS, RANK, alpha_w=2.0),
    "is_nmf, larger mask": lambda: nz.is_nmf(POWERS, RANK, alpha_w=2.0, mask=OBSERVED),
    "hmm_nmf, larger": lambda: nz.hmm_nmf(SERIES, 2, alpha_w=2.0, background=0.5),
    "hmm_nmf, larger log-normal": lambda: nz.hmm_nmf(SERIES, 2, alpha_w=2.0, chain=nz.LogNormalAR(0.0, 0.5, 1.0)),
}
KNOWN, SPARSE = np.linspace(0.2, 1.1, F)[:, None], sp.csr_array(X)
PER_CELL = sp.csr_array(np.linspace(0.5, 2.0, X.size).reshape(X.shape) * (X > 0))
WIDER = {  # priors of priors, half-normal cells, known components, exposures of sparse data
    "gamma_nmf, hpf": lambda: nz.gamma_nmf(X, K, prior="hpf"),
    "gamma_nmf, ard": lambda: nz.gamma_nmf(X, K, prior="ard"),
    "gamma_nmf, ard of rates": lambda: nz.gamma_nmf(X, K, prior=nz.ARD(law="gamma")),
    "gamma_nmf, ard of variances": lambda: nz.gamma_nmf(X, K, prior=nz.ARD(cells="half-normal")),
    "gamma_nmf, ard of precisions": lambda: nz.gamma_nmf(X, K, prior=nz.ARD(cells="half-normal", law="gamma")),
    "poisson_nmf, half-normal": lambda: nz.poisson_nmf(X, K, sigma_w=1.0, sigma_h=3.0),
    "normal_nmf, half-normal": lambda: nz.normal_nmf(X, K, sigma_w=1.0, sigma_h=3.0, mask=MASK),
    "poisson_nmf, known": lambda: nz.poisson_nmf(X, K, known=KNOWN),
    "normal_nmf, known": lambda: nz.normal_nmf(X, K, known=KNOWN),
    "gamma_nmf, known": lambda: nz.gamma_nmf(X, K, known=KNOWN),
    "gamma_nmf, known, believed": lambda: nz.gamma_nmf(X, K, known=KNOWN, known_strength=50.0),
    "gamma_nmf, known H": lambda: nz.gamma_nmf(X, K, known_h=X[:1] + 1.0),
    "gap, known": lambda: nz.gap(X, K, alpha_h=2.0, known=KNOWN),
    "hmm_nmf, known": lambda: nz.hmm_nmf(X, K, background=0.5, known=KNOWN),
    "is_nmf, known": lambda: nz.is_nmf(X + 0.25, K, alpha_w=2.0, known=KNOWN),
    "gamma_nmf, sparse, outer exposure": lambda: nz.gamma_nmf(SPARSE, K, exposure=(KNOWN + 0.5, X[:1] + 1.0)),
    "gamma_nmf, ratings, exposure": lambda: nz.gamma_nmf(SPARSE, K, observed="stored", exposure=PER_CELL),
}
RANKED = {
    "gamma_nmf": lambda rank: nz.gamma_nmf(COUNTS[:6, :8], rank, **PRIORS),
    "gamma_nmf, mask": lambda rank: nz.gamma_nmf(COUNTS[:6, :8], rank, mask=OBSERVED[:6, :8], **PRIORS),
    "gamma_nmf, few counts": lambda rank: nz.gamma_nmf(np.eye(2, 3, dtype=int), rank),
    "is_nmf": lambda rank: nz.is_nmf(POWERS[:6, :8], rank, alpha_w=2.0),
}
COLUMNS = RNG.poisson(4.0, (F, 9)) + 1


@cache
def model_of(name: str) -> Any:
    return (MAKERS | LARGER | WIDER)[name]()


# -- who takes what ----------------------------------------------------------------------------------------------


def takers(call: Callable[[Any], Any]) -> list[type]:
    """The public classes of options that a call takes for its engine or method, whatever it says to the model."""
    found = []
    for own in [getattr(nz, name) for name in nz.__all__]:
        if not (isinstance(own, type) and is_dataclass(own)) or any(_is_needed(field) for field in fields(own)):
            continue
        try:
            call(own())
        except nz.InputError as error:
            if error.name in ("engine", "method"):
                continue
        except nz.UnsupportedModel:
            pass
        found.append(own)
    return found


def _is_needed(field: Any) -> bool:
    return field.default is field.default_factory


@cache
def engines() -> dict[type, str]:
    """The verb of every class of options of an engine."""
    return {own: verb for verb in CALLS for own in takers(partial(_ask, verb))}


def _ask(verb: str, options: Any) -> None:
    CALLS[verb](model=model_of("gamma_nmf, nothing observed"), engine=options)


def quick_engines() -> list[type]:
    """Without PyMC's, which is compiled for each model anew."""
    return [own for own in engines() if own is not nz.NUTS]


@cache
def streams() -> list[type]:
    return takers(lambda options: nz.stream(model_of("gamma_nmf, nothing observed"), engine=options))


@cache
def methods() -> list[type]:
    return takers(lambda options: nz.evidence(model_of("gamma_nmf, nothing observed"), options))


@cache
def judges() -> list[type]:
    nothing = model_of("gamma_nmf, nothing observed")
    return takers(lambda options: nz.select_rank(lambda _: nothing, [1], method=options))


def small(own: type, **more: Any) -> Any:
    """Options that are quick to run with."""
    return own(**{field.name: SMALL[field.name] for field in fields(own) if field.name in SMALL} | more)


def variants(own: type) -> Iterator[tuple[str, Any]]:
    """Each field with words, yes and no, or None to choose from: each choice but the default, one at a time."""
    for name, hint in get_type_hints(own).items():
        default = getattr(own(), name)
        for choice in _choices(hint):
            if choice != default:
                yield f"{name}={choice!r}", {name: choice}


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    plain: dict[Any, list[Any]] = {bool: [True, False], type(None): [None], tuple[str, ...]: [()]}
    return plain.get(hint, [])


# -- runs --------------------------------------------------------------------------------------------------------


def run(own: type, name: str, change: Any = None, **arguments: Any) -> Any:
    """A few draws of two chains, or a few iterations of two restarts."""
    verb = engines()[own]
    given = {**SEED, **FEW[verb], "model": model_of(name), "engine": own(**change or {}), **arguments}
    return CALLS[verb](**given)


@cache
def pair(own: type, name: str) -> Any:
    return run(own, name)


@cache
def some_result(name: str) -> tuple[type, Any]:
    """The result of the first engine that runs this model."""
    for own in quick_engines():
        try:
            return own, pair(own, name)
        except nz.UnsupportedModel:
            pass
    raise nz.UnsupportedModel(f"no engine runs {name}")


def stream(own: type, name: str, change: Any = None, **arguments: Any) -> dict[str, Any]:
    """After the model's own columns and two blocks: everything that can be read from a stream."""
    options = small(own, **change or {})
    stream = nz.stream(model_of(name), engine=options, **{"random_seed": 1, "cores": 1, **arguments})
    rows = np.resize(COLUMNS, (len(stream.W) if stream.columns_seen else F, COLUMNS.shape[1]))
    for block in (rows[:, :5], rows[:, 5]):
        stream.update(block)
    found = {"result": stream.result(), "W": stream.W, "activations": stream.activations(rows[:, 6:], first=9)}
    try:
        return {**found, "filtered": stream.filtered}
    except nz.InputError:  # not one of a chain
        return found


def evidence(own: type, name: str, change: Any = None, **arguments: Any) -> Any:
    return nz.evidence(model_of(name), small(own, **change or {}), **{**SEED, "chains": 2, **arguments})


def ranked(own: type, name: str) -> Any:
    return nz.select_rank(RANKED[name], [1, 2], method=small(own), restarts=2, search=None, **SEED)


def calibrated(own: type, name: str) -> Any:
    few = {"simulations": 20, "draws": 7, "thin": 1, "tune": 5, "max_iter": 5}
    return nz.calibrate(MAKERS[name], own(), **few, random_seed=1, cores=1, progressbar=False)


def projected(name: str) -> Any:
    own, idata = some_result(name)
    return nz.project(idata, COLUMNS, model=model_of(name), engine=own(), **SEED, **FEW[engines()[own]])


AFTERWARDS: dict[str, Callable[[str], Any]] = {
    "simulate": lambda name: nz.simulate(model_of(name), random_seed=1),
    "predict": lambda name: nz.predict(some_result(name)[1], model_of(name), random_seed=1),
    "impute": lambda name: nz.impute(some_result(name)[1], model_of(name), random_seed=1),
    "log_likelihood": lambda name: nz.log_likelihood(some_result(name)[1], model_of(name)),
    "log_likelihood, cells": lambda name: nz.log_likelihood(some_result(name)[1], model_of(name), per="cell"),
    "project": projected,
}


# -- cases -------------------------------------------------------------------------------------------------------


def pairs() -> Iterator[Case]:
    """Every engine on every model of the contract tests, with default options."""
    for own, name in product(quick_engines(), MAKERS):
        yield f"{own.__name__}: {name}", partial(pair, own, name)


def longer() -> Iterator[Case]:
    """Larger tables, longer warm-ups."""
    for own, name in product(quick_engines(), LARGER):
        yield f"{own.__name__}: {name}", partial(run, own, name, **MORE[engines()[own]])


def wider() -> Iterator[Case]:
    """What is declared beside the models of the contract tests, on every engine, and to evidence methods."""
    for own, name in product(quick_engines(), WIDER):
        yield f"{own.__name__}: {name}", partial(pair, own, name)
    for own, name in product(methods(), WIDER):
        yield f"evidence {own.__name__}: {name}", partial(evidence, own, name)


def searched() -> Iterator[Case]:
    """What the default search finds, and replica exchange."""
    searches = {"sample": {"start": "auto"}, "fit": {"search": "auto"}}
    for own, verb in engines().items():
        if own is not nz.NUTS:
            for name in ("gamma_nmf", "gap", "is_nmf", "hmm_nmf"):
                yield f"{own.__name__}, searched: {name}", partial(run, own, name, **searches[verb])
    for name in ("gamma_nmf", "gamma_nmf, mask", "gamma_nmf, sparse", "gamma_nmf, offsets"):
        call = partial(run, nz.Gibbs, name, {"temperatures": 3}, draws=12, tune=12)
        yield f"Gibbs, replica exchange: {name}", call


def streamed() -> Iterator[Case]:
    for own, name in product(streams(), MAKERS | LARGER):
        yield f"stream {own.__name__}: {name}", partial(stream, own, name)


def judged() -> Iterator[Case]:
    """Evidence and ranks."""
    for own, name in product(methods(), MAKERS):
        yield f"evidence {own.__name__}: {name}", partial(evidence, own, name)
    for own, name in product(judges(), RANKED):
        yield f"select_rank {own.__name__}: {name}", partial(ranked, own, name)


def afterwards() -> Iterator[Case]:
    """What is done with a model or a result."""
    for what, name in product(AFTERWARDS, MAKERS):
        yield f"{what}: {name}", partial(AFTERWARDS[what], name)


def others() -> Iterator[Case]:
    yield "NUTS: gamma_nmf", partial(run, nz.NUTS, "gamma_nmf", {"sampler": "pymc"}, chains=1)
    for own in quick_engines():
        yield f"calibrate {own.__name__}: gamma_nmf", partial(calibrated, own, "gamma_nmf")


def variations() -> Iterator[Case]:
    """Every engine, stream, method with its other options, one changed at a time."""
    for what, classes, call in (
        ("", quick_engines(), run),
        ("stream ", streams(), stream),
        ("evidence ", methods(), evidence),
    ):
        for own, name in product(classes, MAKERS):
            for words, change in variants(own):
                yield f"{what}{own.__name__}({words}): {name}", partial(call, own, name, change)


KEPT = (pairs, wider, searched, longer, streamed, judged, afterwards, others)  # as digests
GROUPS = (*KEPT, variations)


def cases(groups: Iterable[Callable[[], Iterator[Case]]] = GROUPS) -> Iterator[Case]:
    for group in groups:
        yield from group()
