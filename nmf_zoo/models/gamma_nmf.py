"""Poisson factorisation with Gamma priors on both factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.errors import InputError
from nmf_zoo.models.batches import check_batches
from nmf_zoo.models.covariates import check_beside_covariates, check_design
from nmf_zoo.models.hierarchies import (
    ARD,
    HPF,
    check_beside_known,
    check_hierarchy,
    declare_half_normals,
    declare_hierarchy,
)
from nmf_zoo.models.hyperparameters import check_gamma
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import (
    LEFT,
    RIGHT,
    activations_dims,
    around_known,
    check_known,
    check_known_activations,
    check_strength,
    declare_activations,
    declare_weights,
    weights_dims,
)
from nmf_zoo.models.likelihoods import declare_counts
from nmf_zoo.options import names_checked


@names_checked
def gamma_nmf(
    X: Any,
    rank: int,
    *,
    alpha_w: Any = None,
    beta_w: Any = None,
    mean_w: Any = None,
    alpha_h: Any = None,
    beta_h: Any = None,
    mean_h: Any = None,
    prior: str | HPF | ARD | None = None,
    known: Any = None,
    known_h: Any = None,
    known_strength: float | None = None,
    design: Any = None,
    slopes: Any = None,
    batch: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""Poisson factorisation with independent Gamma priors (shape, rate) on the cells of W and H.

    .. math::

        W_{fk} &\sim \mathrm{Gamma}(\alpha^w_{fk}, \beta^w_{fk}), \qquad
        H_{kn} \sim \mathrm{Gamma}(\alpha^h_{kn}, \beta^h_{kn}) \\
        X_{fn} &\sim \mathrm{Poisson}\Big(e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}\Big)

    Two parametrisations: shape and rate (Paisley), or shape and mean (Cemgil), where beta = alpha / mean stands in the
    graph. Two hierarchies that shrink: ``prior="hpf"`` gives every row of W and column of H a rate with a gamma prior,
    ``prior="ard"`` every component a relevance. ``nz.ARD(cells="half-normal")`` has half-normal cells in place of gamma
    ones.

    Parameters
    ----------
    X, rank
        As in :func:`~nmf_zoo.poisson_nmf`.
    alpha_w, alpha_h : number, array, PyMC variable or nz.free(tie=...)
        Shapes, 1 unless given (with ``prior="hpf"`` 0.3). They broadcast to W (feature, component) or H (component,
        obs) by NumPy's rules: one value per component is (K,) for W and (K, 1) for H. A PyMC variable of the same
        ``with pm.Model()`` is a hyperprior; :func:`~nmf_zoo.free` is a variable without a prior, to be estimated.
    beta_w, beta_h : as alpha_w, alpha_h; 1 when neither rate nor mean is given
        Rates.
    mean_w, mean_h : as alpha_w, alpha_h
        Means, instead of the rates.
    prior : {None, "hpf", "ard"}, :class:`~nmf_zoo.HPF` or :class:`~nmf_zoo.ARD`
        Where rates or means come from, instead of beta and mean. Beside ``known`` they are those of new components:
        rates of the rows of W, relevances of both factors.
    known : array, DataFrame, DataArray or result, optional
        Known components of W, as in :func:`~nmf_zoo.poisson_nmf`.
    known_strength : number, optional
        The known components, of W and of H, are believed, not fixed: each cell of them has a gamma prior with this
        shape around its value, so that its coefficient of variation is 1 / sqrt(known_strength) a priori. Cells below
        a thousandth of their component's mean have their prior around that.
    known_h : array, DataFrame or DataArray (component, obs), or an earlier result, optional
        The first components of H, where these are known, as in :func:`~nmf_zoo.poisson_nmf`.
    design : array (obs, covariate), DataFrame, Series or DataArray, optional
        Covariates of the samples, numbers. The prior mean of H is then log-linear in them: that of ``mean_h`` (or
        ``alpha_h / beta_h``) times exp(design @ slopes.T), with ``slopes`` (component, covariate). Columns are taken as
        they are: ``mean_h`` is the mean where all covariates are 0, which is the mean sample where columns are centred.
        Labelled rows may be in any order.
    slopes : number or array (component, covariate), 1 unless given
        Standard deviations of the slopes' normal prior, whose mean is 0.
    batch : labels (obs,) or :class:`~nmf_zoo.Batches`, optional
        The batch of each sample. Every feature then has a multiplier in every batch, ``M`` (feature, batch), so that
        X ~ Poisson(M[f, batch of n] (e (W H) + b)), with the prior Gamma(5, 5) of mean 1; ``nz.Batches`` has another
        prior, and a batch of reference.
    mask, observed, exposure, background, coords, shape
        As in :func:`~nmf_zoo.poisson_nmf`.

    Returns
    -------
    pm.Model

    References
    ----------
    A. T. Cemgil (2009), Bayesian inference for nonnegative matrix factorisation models, eq. 3-5 and 12 (shape, mean).
    J. Paisley (2016), lecture 12, eq. 21-22 (shape, rate).
    Of the hierarchies: :class:`~nmf_zoo.HPF`, :class:`~nmf_zoo.ARD`.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[1, 0], [2, 3]], rank=1, alpha_h=0.5, mean_h=nz.free(tie="all"))
    >>> sorted(model.named_vars)
    ['H', 'W', 'X', 'mean_h']
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
    strength = check_strength(known_strength, known, known_h)
    fixed, inputs = check_known(known, strength, inputs)
    told_h, inputs = check_known_activations(known_h, strength, inputs)
    covariates, inputs = check_design(design, slopes, inputs)
    batches, inputs = check_batches(batch, inputs)
    seconds = {"beta_w": beta_w, "mean_w": mean_w, "beta_h": beta_h, "mean_h": mean_h}
    hierarchy = check_hierarchy(prior, seconds, {"alpha_w": alpha_w, "alpha_h": alpha_h})
    alpha = 1.0 if hierarchy is None else hierarchy.alpha
    if told_h is not None and hierarchy is not None:
        raise InputError("prior", repr(prior), "None beside known_h=", "give alpha_h and beta_h")
    if covariates is not None:
        check_beside_covariates(told_h, hierarchy, inputs)
    if fixed is not None:
        check_beside_known(prior, hierarchy, fixed.strength)
    prior_w = check_gamma("w", inputs, alpha if alpha_w is None else alpha_w, beta_w, mean_w, weights_dims(inputs))
    prior_h = check_gamma("h", inputs, alpha if alpha_h is None else alpha_h, beta_h, mean_h, activations_dims(inputs))
    with inputs.model() as model:
        if isinstance(hierarchy, ARD) and hierarchy.is_half_normal:
            declare_counts(*declare_half_normals(hierarchy, inputs, fixed), inputs, batches)
            return model
        if hierarchy is not None:
            of_w, of_h = declare_hierarchy(hierarchy, inputs, fixed)
            prior_h = prior_h.given(of_h, hierarchy.is_mean)
            prior_w = prior_w if of_w is None else prior_w.given(of_w, hierarchy.is_mean)
        W = declare_weights(
            fixed,
            lambda name, dims: pm.Gamma(name, **around_known(LEFT, fixed, prior_w.declare, inputs), dims=dims),
        )
        times = None if covariates is None else covariates.declare()
        H = declare_activations(
            told_h,
            lambda name, dims: pm.Gamma(
                name, **around_known(RIGHT, told_h, lambda: prior_h.declare(times), inputs), dims=dims
            ),
        )
        declare_counts(W, H, inputs, batches)
    return model
