"""Where a chain of particle Gibbs begins: values given, else paths of H from their prior and W at the data's scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.hmm.gibbs_chain import chain_of
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.kernels.chain_draws import LARGEST, SMALLEST, log_normal_path, unit_path
from nmf_zoo.kernels.particles.laws import BASIS, UNIT, Law
from nmf_zoo.structure import Array, BasisChainPrior, Chain, Factorisation, UnitChainPrior


def start_paths(
    structure: Factorisation, values: Mapping[str, Array], key: np.uint64, start: Mapping[str, Array]
) -> tuple[Array, Array]:
    """(h, aux), (K, T): given, or drawn from the prior; of binary chains all on, which no count makes impossible."""
    H, prior = structure.H, chain_of(structure)
    if H.name in start:
        return with_companion(prior, np.array(start[H.name], dtype=np.float64))
    if isinstance(prior, BasisChainPrior):
        return np.ones(H.shape), np.ones(H.shape)
    law = law_of(prior, values, structure.rank)
    generator = np.random.Generator(np.random.Philox(key=int(key)))
    return with_companion(prior, np.stack([_draw_path(law, k, H.shape[1], generator) for k in range(H.shape[0])]))


def with_companion(prior: Chain, h: Array) -> tuple[Array, Array]:
    """Activations moved inside their support, and what stands beside them (see `kernels.particles.laws.Cloud`)."""
    if isinstance(prior, BasisChainPrior):
        h = (h > 0.5).astype(np.float64)
        return h, h.copy()
    if isinstance(prior, UnitChainPrior):
        h = np.clip(h, SMALLEST, LARGEST)
        return h, 1.0 - h
    h = np.maximum(h, SMALLEST)
    return h, np.log(h)


def _draw_path(law: Law, k: int, n_times: int, generator: np.random.Generator) -> Array:
    assert law.kind != BASIS
    if law.kind == UNIT:
        return unit_path(generator.random((2, n_times)), float(law.parameters[0, k]))
    mean, persistence, scale = map(float, law.parameters[:, k])
    first = float(law.initial[0, k]), float(law.initial[1, k])
    return log_normal_path(generator.standard_normal(n_times), mean, persistence, scale, first)
