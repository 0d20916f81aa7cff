"""Factorisation in time: Poisson counts whose activations are Markov chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.errors import InputError
from nmf_zoo.models.chains import check_chain, declare_chain
from nmf_zoo.models.hyperparameters import ACTIVATIONS, check_gamma
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import check_known, declare_weights, weights_dims
from nmf_zoo.models.likelihoods import declare_counts
from nmf_zoo.options import names_checked


@names_checked
def hmm_nmf(
    X: Any,
    rank: int,
    *,
    chain: Any = "basis",
    alpha_w: Any = None,
    beta_w: Any = None,
    mean_w: Any = None,
    known: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""Poisson factorisation in time: the rows of H are independent Markov chains, W is free or gamma.

    .. math::

        X_{ft} \sim \mathrm{Poisson}\Big(e_{ft} \sum_k W_{fk} H_{kt} + b_{ft}\Big),
        \qquad H_{kt} \mid H_{k,t-1} \sim \text{chain}

    Samples are times, in the order of X's columns. A time without observed cells is a missing time: the chain goes on.

    Parameters
    ----------
    X : array, nested list, DataFrame, DataArray, scipy sparse matrix, or None
        As in :func:`~nmf_zoo.poisson_nmf`, with one column for each time.
    rank : int
        Number of components.
    chain : a chain without a name, or "basis", "unit", "log-normal", "gamma" or "bgar"
        :class:`~nmf_zoo.BasisChain` (components are on or off), :class:`~nmf_zoo.UnitChain` (between 0 and 1),
        :class:`~nmf_zoo.LogNormalAR`, :class:`~nmf_zoo.GammaChain` or :class:`~nmf_zoo.BGAR`, e.g.
        ``nz.BasisChain(p=0.9, q=0.8)``. Their parameters are numbers, one for all components or a vector with one for
        each; variables of the enclosing model; or ``nz.free()``, which declares a flat variable of the parameter's name
        (``nz.free(tie="obs")``: one for each component). By its name alone a chain has all parameters free.
    alpha_w, beta_w, mean_w : number, array, PyMC variable or nz.free(tie=...)
        Shape, and rate or mean, of a gamma prior on W (feature, component). Without them W is free.
    known : array, DataFrame or DataArray, optional
        Known components of W, as in :func:`~nmf_zoo.poisson_nmf`.
    mask, observed, exposure, background, coords, shape
        As in :func:`~nmf_zoo.poisson_nmf`. Without a background no count can come while all components are off.

    Returns
    -------
    pm.Model
        With variables W (feature, component), H (component, obs) and X. Inside ``with pm.Model():`` that model.

    References
    ----------
    S. Yildirim, A. T. Cemgil, S. S. Singh (2012), An online expectation-maximisation algorithm for nonnegative matrix
    factorisation models.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.hmm_nmf([[1, 0, 2], [2, 3, 0]], rank=1, chain=nz.BasisChain(0.9, nz.free()))
    >>> sorted(model.named_vars)
    ['H', 'W', 'X', 'q']
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
        in_time=True,
    )
    fixed, inputs = check_known(known, None, inputs)
    recipe = check_chain(chain, inputs)
    if alpha_w is None and (beta_w is not None or mean_w is not None):
        name = "beta_w" if beta_w is not None else "mean_w"
        raise InputError(name, "a value without a shape", "alpha_w as well", "give alpha_w, or none of them")
    prior_w = None if alpha_w is None else check_gamma("w", inputs, alpha_w, beta_w, mean_w, weights_dims(inputs))
    with inputs.model() as model:
        if prior_w is None:
            W = declare_weights(fixed, lambda name, dims: pm.HalfFlat(name, dims=dims))
        else:
            W = declare_weights(fixed, lambda name, dims: pm.Gamma(name, **prior_w.declare(), dims=dims))
        H = declare_chain("H", recipe, ACTIVATIONS)
        declare_counts(W, H, inputs)
    return model
