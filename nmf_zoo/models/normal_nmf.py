"""Squared-error factorisation: Lee and Seung's other objective, as a normal likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.models.errors_of_measurement import check_errors
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import (
    activations_dims,
    check_known,
    check_known_activations,
    declare_activations,
    declare_weights,
    weights_dims,
)
from nmf_zoo.models.likelihoods import declare_normal
from nmf_zoo.models.positive_priors import check_positive
from nmf_zoo.options import names_checked


@names_checked
def normal_nmf(
    X: Any,
    rank: int,
    *,
    sigma: Any = 1.0,
    alpha_w: Any = None,
    beta_w: Any = None,
    mean_w: Any = None,
    mu_w: Any = None,
    sigma_w: Any = None,
    alpha_h: Any = None,
    beta_h: Any = None,
    mean_h: Any = None,
    mu_h: Any = None,
    sigma_h: Any = None,
    known: Any = None,
    known_h: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""Normal factorisation: maximum likelihood is NMF with squared error, weighted by the errors of measurement.

    .. math::

        X_{fn} \sim \mathrm{Normal}\Big(e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}, \ \sigma_{fn}\Big)

    W and H are free, p(W) and p(H) proportional to 1 on [0, inf), unless their arguments give them gamma, half-normal
    or truncated normal priors. Without priors the fit is the same for any number ``sigma``; one for each cell makes it
    the weighted least squares of positive matrix factorisation. X must be >= 0 (multiplicative updates need that), and
    dense unless ``observed="stored"``: zeros are not free.

    Parameters
    ----------
    X, rank
        As in :func:`~nmf_zoo.poisson_nmf`.
    sigma : number, array, DataFrame, DataArray, tuple, sparse matrix, PyMC variable or nz.free()
        Standard deviation of a cell, > 0, broadcasting to (feature, obs): (feature, 1) is one per feature, (1, obs) one
        per sample, (feature, obs) one for each cell; a tuple of the first two is their product. Labels are those of X.
        At missing cells it may be NaN: then nothing can be drawn there. Of a sparse X also a sparse matrix that has its
        stored cells. ``nz.free()`` is an unknown one, for EM; one per
        feature or sample needs a prior, as a variable of the model: without, the density is unbounded.
    alpha_w, beta_w, mean_w, alpha_h, beta_h, mean_h : as in :func:`~nmf_zoo.gamma_nmf`, optional
        Gamma priors: a shape (1 where it is left out: exponential), and a rate or a mean.
    sigma_w, sigma_h : as in :func:`~nmf_zoo.poisson_nmf`
        Scales of half-normal priors on W and H.
    mu_w, mu_h : number or array, optional
        Beside ``sigma_w`` or ``sigma_h``: cells have a normal density about it, truncated to [0, inf).
    known : array, DataFrame, DataArray or result, optional
        Known components of W, as in :func:`~nmf_zoo.poisson_nmf`.
    known_h : array, DataFrame or DataArray (component, obs), or an earlier result, optional
        The first components of H, where these are known, as in :func:`~nmf_zoo.poisson_nmf`.
    mask, observed, exposure, background, coords, shape
        As in :func:`~nmf_zoo.poisson_nmf`.

    Returns
    -------
    pm.Model

    References
    ----------
    D. D. Lee, H. S. Seung (2001), Algorithms for non-negative matrix factorization, NIPS 13, eq. 4.
    J. Paisley (2016), lecture 12, eq. 1.
    P. Paatero, U. Tapper (1994), Positive matrix factorization: a non-negative factor model with optimal utilization of
    error estimates of data values, Environmetrics 5(2), eq. 4.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.normal_nmf([[1.5, 0.2], [2.1, 3.0]], rank=1, sigma=nz.free())
    >>> sorted(model.named_vars)
    ['H', 'W', 'X', 'sigma']
    """
    inputs = check_inputs(
        X,
        rank,
        mask=mask,
        observed=observed,
        exposure=exposure,
        background=background,
        coords=coords,
        shape=shape,
        is_counts=False,
        sparse="stored",
    )
    fixed, inputs = check_known(known, None, inputs)
    of_h, inputs = check_known_activations(known_h, None, inputs)
    of_w = {"alpha": alpha_w, "beta": beta_w, "mean": mean_w, "mu": mu_w, "sigma": sigma_w}
    of_activations = {"alpha": alpha_h, "beta": beta_h, "mean": mean_h, "mu": mu_h, "sigma": sigma_h}
    prior_w = check_positive("w", inputs, weights_dims(inputs), **of_w)
    prior_h = check_positive("h", inputs, activations_dims(inputs), **of_activations)
    errors = check_errors(sigma, inputs)
    with inputs.model() as model:
        W = declare_weights(fixed, prior_w.declare)
        H = declare_activations(of_h, prior_h.declare)
        declare_normal(W, H, errors, inputs)
    return model
