"""How far one gamma distribution is from another, KL(q || p), to full precision."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, psi

from nmf_zoo.structure import Array

LARGE = 1e4  # shapes whose log Gamma is so large that the difference of two has lost digits
FAR = 1e-6  # a rate this small relative to q's


def gamma_divergence(q_shape: Array, q_rate: Array, shape: Array, rate: Array) -> Array:
    """KL(Gamma(q_shape, q_rate) || Gamma(shape, rate)) of cells that broadcast against each other.

    The terms of the usual formula grow like shape * log shape and cancel; here they are differences from the start,
    that of log Gamma(q_shape) and log Gamma(shape) by Stirling's series where both are large.
    """
    more, slack = q_shape - shape, (rate - q_rate) / q_rate
    is_large = np.minimum(q_shape, shape) > LARGE
    a, b = np.where(is_large, shape, LARGE), np.where(is_large, q_shape, LARGE)
    rise = (a - 0.5) * np.log1p((b - a) / a) + (b - a) * (np.log(b) - 1.0) + (1 / b - 1 / a) / 12
    rise = np.where(is_large, rise, gammaln(q_shape) - gammaln(shape))
    near = slack > -1.0 + FAR  # else rate / q_rate has lost its digits in 1 + slack
    log_ratio = np.where(near, np.log1p(np.where(near, slack, 0.0)), np.log(rate) - np.log(q_rate))
    return more * psi(q_shape) - rise - shape * log_ratio + q_shape * slack
