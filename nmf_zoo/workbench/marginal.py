"""log p(X | W) of Poisson factorisations with Gamma activations, H integrated out: exactly, or by Monte Carlo."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, UnsupportedModel, not_one_of, warn_caller
from nmf_zoo.inference.marginal import exact, importance
from nmf_zoo.inference.shared.requirements import takes_likelihood
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models.matrices import check_same_labels, flat_labels
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.posterior import Axis, axes_of, check_labels, posterior_group, variable_of
from nmf_zoo.runtime.arguments import check_counts, entropy_of, require_memory, variable_shapes
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.progress import Watch
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Fixed, GammaPrior, Poisson

MOST_TERMS = {"one sample": 10**7, "all samples": 10**9}  # of an enumeration: what fits into memory, and into minutes
TIMES_OF_EXPECTATIONS = 5.0  # what they take, of the time of the values
UNITS = (("years", 3.2e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


class MarginalModel(NamedTuple):
    """A model with its data, W and the hyperparameters of H, checked."""

    structure: Factorisation
    samples: exact.MarginalData
    W: Array
    shape: Array
    rate: Array

    @property
    def arguments(self) -> tuple[exact.MarginalData, Array, Array, Array]:
        return self.samples, self.W, self.shape, self.rate


def prepare(model: pm.Model, W: Any) -> MarginalModel:
    structure = read(model)
    _require_supported(structure)
    values, matrix = _values(structure, W)
    shape, rate = exact.activation_prior(structure, values)
    return MarginalModel(structure, exact.observe(structure), matrix, shape, rate)


def _require_supported(structure: Factorisation) -> None:
    """Counts with a Poisson likelihood, and Gamma activations to integrate out."""
    likelihood = structure.likelihood
    taken = takes_likelihood(structure, (Poisson,))
    if not taken:
        raise UnsupportedModel(taken.reason)
    if not isinstance(structure.H.prior, GammaPrior):
        raise UnsupportedModel(
            f"{structure.H.name or 'H'}: found {structure.H.prior.family} activations; expected Gamma ones, to "
            "integrate out; use nz.gap"
        )
    if structure.data is None:
        raise InputError("model", f"nothing observed in {likelihood.name}", "a model with data")
    if not structure.is_integer:
        raise InputError(likelihood.name, "values that are not integers", "counts", "round them if they are counts")


def _values(structure: Factorisation, W: Any) -> tuple[dict[str, Array], Array]:
    """Values of the unknown hyperparameters of H by name, and W (F, K)."""
    names = [unknown.name for unknown in structure.H.unknowns]
    if _compat.is_result(W):
        return _from_result(structure, W, names)
    if names:
        expected = f"a result of nz.fit, which says what {', '.join(names)} are"
        raise InputError("W", "an array" if W is not None else "None", expected, "or declare known hyperparameters")
    if isinstance(structure.W.prior, Fixed) and W is None:
        return {}, structure.W.prior.value
    if W is None:
        raise InputError("W", "None", f"an array of shape {structure.W.shape}, or a result of nz.fit")
    return {}, check_weights(structure, W)


def _from_result(structure: Factorisation, idata: Any, names: list[str]) -> tuple[dict[str, Array], Array]:
    """The point estimate of the best restart, the first chain."""
    posterior, shapes = posterior_group(idata), variable_shapes(structure)
    if posterior.sizes["draw"] != 1:
        got = f"{posterior.sizes['draw']} draws"
        raise InputError("W", got, "a result with one draw, or an array", "take one: idata.sel(draw=[0])")
    values = {name: variable_of(posterior, structure, name, shapes[name]).to_numpy()[0, 0] for name in names}
    if isinstance(structure.W.prior, Fixed):
        return values, structure.W.prior.value
    of_w = variable_of(posterior, structure, structure.W.name, structure.W.variable_shape).to_numpy()[0, 0]
    check_labels(posterior, structure, [structure.W.name])
    return values, check_weights(structure, structure.W.orient(of_w))


def check_weights(structure: Factorisation, W: Any) -> Array:
    """W as given, (F, K); its labels have to be the model's."""
    feature = axes_of(structure)[0]
    if isinstance(W, xr.DataArray) and feature.dim in W.dims and W.ndim == 2:
        W = W.transpose(feature.dim, ...)
    labels = _labels_of(W)
    W = numbers_of("W", W)
    if W.shape != structure.W.shape:
        expected = f"{structure.W.shape}, (feature, component)"
        raise InputError("W", f"shape {W.shape}", expected, "transpose or reshape it")
    if not np.all((W >= 0) & np.isfinite(W)):
        raise InputError("W", "values that are negative or not finite", "finite values >= 0")
    component = component_of(structure)
    own = {feature.dim: feature.labels, component.dim: component.labels}
    names = zip(own, labels, strict=False)
    check_same_labels("W", {dim: found for dim, found in names if found is not None}, own, "the model")
    return np.ascontiguousarray(W)


