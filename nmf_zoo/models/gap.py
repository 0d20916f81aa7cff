"""GaP: Poisson factorisation with a free dictionary and Gamma activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.models.hyperparameters import check_gamma
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import (
    activations_dims,
    check_known,
    check_known_activations,
    declare_activations,
    declare_weights,
)
from nmf_zoo.models.likelihoods import declare_counts
from nmf_zoo.options import names_checked


@names_checked
def gap(
    X: Any,
    rank: int,
    *,
    alpha_h: Any = 1.0,
    beta_h: Any = None,
    mean_h: Any = None,
    known: Any = None,
    known_h: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""The Gamma-Poisson model: W is a free parameter, H has a Gamma prior (shape, rate) and can be integrated out.

    .. math::

        p(W) \propto 1 \text{ on } [0, \infty), \qquad H_{kn} \sim \mathrm{Gamma}(\alpha_k, \beta_k), \qquad
        X_{fn} \sim \mathrm{Poisson}\Big(e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}\Big)

    The posterior is proper only if :math:`\alpha_k N > F`.

    Parameters
    ----------
    X, rank
        As in :func:`~nmf_zoo.poisson_nmf`.
    alpha_h, beta_h, mean_h
        Shape, and rate (1 when neither is given) or mean, as in :func:`~nmf_zoo.gamma_nmf`. The paper's alpha_k and
        beta_k are arrays of shape (K, 1).
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
    L. Filstroff, A. Lumbreras, C. Fevotte (2018), Closed-form marginal likelihood in Gamma-Poisson matrix
    factorization, ICML, eq. 1-2.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gap([[1, 0], [2, 3]], rank=1, alpha_h=2.0)
    >>> sorted(model.named_vars)
    ['H', 'W', 'X']
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
    )
    fixed, inputs = check_known(known, None, inputs)
    of_h, inputs = check_known_activations(known_h, None, inputs)
    prior = check_gamma("h", inputs, alpha_h, beta_h, mean_h, activations_dims(inputs))
    with inputs.model() as model:
        W = declare_weights(fixed, lambda name, dims: pm.HalfFlat(name, dims=dims))
        H = declare_activations(of_h, lambda name, dims: pm.Gamma(name, **prior.declare(), dims=dims))
        declare_counts(W, H, inputs)
    return model
