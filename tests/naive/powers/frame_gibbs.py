"""Slow and obvious twins of the kernels of frames: quadrature over activations, complex normals drawn one by one."""

from __future__ import annotations

import numpy as np


def grid(K, low=-12.0, high=12.0, points=400):
    """Points (points^K, K) of log h and the volume of each: the trapezoid rule for what vanishes at both ends."""
    u = np.linspace(low, high, points)
    return np.stack(np.meshgrid(*[u] * K, indexing="ij"), -1).reshape(-1, K), (u[1] - u[0]) ** K


def log_prior(u, shape, scale):
    """Log density of u = log h, h ~ InverseGamma(shape, scale), without its constant."""
    return -(shape * u + scale * np.exp(-u)).sum(-1)


def posterior(power, W, shape, scale, background=0.0, **of_grid):
    """Exact expectations given one frame (F,), W (F, K): H (K,), H^2, 1 / H, relative powers and shares (F, K)."""
    u, _ = grid(W.shape[1], **of_grid)
    h = np.exp(u)
    variance = h @ W.T + background
    log_density = log_prior(u, shape, scale) - (np.log(variance) + power / variance).sum(-1)
    p = np.exp(log_density - log_density.max())
    p /= p.sum()
    share = W * h[:, None, :] / variance[:, :, None]
    ratio = 1.0 + share * (power / variance - 1.0)[:, :, None]
    return {
        "mean": p @ h,
        "square": p @ h**2,
        "inverse": p @ (1.0 / h),
        "ratio": np.einsum("g,gfk->fk", p, ratio),
        "share": np.einsum("g,gfk->fk", p, share),
    }


def log_marginal(powers, W, shape, scale, **of_grid):
    """log p(frame | W) of frames (n, F), by quadrature."""
    u, volume = grid(W.shape[1], **of_grid)
    variance, prior = np.exp(u) @ W.T, log_prior(u, shape, scale)
    base = prior - np.log(np.exp(prior).sum() * volume) - np.log(variance).sum(-1)
    found = []
    for part in np.array_split(powers, -(-len(powers) // 200)):
        log_density = base - part @ (1.0 / variance).T
        top = log_density.max(axis=1)
        found.append(top + np.log(np.exp(log_density - top[:, None]).sum(axis=1) * volume))
    return np.concatenate(found)


def draw_components(power, variances, rng):
    """Complex components (F, K) of one draw given their sum sqrt(power): from the prior, then corrected."""

    def normal(size):
        return (rng.normal(size=size) + 1j * rng.normal(size=size)) / np.sqrt(2.0)

    c = normal(variances.shape) * np.sqrt(variances)
    share = variances / variances.sum(1, keepdims=True)
    return c + share * (np.sqrt(power) - c.sum(1))[:, None]


def relative_powers(left, rest, weights, h, e, cosine):
    """Relative powers (K, D) of the components of one frame from given exponentials and cosines (draws, D)."""
    K, parts = len(h), []
    for k in range(K):
        if k == len(e):
            return np.array([*parts, left])
        s = weights[k] * h[k] / rest[k]
        part = s * left + (1 - s) * e[k] + 2 * cosine[k] * np.sqrt(s * (1 - s) * left * e[k])
        parts.append(part)
        left = left + e[k] - part
    return np.array(parts)


def stream_weights(statistics, counts, sizes, start, a=0.0, b=0.0, batches=None, inverses=None, mean=1.0):
    """W (F, K) along a stream from statistics (steps, F, K) and how often each cell was seen, (steps, F).

    With inverses (steps, K) of the activations, whose prior has them at ``mean``, the scale is expanded: the statistics
    of all steps are kept, and rescaled each time.
    """
    if inverses is not None:
        return _expanded_weights(statistics, counts, sizes, start, a, b, batches, inverses, mean)
    S, M, mass, frames, path = np.zeros_like(start), np.zeros(len(start)), 0.0, 0, []
    batches = np.ones(len(statistics)) if batches is None else batches
    for s, m, size, n in zip(statistics, counts, sizes, batches, strict=True):
        S, M, mass = S + size * (s / n - S), M + size * (m / n - M), mass + size * (1 - mass)
        frames += n
        with np.errstate(all="ignore"):
            W = (S / mass + b / frames) / (M[:, None] / mass + a / frames)
        path.append(np.maximum(np.where(M[:, None] > 0, W, start), 1e-100))
    return np.array(path)


def _expanded_weights(statistics, counts, sizes, start, a, b, batches, inverses, mean):
    """The weight of a step in later ones is its size times the product of 1 - size of those between."""
    n_steps, path = len(statistics), []
    batches = np.ones(n_steps) if batches is None else np.asarray(batches)
    s = np.array([s / n for s, n in zip(statistics, batches, strict=True)])
    m = np.array([m / n for m, n in zip(counts, batches, strict=True)])
    v = np.array([v / n for v, n in zip(inverses, batches, strict=True)])
    for t in range(n_steps):
        weight = np.array([sizes[i] * np.prod(1 - np.asarray(sizes[i + 1 : t + 1])) for i in range(t + 1)])
        weight /= weight.sum()
        scale = mean / (weight @ v[: t + 1])
        s[: t + 1] *= scale
        v[: t + 1] *= scale
        S, M, frames = np.tensordot(weight, s[: t + 1], 1), weight @ m[: t + 1], batches[: t + 1].sum()
        with np.errstate(all="ignore"):
            W = (S + b / frames) / (M[:, None] + a / frames)
        path.append(np.maximum(np.where(M[:, None] > 0, W, start), 1e-100))
    return np.array(path)