def _labels_of(W: Any) -> list[Array | None]:
    """Labels of the rows and columns of W, None where there are none."""
    if isinstance(W, pd.DataFrame):
        return [flat_labels(W.index), flat_labels(W.columns)]
    if isinstance(W, xr.DataArray):
        return [flat_labels(W.indexes[dim]) if dim in W.indexes else None for dim in W.dims]
    return []


def component_of(structure: Factorisation) -> Axis:
    """The dim of the components, and their labels."""
    dims = structure.dims.get(structure.H.name, ())
    dim = structure.H.orient_dims(dims)[0] if len(dims) == 2 else "component"
    return Axis(dim, structure.coords.get(dim, np.arange(structure.rank)))


def numbers_of(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biufO":
            return array.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(name, " ".join(repr(value).split())[:60], "numbers", "use toarray()" * sp.issparse(value))


def check_weights_alone(W: Any) -> Array:
    """W (F, K) without a model."""
    W = numbers_of("W", W)
    if W.ndim != 2:
        raise InputError("W", f"shape {W.shape}", "a matrix (feature, component)")
    if not np.all((W >= 0) & np.isfinite(W)):
        raise InputError("W", "values that are negative or not finite", "finite values >= 0")
    return W


def require_no_background(structure: Factorisation) -> None:
    if structure.likelihood.background is not None:
        raise InputError("method", "'importance' with a background", "no background", "use method='exact'")


def require_few_terms(given: MarginalModel) -> None:
    terms = exact.n_terms(given.samples, given.W.shape[1])
    for where, found in (("one sample", max(terms)), ("all samples", sum(terms))):
        if found > MOST_TERMS[where]:  # as integers: they can be too large for a float
            got = f"'enumeration' of 10^{math.log10(found):.1f} admissible components of {where}"
            raise InputError("method", got, f"at most {MOST_TERMS[where]:.0e}", "use method='exact' or 'importance'")


def require_affordable(given: MarginalModel, threads: int, most: float) -> float:
    """Refuse exact values that are too much; else their seconds on one thread."""
    fitting = [] if given.structure.likelihood.background is not None else ["method='importance'"]
    fitting += ["nz.evidence(method='bound')"] if isinstance(given.structure.W.prior, GammaPrior) else []
    do = f"use {' or '.join(fitting)}" if fitting else "use fewer components"
    cost = exact.estimate(given.samples, given.W, given.rate)
    _require_fits("method", "exact values", cost, cost.seconds, threads, most, do)
    require_memory("method", "exact values", threads * cost.memory, do)
    return cost.seconds


def require_affordable_expectations(given: MarginalModel, threads: int, most: float) -> float:
    """The same for expectations: forward states are kept, one for each cell, and the way back takes twice as long."""
    do = "use draws: nz.sample(model=pm.do(model, {'W': W}))"
    cost = exact.estimate(given.samples, given.W, given.rate)
    seconds, cells = TIMES_OF_EXPECTATIONS * cost.seconds, int(np.diff(given.samples.columns.indptr).max())
    _require_fits("model", "exact expectations", cost, seconds, threads, most, do)
    require_memory("model", "exact expectations", threads * (3.0 + cells) * cost.memory, do)
    n_cells, rank = len(given.samples.columns.counts), given.W.shape[1]
    require_memory("model", f"{n_cells} cells x {rank} components", 16.0 * n_cells * rank, "choose fewer samples")
    return seconds


def _require_fits(name: str, what: str, cost: exact.Cost, seconds: float, threads: int, most: float, do: str) -> None:
    seconds, (n, rank) = seconds / min(threads, os.cpu_count() or 1), cost.largest
    if seconds > most:
        got = f"{what} of samples up to {n:,} counts and {rank} components: about {_in_words(seconds)}"
        raise InputError(name, got, f"at most max_seconds={most:g}", do)


def _in_words(seconds: float) -> str:
    """A time as people say it."""
    if seconds > 1e6 * UNITS[0][1]:
        return "for ever" if math.isinf(seconds) else f"{seconds / UNITS[0][1]:.0e} years"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} seconds"


