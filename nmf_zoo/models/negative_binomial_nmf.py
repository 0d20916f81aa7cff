"""Overdispersed counts: negative binomial factorisation with gamma priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm

from nmf_zoo.errors import InputError
from nmf_zoo.models.hyperparameters import Free, Hyperparameter, check_gamma, check_hyperparameter
from nmf_zoo.models.inputs import Inputs, check_inputs
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
from nmf_zoo.models.likelihoods import declare_overdispersed
from nmf_zoo.options import names_checked

MIDDLE, SPREAD = 10.0, 2.0  # of the prior of alpha where none is given: log-normal, 95 % of it in 0.2 to 500


@names_checked
def negative_binomial_nmf(
    X: Any,
    rank: int,
    *,
    alpha: Any = None,
    alpha_w: Any = 1.0,
    beta_w: Any = None,
    mean_w: Any = None,
    alpha_h: Any = 1.0,
    beta_h: Any = None,
    mean_h: Any = None,
    known: Any = None,
    known_strength: float | None = None,
    known_h: Any = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
) -> pm.Model:
    r"""Negative binomial factorisation with gamma priors, of counts that vary more than Poisson's.

    .. math::

        X_{fn} \sim \mathrm{Poisson}(g_{fn} \mu_{fn}), \quad g_{fn} \sim \mathrm{Gamma}(\alpha, \alpha), \quad
        \mu_{fn} = e_{fn} \sum_k W_{fk} H_{kn} + b_{fn},

    with the multipliers :math:`g` integrated out: :math:`\mathrm{Var}\,X = \mu + \mu^2 / \alpha`. The smaller
    ``alpha``, the more overdispersed the counts; as it goes to infinity they are Poisson, and this is
    :func:`~nmf_zoo.gamma_nmf`.

    Parameters
    ----------
    X : as in :func:`~nmf_zoo.poisson_nmf`
        Counts: other values are refused.
    rank : int
        Number of components K.
    alpha : number, array, PyMC variable or nz.free(), optional
        Inverse dispersion. One for all cells; one for each feature, of shape (F, 1) or ``nz.free(tie="obs")``; or one
        for each sample, of shape (1, N) or ``nz.free(tie="feature")``. ``nz.free()`` is estimated by maximum
        likelihood. By default a variable ``alpha`` with the prior LogNormal(log 10, 2), one for all cells. A prior of
        your own, one for each feature: ``alpha=pm.LogNormal("alpha", 2.0, 1.0, dims="feature")[:, None]``.
    alpha_w, beta_w, mean_w, alpha_h, beta_h, mean_h
        Gamma priors of W and H, as in :func:`~nmf_zoo.gamma_nmf`.
    known, known_strength, known_h
        Known components, as in :func:`~nmf_zoo.gamma_nmf`.
    mask, observed, exposure, background, coords, shape
        As in :func:`~nmf_zoo.poisson_nmf`.

    Returns
    -------
    pm.Model

    Raises
    ------
    InputError : X holds a value that is no count, or ``alpha`` is not positive or has another shape

    Notes
    -----
    Zeros are not free: a zero of mean m has the log-density -alpha log(1 + m / alpha), so that time goes with
    features x samples, not with the non-zero cells. Memory does not, but in NUTS and in the particles of
    sequential Monte Carlo: a sparse X stays sparse.

    References
    ----------
    O. Gouvert, T. Oberlin, C. Fevotte (2020), Negative binomial matrix factorization, IEEE Signal Processing
    Letters 27.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.negative_binomial_nmf([[1, 0, 4], [2, 3, 0]], rank=1)
    >>> sorted(model.named_vars)
    ['H', 'W', 'X', 'alpha']
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
    require_counts(inputs)
    strength = check_strength(known_strength, known, known_h)
    fixed, inputs = check_known(known, strength, inputs)
    of_h, inputs = check_known_activations(known_h, strength, inputs)
    prior_w = check_gamma("w", inputs, alpha_w, beta_w, mean_w, weights_dims(inputs))
    prior_h = check_gamma("h", inputs, alpha_h, beta_h, mean_h, activations_dims(inputs))
    dispersion = None if alpha is None else check_dispersion(alpha, inputs)
    with inputs.model() as model:
        spread = pm.LogNormal("alpha", np.log(MIDDLE), SPREAD) if dispersion is None else dispersion.declare()
        W = declare_weights(
            fixed, lambda name, dims: pm.Gamma(name, **around_known(LEFT, fixed, prior_w.declare, inputs), dims=dims)
        )
        H = declare_activations(
            of_h, lambda name, dims: pm.Gamma(name, **around_known(RIGHT, of_h, prior_h.declare, inputs), dims=dims)
        )
        declare_overdispersed(W, H, spread, inputs)
    return model


def require_counts(inputs: Inputs) -> None:
    """A negative binomial density is one of integers."""
    seen = inputs.observed
    if seen is not None and not seen.is_integer:
        first = seen.values[seen.values != np.floor(seen.values)].flat[0]
        raise InputError(
            "X", f"the value {first:g}", "counts", "round it, or use nz.gamma_nmf, which takes real values"
        )


def check_dispersion(alpha: Any, inputs: Inputs) -> Hyperparameter:
    """One for all cells, for each feature or for each sample."""
    checked = check_hyperparameter("alpha", alpha, ("feature", "obs"), inputs)
    expected = "one for all cells, one for each feature, of shape (F, 1), or one for each sample, of shape (1, N)"
    if isinstance(checked.value, Free):
        if checked.value.tie is None:
            raise InputError("alpha", "free(tie=None), one for each cell", expected, 'tie="obs" or tie="feature"')
        return checked
    value = checked.value[None, :] if checked.value.ndim == 1 else checked.value
    if value.ndim and 1 not in value.type.shape:
        raise InputError("alpha", f"shape {value.type.shape}", expected)
    return replace(checked, value=value)
