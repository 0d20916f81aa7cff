"""Squared-error factorisation: Lee and Seung's other objective, as a normal likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.models.hyperparameters import Free, check_half_normal, check_hyperparameter
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
from nmf_zoo.options import names_checked


@names_checked
def normal_nmf(
    X: Any,
    rank: int,
    *,
    sigma: float | pm.Distribution | Free = 1.0,
    sigma_w: Any = None,
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
    r"""Normal factorisation, factors flat or half-normal: maximum likelihood is NMF with squared error.

    .. math::

        X_{fn} \sim \mathrm{Normal}\Big(e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}, \ \sigma\Big),
        \qquad p(W) \propto 1, \quad p(H) \propto 1 \quad \text{on } [0, \infty)

    Without priors the fit is the same for any ``sigma``. X must be >= 0 (multiplicative updates need that), and dense
    unless ``observed="stored"``: zeros are not free.

    Parameters
    ----------
    X, rank
        As in :func:`~nmf_zoo.poisson_nmf`.
    sigma : number, PyMC variable or nz.free()
        Standard deviation of a cell.
    sigma_w, sigma_h : as in :func:`~nmf_zoo.poisson_nmf`
        Scales of half-normal priors on W and H.
    known : array, DataFrame, DataArray or result, optional
        Known components of W, as in :func:`~nmf_zoo.poisson_nmf`.
    known_h : array, DataFrame or DataArray (component, obs), optional
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
    of_h, inputs = check_known_activations(known_h, inputs)
    prior_w = check_half_normal("w", inputs, sigma_w, weights_dims(inputs))
    prior_h = check_half_normal("h", inputs, sigma_h, activations_dims(inputs))
    spread = check_hyperparameter("sigma", sigma, (), inputs)
    with inputs.model() as model:
        W = declare_weights(fixed, prior_w.declare)
        H = declare_activations(of_h, prior_h.declare)
        declare_normal(W, H, spread.declare(), inputs)
    return model