# -- values ----------------------------------------------------------------------------------------------------------


METHODS = ("exact", "enumeration", "importance")
BAR_SECONDS = 2.0  # from what estimate on a progress bar is worth its line
FEW = 0.05  # effective sample size / draws below which a standard error is too small


class How(NamedTuple):
    """Arguments of :func:`~nmf_zoo.marginal_log_likelihood`, checked; ``key`` of the draws."""

    method: str
    draws: int
    key: np.uint64
    threads: int
    max_seconds: float
    progressbar: bool


def check_how(method: Any, draws: Any, random_seed: Any, cores: int | None, max_seconds: Any, progressbar: bool) -> How:
    if method not in METHODS:
        raise not_one_of("method", method, METHODS)
    check_counts(draws=(draws, 2))
    require_max_seconds(max_seconds)
    return How(method, draws, seed_key(entropy_of(random_seed)), check_threads(cores), max_seconds, progressbar)


def require_max_seconds(most: Any) -> None:
    if isinstance(most, bool) or not isinstance(most, numbers.Real) or not float(most) > 0:
        raise InputError("max_seconds", repr(most), "a positive number")


def evaluate(given: MarginalModel, how: How) -> importance.Estimates:
    """log p(x_n | W) of every sample, with errors of 0 where they are exact."""
    if how.method == "importance":
        return _estimate(given, how)
    if how.method == "enumeration":
        require_few_terms(given)
        values = exact.enumerated_log_likelihoods(*given.arguments)
    else:
        seconds = require_affordable(given, how.threads, how.max_seconds)
        with work(given, how.threads, how.progressbar and seconds > BAR_SECONDS) as (workers, report):
            values = exact.log_likelihoods(*given.arguments, workers, report)
    return importance.Estimates(values, np.zeros(len(values)), np.ones(len(values)))


def _estimate(given: MarginalModel, how: How) -> importance.Estimates:
    require_no_background(given.structure)
    with work(given, how.threads, how.progressbar) as (workers, report):
        found = importance.estimate_log_likelihoods(
            *given.arguments, draws=how.draws, key=how.key, workers=workers, report=report
        )
    few = int(np.sum(found.effective < FEW))
    if few:
        message = (
            f"effective: below {FEW} for {few} of {len(found.effective)} samples, whose errors are larger than said"
        )
        warn_caller(f"{message}; raise draws={how.draws}")
    return found


