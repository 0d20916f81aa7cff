"""log p(X | W) of Poisson factorisations with Gamma activations, H integrated out: exactly, or by Monte Carlo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.inference import admissible, importance, marginal
from nmf_zoo.inference.driver import available_cores
from nmf_zoo.inference.progress import Watch
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import seed_key
from nmf_zoo.posterior import axes_of
from nmf_zoo.run_arguments import check_counts, entropy_of, require_memory
from nmf_zoo.structure import Array, Factorisation
from nmf_zoo.workbench.marginal_inputs import (
    Given,
    numbers_of,
    prepare,
    require_affordable,
    require_few_terms,
    require_no_background,
)

METHODS = ("exact", "enumeration", "importance")
BAR_SECONDS = 2.0  # from what estimate on a progress bar is worth its line


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
    W : (feature, component) array or DataArray; a result of :func:`~nmf_zoo.fit` (its best restart), which also gives
        the hyperparameters that are unknown; None when W is known to the model
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
    of W that is 0 changes nothing. Below about ``effective`` = 0.05 standard errors are too small: use more draws.

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
    if method not in METHODS:
        raise InputError("method", repr(method), f"one of {list(METHODS)}")
    check_counts(draws=(draws, 2))
    given, threads = prepare(model, W), _threads(cores)
    error, effective = np.zeros(given.samples.n_samples), None
    if method == "enumeration":
        require_few_terms(given)
        values = admissible.enumerated_log_likelihoods(*given.arguments)
    elif method == "importance":
        require_no_background(given.structure)
        key = seed_key(entropy_of(random_seed))
        with _work(given, threads, progressbar) as (workers, report):
            found = importance.estimate_log_likelihoods(
                *given.arguments, draws=draws, key=key, workers=workers, report=report
            )
        values, error, effective = found
    else:
        cost = require_affordable(given, threads, max_seconds)
        with _work(given, threads, progressbar and cost.seconds > BAR_SECONDS) as (workers, report):
            values = marginal.log_likelihoods(*given.arguments, workers, report)
    return _as_dataset(given.structure, values, error, effective, method)


def _as_dataset(structure: Factorisation, values: Array, error: Array, effective: Array | None, method: str) -> Any:
    sample = axes_of(structure)[1]
    columns = {"log_likelihood": values, "standard_error": error}
    if effective is not None:
        columns["effective"] = effective
    total = {"log_marginal_likelihood": float(values.sum()), "standard_error": float(np.sqrt(np.sum(error**2)))}
    arrays = {name: (sample.dim, column) for name, column in columns.items()}
    return xr.Dataset(arrays, coords={sample.dim: sample.labels}, attrs=total | {"method": method})


def marginal_expectations(
    model: pm.Model, W: Any = None, *, cores: int | None = None, max_seconds: float = 600.0
) -> xr.Dataset:
    """Exact E[C | x] and E[H | x] given W: what an exact E-step needs.

    Parameters
    ----------
    model, W, cores, max_seconds : as in :func:`marginal_log_likelihood`

    Returns
    -------
    Dataset with ``C`` (cell, component), the expected sources of the observed cells that are not 0, whose feature and
    sample are coordinates of ``cell``; ``background`` (cell) if there is one; and ``H`` (component, sample). NaN for a
    sample whose likelihood is 0.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gap([[1, 0], [2, 3]], rank=2)
    >>> found = nz.marginal_expectations(model, [[0.5, 0.0], [0.4, 1.2]])
    >>> found["C"].sum("component").values.round(12)
    array([1., 2., 3.])
    """
    given, threads = prepare(model, W), _threads(cores)
    # The forward states that are kept take about as much again as the programme, and the way back twice its time.
    require_affordable(given, threads, max_seconds / 5.0, kept=True)
    n_cells, rank = len(given.samples.columns.counts), given.W.shape[1]
    require_memory("model", f"{n_cells} cells x {rank} components", 16.0 * n_cells * rank, "choose fewer samples")
    with closing(Workers(threads)) as workers:
        sources, activations = marginal.expectations(*given.arguments, workers)
    return _expected(given, sources, activations)


def _expected(given: Given, sources: Array, activations: Array) -> xr.Dataset:
    feature, sample = axes_of(given.structure)
    columns, rank, component = given.samples.columns, given.W.shape[1], _component(given.structure)
    cols = np.repeat(np.arange(given.samples.n_samples), np.diff(columns.indptr))
    arrays: dict[str, Any] = {
        "C": (("cell", component), sources[:, :rank]),
        "H": ((component, sample.dim), activations.T),
    }
    if columns.offset.size > 0:
        arrays["background"] = ("cell", sources[:, rank])
    labels = given.structure.coords.get(component, np.arange(rank))
    names = {f"cell_{feature.dim}": feature.labels[columns.features], f"cell_{sample.dim}": sample.labels[cols]}
    of_cells = {name: ("cell", values) for name, values in names.items()}
    return xr.Dataset(arrays, coords={component: labels, sample.dim: sample.labels} | of_cells)


def rescale_columns(W: Any, beta: Any, scale: Any) -> tuple[Array, Array]:
    r"""Another W and beta of the same marginal likelihood: :math:`p(X | W \Lambda, \beta \Lambda) = p(X | W, \beta)`.

    Parameters
    ----------
    W : (feature, component)
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
    W = numbers_of("W", W)
    if W.ndim != 2:
        raise InputError("W", f"shape {W.shape}", "a matrix (feature, component)")
    by_component = {}
    for name, value in (("beta", beta), ("scale", scale)):
        array = numbers_of(name, value)
        if array.size not in (1, W.shape[1]):
            raise InputError(name, f"shape {array.shape}", f"one number, or one for each of {W.shape[1]} components")
        if not np.all((array > 0) & np.isfinite(array)):
            raise InputError(name, "values that are not positive and finite", "positive numbers")
        by_component[name] = np.broadcast_to(array.ravel(), W.shape[1])
    return W * by_component["scale"], (by_component["beta"] * by_component["scale"])[:, None]


