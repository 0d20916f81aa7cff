"""Slow, obvious twins of variational Bayes for powers: integrals on grids, auxiliary variables written out."""

import numpy as np
from scipy.special import gammaln


def law_on_grid(p, rho, tau, points=4001):
    """(v, weights, log of the integral of v^(p - 1) exp(-(rho v + tau / v) / 2)), the weights of q summing to one.

    The trapezoidal rule in log v, which is all but exact for such smooth densities.
    """
    peak = (
        np.log((p + np.sqrt(p * p + rho * tau)) / rho) if p >= 0 else -np.log((-p + np.sqrt(p * p + rho * tau)) / tau)
    )

    def log_density(y):
        return p * y - 0.5 * (rho * np.exp(y) + tau * np.exp(-y))

    ends = []
    for sign in (-1.0, 1.0):
        outside = 1e-3
        while log_density(peak + sign * outside) > log_density(peak) - 50.0:
            outside *= 2.0
        ends.append(peak + sign * outside)
    y = np.linspace(*ends, points)
    logs = log_density(y)
    weights = np.exp(logs - logs.max())
    return np.exp(y), weights / weights.sum(), float(np.log(weights.sum() * (y[1] - y[0])) + logs.max())


def moments(p, rho, tau):
    """(E[v], 1 / E[1/v]) of one cell."""
    v, weights, _ = law_on_grid(p, rho, tau)
    return float(weights @ v), 1.0 / float(weights @ (1.0 / v))


def over_cells(function, p, rho, tau):
    """A function of one cell's law, over arrays: its results along the last axis."""
    p = np.broadcast_to(p, rho.shape)
    return np.array([function(*law) for law in zip(p.ravel(), rho.ravel(), tau.ravel(), strict=True)])


def means(p, rho, tau):
    """E[v] and 1 / E[1/v] of a factor."""
    return [part.reshape(rho.shape) for part in over_cells(moments, p, rho, tau).T]


def auxiliary(W, H, background):
    """(omega (F, N), phi (K + 1, F, N)): the best ones, background last. W, H: (E, G), of (F, K) and (K, N)."""
    omega = W[0] @ H[0] + background
    phi = np.concatenate([np.einsum("fk,kn->kfn", W[1], H[1]), np.broadcast_to(background, omega.shape)[None]])
    return omega, phi / phi.sum(axis=0)


def cells_bound(x, seen, W, H, background, omega, phi):
    """sum over seen cells of the bound of E[log p(x)] at any auxiliary variables."""
    logs = np.log(omega) + (W[0] @ H[0] + background - omega) / omega
    ratios = np.einsum("kfn,fk,kn->fn", phi[:-1] ** 2, 1.0 / W[1], 1.0 / H[1])
    if np.any(background):
        ratios = ratios + phi[-1] ** 2 / background
    return -float(np.sum((logs + x * ratios)[seen]))


def law_of_W(x, seen, W, H, background, rate, scale):
    """(rho, tau) of W's update, (F, K): prior proportional to v^(p - 1) exp(-rate v - scale / v)."""
    omega, phi = auxiliary(W, H, background)
    rho = 2.0 * (rate + (seen / omega) @ H[0].T)
    return rho, 2.0 * (scale + np.einsum("fn,kfn,kn->fk", seen * x, phi[:-1] ** 2, 1.0 / H[1]))


def step(x, seen, W, H, background, priors):
    """(laws of W and of H, their means): one plain iteration; priors ((p, rate, scale) of W, of H)."""
    law_W = law_of_W(x, seen, W, H, background, *priors[0][1:])
    W = means(priors[0][0], *law_W)
    turned = [part.T for part in H], [part.T for part in W]
    rate, scale = (np.transpose(part) for part in priors[1][1:])
    law_H = [part.T for part in law_of_W(x.T, seen.T, *turned, np.transpose(background), rate, scale)]
    return (law_W, law_H), (W, means(priors[1][0], *law_H))


def factor_bound(p, rho, tau, log_prior):
    """sum over cells of E[log prior] - E[log q]; ``log_prior`` of a v, or of 0 where there is none."""

    def of_cell(order, a, b):
        v, weights, log_integral = law_on_grid(order, a, b)
        log_q = (order - 1) * np.log(v) - 0.5 * (a * v + b / v) - log_integral
        return float(weights @ (log_prior(v) - log_q))

    return float(np.sum(over_cells(of_cell, p, rho, tau)))


def log_inverse_gamma(shape, scale):
    return lambda v: shape * np.log(scale) - gammaln(shape) - (shape + 1) * np.log(v) - scale / v


def log_gamma(shape, rate):
    return lambda v: shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(v) - rate * v
