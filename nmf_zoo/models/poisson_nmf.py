"""Poisson factorisation without priors: Lee and Seung's divergence, as a likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.models.hyperparameters import check_half_normal
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import (
    activations_dims,
    check_known,
    check_known_activations,
    declare_activations,
    declare_weights,
    weights_dims,
)
from nmf_zoo.models.likelihoods import declare_counts
from nmf_zoo.options import names_checked


@names_checked
def poisson_nmf(
    X: Any,
    rank: int,
    *,
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
    r"""Poisson factorisation, factors flat or half-normal: maximum likelihood is Kullback-Leibler NMF.

    .. math::

        X_{fn} \sim \mathrm{Poisson}\Big(e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}\Big),
        \qquad p(W) \propto 1, \quad p(H) \propto 1 \quad \text{on } [0, \infty)

    Both factors are free: engines maximise over them. Their joint posterior is improper, so they can't be sampled,
    unless ``sigma_w`` or ``sigma_h`` gives them half-normal priors, p(W) proportional to exp(-W^2 / (2 sigma_w^2)).

    Parameters
    ----------
    X : array, nested list, DataFrame, DataArray, scipy sparse matrix, or None
        The data (feature, obs), >= 0. Labels become coords. NaN and masked cells are missing. In a sparse matrix
        absent cells are zeros, unless ``mask`` or ``observed`` says that they are missing. Real values are legal and
        never rounded (:class:`~nmf_zoo.distributions.RealPoisson`). None: nothing is observed, X is a free variable.
    rank : int
        Number of components.
    sigma_w, sigma_h : number, array or PyMC variable, optional
        Scales of half-normal priors on W and H, which have none where these are left out: the penalty w^2 / (2 sigma^2)
        (ridge) in a fit. They broadcast to W (feature, component) or H (component, obs) by NumPy's rules: one per
        component is (K,) for W and (K, 1) for H.
    known : array, DataFrame or DataArray (feature, component), or an earlier result, optional
        The first components of W, >= 0, where they are known; ``rank`` counts them, too, and the others are new. Rows
        that are labelled like X's features go to them in any order; columns label the components. Of a result the
        posterior mean of W: over all chains once they are aligned, else over the chain with the highest lp, of a fit
        its best restart. With new components beside them, W is a Deterministic, and its free variable is W_new.
    known_h : array, DataFrame or DataArray (component, obs), or an earlier result, optional
        The first components of H, where these are known: how much of each is in every sample. DataFrames have the
        samples of X in their columns, in any order. An earlier result gives the posterior mean of its H.
    mask : bool array or sparse matrix (feature, obs), optional
        True = observed.
    observed : {None, "stored"}
        "stored": only the stored cells of a sparse X were observed, as for ratings; stored zeros count.
    exposure : number, array, tuple or sparse matrix, optional
        Known factor e > 0 of the mean, broadcasting to (feature, obs): (1, obs) for depths of samples, (feature, 1) for
        lengths of features, a tuple of these two arrays for their product. Of a sparse X of which only listed cells
        were observed, also a sparse matrix that has those cells. An exposure of its own for every cell of a sparse X
        costs time as if X were dense; all others do not.
    background : as exposure, optional
        Known term b >= 0 of the mean.
    coords : dict, optional
        Labels for "feature", "component", "obs"; they win over the labels of X.
    shape : (int, int), optional
        (features, samples), needed when X is None and coords don't say.

    Returns
    -------
    pm.Model
        With variables W (feature, component), H (component, obs) and X. Inside ``with pm.Model():`` that model.

    References
    ----------
    D. D. Lee, H. S. Seung (2001), Algorithms for non-negative matrix factorization, NIPS 13.
    A. T. Cemgil (2009), Bayesian inference for nonnegative matrix factorisation models, eq. 5.
    J. Paisley (2016), lecture 12, eq. 5.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.poisson_nmf([[1, 0], [2, 3]], rank=1)
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
    prior_w = check_half_normal("w", inputs, sigma_w, weights_dims(inputs))
    prior_h = check_half_normal("h", inputs, sigma_h, activations_dims(inputs))
    with inputs.model() as model:
        W = declare_weights(fixed, prior_w.declare)
        H = declare_activations(of_h, prior_h.declare)
        declare_counts(W, H, inputs)
    return model
