"""Tables of few counts whose posteriors have modes of known mass, and chains that start in each of them.

A mode is a way to share the counts out between components, so that its mass is a sum over those ways alone
(:mod:`nmf_zoo.inference.evidence.enumeration`). Between the modes lies next to nothing, and no chain crosses it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import logsumexp

import nmf_zoo as nz
from nmf_zoo.inference.evidence import enumeration
from nmf_zoo.inference.shared.layout import likelihood_constant

# Three blocks and two components: one block has a component of its own, the other two share one.
MERGED = np.diag([40, 39, 38])
# Two blocks and two unlike components: either component may explain the first block.
CROSSED = np.diag([40, 30])


def merged_model():
    return nz.gamma_nmf(MERGED, 2, alpha_w=0.5, alpha_h=0.5, mean_h=5.0)


def crossed_model():
    unlike = {"alpha_w": np.array([[1.0, 4.0]]), "alpha_h": np.array([[1.0], [0.3]])}
    return nz.gamma_nmf(CROSSED, 2, **unlike, beta_w=1.0, beta_h=0.1)


def starts_of(counts, owners):
    """A start for each way to give blocks to components, ``owners`` (starts, blocks)."""
    return [_start(np.diag(counts), np.array(own)) for own in owners]


def _start(sizes, owner):
    own = owner[:, None] == np.arange(2)
    return {"W": np.where(own, 1.0, 0.01), "H": np.where(own, sizes[:, None], 0.1).T}


MERGED_STARTS = starts_of(MERGED, [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
CROSSED_STARTS = starts_of(CROSSED, [(0, 1), (1, 0)])


@cache
def log_masses(declare, owners):
    """log of the exact mass of each way to give blocks to components (starts, blocks), and of what lies between."""
    structure = nz.read(declare())
    log_p, sums = _log_probabilities(structure)
    of_first = sums[:, :, : structure.shape[0]]
    owner = np.argmax(of_first, axis=1)  # (ways, blocks) the component with most of a block's counts
    masses = [logsumexp(log_p[np.all(owner == own, axis=1)]) for own in owners]
    between = np.any(of_first.max(axis=1) < 0.75 * of_first.sum(axis=1), axis=1)
    return np.array(masses), logsumexp(log_p[between])


def _log_probabilities(structure):
    """log p(X, sums) of every way to share out X, and the sums (ways, K, F + N)."""
    shared = enumeration.share_out(structure)
    total = shared.log_ways + likelihood_constant(structure)
    for k, integral in enumerate(enumeration.integrals(structure)):
        total = total + integral.log_integral(k, shared.sums[:, k].astype(np.float64))
    return total, shared.sums
