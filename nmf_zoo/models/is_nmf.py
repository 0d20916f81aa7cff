"""Itakura-Saito factorisation of power spectrograms: exponential cells, inverse-gamma activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from nmf_zoo.errors import InputError
from nmf_zoo.models.chains import check_positive_chain, declare_chain
from nmf_zoo.models.hyperparameters import ACTIVATIONS, check_inverse_gamma, renamed
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.known import (
    activations_dims,
    check_known,
    check_known_activations,
    declare_activations,
    declare_weights,
    weights_dims,
)
from nmf_zoo.models.likelihoods import declare_powers
from nmf_zoo.options import names_checked


@renamed(alpha="alpha_h", beta="beta_h")
@names_checked
def is_nmf(
    X: Any,
    rank: int,
    *,
    alpha_h: Any = 1.0,
    beta_h: Any = 1.0,
    alpha_w: Any = None,
    beta_w: Any = None,
    chain: Any = None,
    known: Any = None,
    known_h: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""Itakura-Saito NMF of a power spectrogram: exponential cells, inverse-gamma activations, W free or inverse gamma.

    .. math::

        X_{fn} \sim \mathrm{Exponential}\Big(\text{mean } e_{fn} \sum_k W_{fk} H_{kn} + b_{fn}\Big),
        \qquad H_{kn} \sim \mathrm{InverseGamma}(\alpha_h, \beta_h)

    X is the squared modulus of a short-time Fourier transform whose components are independent circular complex
    Gaussians with variances W_fk H_kn: their sum has an exponential power. Maximum likelihood minimises the
    Itakura-Saito divergence, which does not care how loud a cell is.

    Parameters
    ----------
    X : array, nested list, DataFrame, DataArray, or None
        Power (feature, obs), >= 0: a frequency is a feature, a frame a sample. Labels (Hz, s) become coords. NaN and
        masked cells are missing. Zeros are legal: the density there is finite, though without a bound in W H -> 0.
        None: nothing is observed, X is a free variable.
    rank : int
        Number of components, at most the number of frequencies.
    alpha_h, beta_h : number, array, PyMC variable or nz.free(tie=...)
        Shape and scale of H's prior. They broadcast to H (component, obs); (K, 1) is one value per component.
    alpha_w, beta_w : as alpha_h, beta_h, broadcasting to W (feature, component)
        Shape and scale of W's prior; beta_w is 1 when only the shape is given. Without both W is free, and can be
        sampled where every frequency has more observed frames than components, and not too many of them silent.
    chain : a chain without a name, or its word, optional
        Rows of H as chains in time in the place of inverse-gamma cells, as in :func:`~nmf_zoo.hmm_nmf`:
        :class:`~nmf_zoo.GammaChain`, :class:`~nmf_zoo.BGAR` or :class:`~nmf_zoo.LogNormalAR`. Then frames are times.
    known : array, DataFrame, DataArray or result, optional
        Known components of W, as in :func:`~nmf_zoo.poisson_nmf`.
    known_h : array, DataFrame or DataArray (component, obs), or an earlier result, optional
        The first components of H, where these are known; EM and Gibbs take known components of W alone.
    mask, observed, exposure, background, coords, shape
        As in :func:`~nmf_zoo.poisson_nmf`. A background is a known noise floor.

    Returns
    -------
    pm.Model
        With variables W (feature, component), H (component, obs) and X. Inside ``with pm.Model():`` that model.

    References
    ----------
    C. Fevotte, N. Bertin, J.-L. Durrieu (2009), Nonnegative matrix factorization with the Itakura-Saito divergence,
    Neural Computation 21(3).
    O. Cappe, C. Fevotte, D. Rohde (2011), Algorithme EM en ligne simule pour la factorisation non-negative
    probabiliste, GRETSI, eq. 5.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.is_nmf([[1.5, 0.2], [2.1, 3.0]], rank=1, alpha_w=2.0)
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
        is_counts=False,
        sparse="none",
        is_low_rank=True,
        in_time=chain is not None,
    )
    fixed, inputs = check_known(known, None, inputs)
    of_h, inputs = check_known_activations(known_h, None, inputs)
    if alpha_w is None and beta_w is not None:
        raise InputError("beta_w", "a scale without a shape", "alpha_w= as well", "or leave it out")
    prior_h, recipe = None, None
    if chain is None:
        prior_h = check_inverse_gamma(("alpha_h", "beta_h"), alpha_h, beta_h, activations_dims(inputs), inputs)
    else:
        recipe = check_positive_chain(chain, inputs, {"alpha_h": alpha_h, "beta_h": beta_h, "known_h": known_h})
    prior_w = None
    if alpha_w is not None:
        scale = 1.0 if beta_w is None else beta_w
        prior_w = check_inverse_gamma(("alpha_w", "beta_w"), alpha_w, scale, weights_dims(inputs), inputs)
    with inputs.model() as model:
        if prior_w is None:
            W = declare_weights(fixed, lambda name, dims: pm.HalfFlat(name, dims=dims))
        else:
            W = declare_weights(
                fixed, lambda name, dims: pm.InverseGamma(name, *(part.declare() for part in prior_w), dims=dims)
            )
        if recipe is None:
            H = declare_activations(
                of_h, lambda name, dims: pm.InverseGamma(name, *(part.declare() for part in prior_h), dims=dims)
            )
        else:
            H = declare_chain("H", recipe, ACTIVATIONS)
        declare_powers(W, H, inputs)
    return model