def check_threads(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores


@contextmanager
def work(given: MarginalModel, threads: int, with_bar: bool) -> Iterator[tuple[Workers, Any]]:
    """Threads, and what they report their progress to."""
    total = given.samples.n_samples
    with closing(Workers(threads)) as workers, Watch(with_bar, "samples, run", 1, total) as watch:
        yield workers, lambda done: watch.report(0, done)
        watch.report(0, total, last=True)


# -- the call --------------------------------------------------------------------------------------------------------


@names_checked
def marginal_log_likelihood(
    model: pm.Model,
    W: Any = None,
    *,
    method: Literal["exact", "enumeration", "importance"] = "exact",
    draws: int = 256,
    random_seed: Any = None,
    cores: int | None = None,
    max_seconds: float = 600.0,
    progressbar: bool = True,
) -> xr.Dataset:
    r"""log p(x_n | W, alpha, beta) of every sample, with its activations integrated out.

    .. math::

        p(x_n \mid W) = \int \prod_f \mathrm{Poisson}\big(x_{fn} \mid [W h_n]_f\big)
        \prod_k \mathrm{Gamma}(h_{kn} \mid \alpha_k, \beta_k) \, dh_n

    Parameters
    ----------
    model : :func:`~nmf_zoo.gap`, or :func:`~nmf_zoo.gamma_nmf` taken at a given W (its prior is not used); any declared
        Poisson factorisation of counts with Gamma activations
    W : (feature, component) array, DataFrame or DataArray, its labels the model's if it has some; a result of
        :func:`~nmf_zoo.fit` (its best restart), which also gives the hyperparameters that are unknown, or of
        :meth:`~nmf_zoo.streaming.stream.Stream.result`; None when W is known to the model
    method : "exact": a dynamic programme over the components' totals, about n^K / K! steps for a sample of n counts.
        "importance": importance sampling of h with a proposal at its mode, at any size. "enumeration": the sum over all
        admissible components, for tiny problems
    draws : of h, for each sample ("importance")
    random_seed : as in :func:`~nmf_zoo.sample` ("importance")
    cores : threads; default every core. Results do not depend on it
    max_seconds : refuse exact values that would take longer, by an estimate made before the start
    progressbar : on standard error, when it takes more than a moment

    Returns
    -------
    Dataset over the samples: ``log_likelihood``; ``standard_error``, the Monte-Carlo error (0 where exact); of
    "importance" also ``effective``, effective sample size / draws. Attributes: ``log_marginal_likelihood`` =
    log p(X | W), its ``standard_error``, and the method.

    Notes
    -----
    Masked features drop out of a sample. A positive count in a row of W that is 0 has the log-likelihood -inf. A column
    of W that is 0 changes nothing. Below about ``effective`` = 0.05 standard errors are too small, and a warning says
    so: use more draws.

    References
    ----------
    L. Filstroff, A. Lumbreras, C. Fevotte (2018), Closed-form marginal likelihood in Gamma-Poisson matrix
    factorization, ICML, eq. 28-31.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gap([[1, 0], [2, 3]], rank=2)
    >>> found = nz.marginal_log_likelihood(model, [[0.5, 0.1], [0.4, 1.2]])
    >>> round(found.attrs["log_marginal_likelihood"], 6)
    -5.965375
    """
    how = check_how(method, draws, random_seed, cores, max_seconds, progressbar)
    given = prepare(model, W)
    found, obs = evaluate(given, how), axes_of(given.structure)[1]
    columns = {"log_likelihood": found.log_likelihood, "standard_error": found.standard_error}
    if method == "importance":
        columns["effective"] = found.effective
    arrays = {name: (obs.dim, column) for name, column in columns.items()}
    total = {"log_marginal_likelihood": float(found.log_likelihood.sum()), "standard_error": found.total_error}
    return xr.Dataset(arrays, coords={obs.dim: obs.labels}, attrs=total | {"method": method})


@names_checked
def marginal_expectations(
    model: pm.Model,
    W: Any = None,
    *,
    cores: int | None = None,
    max_seconds: float = 600.0,
    progressbar: bool = True,
) -> xr.Dataset:
    """Exact E[C | x] and E[H | x] given W: what an exact E-step needs.

    Parameters
    ----------
    model, W, cores, max_seconds, progressbar : as in :func:`marginal_log_likelihood`

    Returns
    -------
    Dataset with ``C`` (cell, component), the expected sources of the observed cells that are not 0, whose feature and
    sample are coordinates of ``cell``; ``background`` (cell) if there is one; and ``H`` (component, obs). NaN for a
    sample whose likelihood is 0.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gap([[1, 0], [2, 3]], rank=2)
    >>> found = nz.marginal_expectations(model, [[0.5, 0.0], [0.4, 1.2]])
    >>> found["C"].sum("component").values.round(12)
    array([1., 2., 3.])
    """
    require_max_seconds(max_seconds)
    threads, given = check_threads(cores), prepare(model, W)
    seconds = require_affordable_expectations(given, threads, max_seconds)
    with work(given, threads, progressbar and seconds > BAR_SECONDS) as (workers, report):
        sources, activations = exact.expectations(*given.arguments, workers, report)
    return _expected(given, sources, activations)


def _expected(given: MarginalModel, sources: Array, activations: Array) -> xr.Dataset:
    feature, obs = axes_of(given.structure)
    columns, rank, component = given.samples.columns, given.W.shape[1], component_of(given.structure)
    cols = np.repeat(np.arange(given.samples.n_samples), np.diff(columns.indptr))
    arrays: dict[str, Any] = {
        "C": (("cell", component.dim), sources[:, :rank]),
        "H": ((component.dim, obs.dim), activations.T),
    }
    if columns.offset.size > 0:
        arrays["background"] = ("cell", sources[:, rank])
    names = {f"cell_{feature.dim}": feature.labels[columns.features], f"cell_{obs.dim}": obs.labels[cols]}
    of_cells = {name: ("cell", values) for name, values in names.items()}
    return xr.Dataset(arrays, coords={component.dim: component.labels, obs.dim: obs.labels} | of_cells)


@names_checked
def rescale_columns(W: Any, beta: Any, scale: Any) -> tuple[Array, Array]:
    r"""Another W and beta of the same marginal likelihood: :math:`p(X | W \Lambda, \beta \Lambda) = p(X | W, \beta)`.

    Parameters
    ----------
    W : (feature, component), >= 0
    beta : rates of H: one number, or one for each component, (K,) or (K, 1) as in :func:`~nmf_zoo.gap`
    scale : the diagonal of Lambda, (K,) or one number: positive

    Returns
    -------
    (W, beta) rescaled; beta (K, 1), as :func:`~nmf_zoo.gap` takes it

    References
    ----------
    Filstroff et al. (2018), eq. 32.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> W, beta = nz.rescale_columns([[1.0, 2.0]], 1.0, [2.0, 0.5])
    >>> W.tolist(), beta.tolist()
    ([[2.0, 1.0]], [[2.0], [0.5]])
    """
    W = check_weights_alone(W)
    by_component = {}
    for name, value in (("beta", beta), ("scale", scale)):
        array = numbers_of(name, value)
        if array.size not in (1, W.shape[1]):
            raise InputError(name, f"shape {array.shape}", f"one number, or one for each of {W.shape[1]} components")
        if not np.all((array > 0) & np.isfinite(array)):
            raise InputError(name, "values that are not positive and finite", "positive numbers")
        by_component[name] = np.broadcast_to(array.ravel(), W.shape[1])
    return W * by_component["scale"], (by_component["beta"] * by_component["scale"])[:, None]


@names_checked
def marginal_terms(
    model: pm.Model,
    W: Any = None,
    *,
    method: Literal["exact", "enumeration", "importance"] = "exact",
    draws: int = 256,
    random_seed: Any = None,
    cores: int | None = None,
    max_seconds: float = 600.0,
    progressbar: bool = True,
) -> xr.Dataset:
    r"""The two terms of the negative log-likelihood per sample: the fit, and what empties surplus columns.

    .. math::

        -\tfrac{1}{N} \log p(X \mid W)
        = \underbrace{-\tfrac{1}{N} \log \sum_C \Omega_\alpha(C) \prod_{fk} p_{fk}^{\sum_n c_{fkn}}}_{\text{fit}}
        + \sum_k \underbrace{\alpha_k \log(\lVert w_k \rVert_1 + \beta_k)}_{\text{penalty}}
        - \sum_k \alpha_k \log \beta_k

    Parameters
    ----------
    model, W, method, draws, random_seed, cores, max_seconds, progressbar : as in :func:`marginal_log_likelihood`

    Returns
    -------
    Dataset: ``fit``, ``penalty`` (component), ``constant``; fit + sum of penalty + constant is minus the mean
    log-likelihood. With masks, exposures or hyperparameters that differ between samples, the means over samples.
    Attributes: the method, and the Monte-Carlo ``standard_error`` of ``fit`` (0 where exact).

    References
    ----------
    Filstroff et al. (2018), eq. 33 and 34.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gap([[1, 0], [2, 3]], rank=2)
    >>> terms = nz.marginal_terms(model, [[0.5, 0.1], [0.4, 1.2]])
    >>> terms["penalty"].values.round(4)
    array([0.6419, 0.8329])
    """
    how = check_how(method, draws, random_seed, cores, max_seconds, progressbar)
    given = prepare(model, W)
    found, component = evaluate(given, how), component_of(given.structure)
    samples, W, shape, rate = given.arguments
    penalty = np.mean(shape * np.log(exact.rates(samples, W, rate)), axis=0)
    constant = 0.0 - float(np.mean(np.sum(shape * np.log(rate), axis=1)))  # 0.0 - 0.0 has no sign
    arrays = {
        "fit": -float(found.log_likelihood.mean()) - float(penalty.sum()) - constant,
        "penalty": (component.dim, penalty),
        "constant": constant,
    }
    attrs = {"method": method, "standard_error": found.total_error / samples.n_samples}
    return xr.Dataset(arrays, coords={component.dim: component.labels}, attrs=attrs)
