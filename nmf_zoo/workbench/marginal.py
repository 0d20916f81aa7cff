"""log p(X | W) of Poisson factorisations with Gamma activations, H integrated out: exactly, or by Monte Carlo."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.inference import marginal
from nmf_zoo.posterior import axes_of
from nmf_zoo.structure import Array
from nmf_zoo.workbench.marginal_inputs import (
    Given,
    check_weights_alone,
    component_of,
    numbers_of,
    prepare,
    require_affordable_expectations,
)
from nmf_zoo.workbench.marginal_values import BAR_SECONDS, check_how, check_threads, evaluate, require_max_seconds, work


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
        :meth:`~nmf_zoo.streaming.Stream.result`; None when W is known to the model
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
    found, sample = evaluate(given, how), axes_of(given.structure)[1]
    columns = {"log_likelihood": found.log_likelihood, "standard_error": found.standard_error}
    if method == "importance":
        columns["effective"] = found.effective
    arrays = {name: (sample.dim, column) for name, column in columns.items()}
    total = {"log_marginal_likelihood": float(found.log_likelihood.sum()), "standard_error": found.total_error}
    return xr.Dataset(arrays, coords={sample.dim: sample.labels}, attrs=total | {"method": method})


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
    require_max_seconds(max_seconds)
    threads, given = check_threads(cores), prepare(model, W)
    seconds = require_affordable_expectations(given, threads, max_seconds)
    with work(given, threads, progressbar and seconds > BAR_SECONDS) as (workers, report):
        sources, activations = marginal.expectations(*given.arguments, workers, report)
    return _expected(given, sources, activations)


def _expected(given: Given, sources: Array, activations: Array) -> xr.Dataset:
    feature, sample = axes_of(given.structure)
    columns, rank, component = given.samples.columns, given.W.shape[1], component_of(given.structure)
    cols = np.repeat(np.arange(given.samples.n_samples), np.diff(columns.indptr))
    arrays: dict[str, Any] = {
        "C": (("cell", component.dim), sources[:, :rank]),
        "H": ((component.dim, sample.dim), activations.T),
    }
    if columns.offset.size > 0:
        arrays["background"] = ("cell", sources[:, rank])
    names = {f"cell_{feature.dim}": feature.labels[columns.features], f"cell_{sample.dim}": sample.labels[cols]}
    of_cells = {name: ("cell", values) for name, values in names.items()}
    return xr.Dataset(arrays, coords={component.dim: component.labels, sample.dim: sample.labels} | of_cells)


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
    penalty = np.mean(shape * np.log(marginal.rates(samples, W, rate)), axis=0)
    constant = 0.0 - float(np.mean(np.sum(shape * np.log(rate), axis=1)))  # 0.0 - 0.0 has no sign
    arrays = {
        "fit": -float(found.log_likelihood.mean()) - float(penalty.sum()) - constant,
        "penalty": (component.dim, penalty),
        "constant": constant,
    }
    attrs = {"method": method, "standard_error": found.total_error / samples.n_samples}
    return xr.Dataset(arrays, coords={component.dim: component.labels}, attrs=attrs)
