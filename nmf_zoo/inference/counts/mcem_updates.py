"""

M-steps of Monte-Carlo EM: W and GaP's free shapes from averaged statistics (Filstroff 2018, eq. 41, 42, 48).

With C alone as the complete data, H integrated out, each component's counts are negative multinomial, and::

    w_fk = S_fk / sum_n e_f alpha_kn / beta_k         S_fk = sum_n E[c_fkn], e the exposure

which is eq. 48 where exposure is 1 and alpha the same for all samples. It needs a rate that is the same for all
samples, and the same cells observed in each. With C and H (eq. 41), and with H alone (eq. 42), S_fk is divided by
T_fk = sum_n M_fn E[h_kn]; this always holds, M being the mask times the exposure.

A free alpha with C as the complete data: at its own best W each component's profile has the slope

    E[sum_n psi(alpha + L_n) - psi(alpha)] - sum_n log(1 + mean L / alpha)         L_n = sum_f c_fkn

and psi(alpha + L) - psi(alpha) = sum_(j < L) 1 / (alpha + j), so that ``reached``, how often L was at each count, is a
sufficient statistic. The slope has no root, and alpha grows for ever towards Poisson counts, when the variance of L is
at most its mean.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side, sum_to
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.structure import Array, GammaPrior, Unknown

SHAPE_RANGE = (1e-6, 1e6)  # a free shape stays inside
LARGEST_STEP = 4.0  # of a free shape in one iteration: the first iterations' components say little
BISECTIONS = 50


def why_not_c(side: Side, weights: Weights) -> str:
    """Why the update with C as the complete data doesn't hold for this model; empty when it does."""
    prior = side.factor.prior
    assert isinstance(prior, GammaPrior)
    name = side.factor.name
    if weights.matrix is not None or np.ptp(weights.of_samples) > 0:
        return "cells are missing, or samples have exposures of their own"
    second = prior.rate if prior.mean is None else prior.mean
    for role, parameter in (("rate or mean", second), ("free shape", prior.shape)):
        of_samples = np.atleast_2d(np.empty(parameter.shape)).shape[1]
        if of_samples > 1 and (role != "free shape" or isinstance(parameter, Unknown)):
            return f"the {role} of {name} differs from sample to sample"
    shape_varies = np.atleast_2d(np.empty(prior.shape.shape)).shape[1] > 1
    if prior.mean is not None and shape_varies:
        return f"the rate of {name} differs from sample to sample"
    return ""


def divide_by_exposure(sources: Array, old: Array, exposure: Array) -> Array:
    """sources / exposure (F or 1, K); what nothing exposes stays as it was."""
    exposure = np.broadcast_to(exposure, old.shape)
    return np.divide(sources, exposure, out=old.copy(), where=exposure > 0)


def exposure_by_prior(weights: Weights, shape: Array, rate: Array) -> Array:
    """sum_n e_f alpha_kn / beta_k, (F or 1, K): what W's column is exposed to, with H integrated out."""
    return weights.of_features * weights.of_samples[0, 0] * (shape.sum(axis=0) / rate[0])


def best_shapes(unknown: Unknown, old: Array, reached: Array, n_samples: int) -> Array:
    """A free shape of GaP, uphill on its profile to the root of the slope, at the most by ``LARGEST_STEP``.

    ``reached`` is (K, counts), averaged over sweeps. Where it holds no count the shape stays.
    """
    at_least = np.cumsum(reached[:, ::-1], axis=1)[:, ::-1]  # samples whose count was so large or larger
    above, counts = at_least[:, 1:], np.arange(reached.shape[1] - 1)
    mean = above.sum(axis=1, keepdims=True) / n_samples

    def slope(shape: Array) -> Array:
        rising = (above / (shape + counts)).sum(axis=1, keepdims=True)
        return sum_to(rising - n_samples * np.log1p(mean / shape), unknown.shape)

    old = old.reshape(unknown.shape)
    low = np.log(np.maximum(old / LARGEST_STEP, SHAPE_RANGE[0]))
    high = np.log(np.minimum(old * LARGEST_STEP, SHAPE_RANGE[1]))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rises = slope(np.broadcast_to(np.exp(middle), mean.shape)) > 0
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    new = np.where(sum_to(mean, unknown.shape) > 0, np.exp((low + high) / 2), old)
    return new.reshape(unknown.variable_shape)


def has_no_root(unknown: Unknown, reached: Array, n_samples: int) -> Array:
    """Where the slope of a free shape stays positive however large it is: counts vary no more than Poisson counts."""
    counts = np.arange(reached.shape[1])
    mean, square = (reached @ counts / n_samples, reached @ counts**2 / n_samples)
    excess = sum_to((square - mean**2 - mean)[:, None], unknown.shape)
    return (excess <= 0) & (sum_to(mean[:, None], unknown.shape) > 0)