def marginal_terms(
    model: pm.Model, W: Any = None, *, cores: int | None = None, max_seconds: float = 600.0
) -> xr.Dataset:
    r"""The two terms of the negative log-likelihood per sample: the fit, and what empties surplus columns.

    .. math::

        -\tfrac{1}{N} \log p(X \mid W)
        = \underbrace{-\tfrac{1}{N} \log \sum_C \Omega_\alpha(C) \prod_{fk} p_{fk}^{\sum_n c_{fkn}}}_{\text{fit}}
        + \sum_k \underbrace{\alpha_k \log(\lVert w_k \rVert_1 + \beta_k)}_{\text{penalty}}
        - \sum_k \alpha_k \log \beta_k

    Parameters
    ----------
    model, W, cores, max_seconds : as in :func:`marginal_log_likelihood`

    Returns
    -------
    Dataset: ``fit``, ``penalty`` (component), ``constant``; fit + sum of penalty + constant is minus the mean
    log-likelihood. With masks, exposures or hyperparameters that differ between samples, the means over samples.

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
    given, threads = prepare(model, W), _threads(cores)
    require_affordable(given, threads, max_seconds)
    with closing(Workers(threads)) as workers:
        values = marginal.log_likelihoods(*given.arguments, workers)
    samples, W, shape, rate = given.arguments
    penalty = np.mean(shape * np.log(marginal.rates(samples, W, rate)), axis=0)
    constant = -float(np.mean(np.sum(shape * np.log(rate), axis=1)))
    component = _component(given.structure)
    labels = given.structure.coords.get(component, np.arange(len(penalty)))
    arrays = {
        "fit": -float(values.mean()) - float(penalty.sum()) - constant,
        "penalty": (component, penalty),
        "constant": constant,
    }
    return xr.Dataset(arrays, coords={component: labels})


def _threads(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores


def _component(structure: Factorisation) -> str:
    dims = structure.dims.get(structure.H.name, ())
    return structure.H.orient_dims(dims)[0] if len(dims) == 2 else "component"


@contextmanager
def _work(given: Given, threads: int, with_bar: bool) -> Iterator[tuple[Workers, Any]]:
    """Threads, and what they report their progress to."""
    total = given.samples.n_samples
    with closing(Workers(threads)) as workers, Watch(with_bar, "samples", 1, total) as watch:
        yield workers, lambda done: watch.report(0, done)
        watch.report(0, total, last=True)
