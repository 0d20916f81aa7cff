"""Slow, obvious twins of the Newton kernels: plain NumPy on a full matrix, one cell or one row at a time."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.counts.newton import FLOOR, LEAST_SHARE, SAFE


def descend_row(u, x, V, linear, power, offset=0.0):
    """One round of coordinate descent over a row u (K,) with counts x (N,) at V (N, K)."""
    u, seen = u.copy(), x > 0
    for k in range(len(u)):
        v, m, w = V[seen, k], (V @ u + offset)[seen], u[k]
        numerator = np.sum(x[seen] * v / m) + power[k] / w
        bend = np.sum(x[seen] * v**2 / m**2) + power[k] / w**2
        if bend == 0.0:
            u[k] = FLOOR
            continue
        step = (numerator - linear[k]) / bend * numerator / linear[k]
        if step < 0.0:
            shrink, excess = -step / w, linear[k] - numerator
            rest = np.maximum(m - w * v, 1e-9 * m)
            if power[k] == 0.0 and shrink > 0.5 and np.sum(x[seen] * v / rest) <= linear[k]:
                u[k] = FLOOR
                continue
            if shrink >= 1.0 or excess * shrink < bend * w * (-np.log1p(-shrink) - shrink):
                step = -excess / (bend + excess / w)
        u[k] = max(w + step, w * LEAST_SHARE) if step < 0.0 else w + step
    return u


def improve_block(U, X, V, linear, power, rounds, offset=0.0):
    """A damped Newton step of all rows of U (F, K) that share one curvature, with counts X (F, N) at V (N, K)."""
    means = U @ V.T + offset
    bends = X / means**2
    gram = np.einsum("nk,n,nl->kl", V, bends.sum(axis=0) / bends.sum(), V)
    out = U.copy()
    for f, u in enumerate(U):
        slope = linear - (X[f] / means[f]) @ V - power / u
        hessian = bends[f].sum() * gram + np.diag(power / u**2)
        step = np.zeros(len(u))
        for _ in range(rounds):
            for k in range(len(u)):
                step[k] = max(step[k] - (slope + hessian @ step)[k] / hessian[k, k], -u[k])
        change, gain = V @ step, -slope @ step
        bend = bends[f] @ change**2 + np.sum(power * (step / u) ** 2)
        pole = np.max(np.where(X[f] > 0, -change / means[f], 0.0), initial=0.0)
        pole = max(pole, np.max(np.where(power > 0, -step / u, 0.0)))
        length = gain / bend if gain / bend * pole <= SAFE else gain / (bend + gain * pole)
        workspace = np.min(np.where(step < 0, u / np.where(step < 0, -step, 1.0), np.inf))
        out[f] = np.maximum(u + min(length, workspace) * step, FLOOR)
    return out
