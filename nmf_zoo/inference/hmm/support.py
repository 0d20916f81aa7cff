"""What the engines for chains can run, and what the others can't where H is a chain."""

from __future__ import annotations

import math

from nmf_zoo.inference.hmm.particle_options import ParticleOptions
from nmf_zoo.inference.hmm.recursions import block_length
from nmf_zoo.inference.shared.requirements import takes_likelihood
from nmf_zoo.runtime.engine import CAN_RUN, Verdict, has_data
from nmf_zoo.structure import (
    BasisChainPrior,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    Poisson,
)

MOST_COMPONENTS = 16
MOST_MEMORY = 4e9  # bytes of rows of 2^K numbers
HYPER_PRIORS = ("uniform", "beta")


def supports_exact(structure: Factorisation) -> Verdict:
    """Binary chains, few enough of them that all 2^K states can be held, and W free, gamma or known."""
    H = structure.H
    if not isinstance(H.prior, BasisChainPrior):
        return Verdict(f"{H.name or 'H'} is no binary chain: it sums over all states of a BasisChain")
    counts = takes_counts(structure)
    if not counts:
        return counts
    for unknown in H.unknowns:
        if unknown.prior.kind not in HYPER_PRIORS:
            return Verdict(f"{unknown.name} has a {unknown.prior.kind} prior: it takes uniform and beta ones")
    return are_states_few(structure)


def supports_particles(structure: Factorisation, options: ParticleOptions) -> Verdict:
    """Any chain, W free, gamma or known, and clouds of particles that fit in memory."""
    H = structure.H
    if not H.is_chain:
        return Verdict(f"{H.name or 'H'} is no chain in time: its columns are independent given W")
    counts = takes_counts(structure)
    return are_particles_few(structure, options) if counts else counts


def takes_counts(structure: Factorisation) -> Verdict:
    """Observed counts, and W free, gamma or known."""
    W = structure.W
    for verdict in (has_data(structure), takes_likelihood(structure, (Poisson,))):
        if not verdict:
            return verdict
    if structure.imputed is not None:
        return Verdict(f"{structure.imputed.name} is a variable: declare missing cells with mask= or NaN instead")
    if not isinstance(W.prior, Flat | GammaPrior | Fixed) or W.unknowns:
        return Verdict(f"{W.name} has neither a known gamma prior, nor none, nor a known value")
    return CAN_RUN


def are_states_few(structure: Factorisation) -> Verdict:
    """Whether rows of 2^K numbers fit: two tables and a sum for every feature, and the rows of one block of times."""
    rank, (n_features, n_times) = structure.rank, structure.shape
    n_rows = 3 * n_features + 2 * block_length(n_times, 1 << rank) + n_times // block_length(n_times, 1 << rank) + rank
    memory = 8.0 * n_rows * 2.0**rank
    if rank > MOST_COMPONENTS or memory > MOST_MEMORY:
        found = f"{rank} components have 2^{rank} states, which take {memory / 1e9:.2g} GB"
        few = f"engine='particle_em' draws from them, in {cloud_memory(structure) / 1e6:.2g} MB"
        return Verdict(f"{found}: lower rank, or {few}")
    return CAN_RUN


def are_particles_few(structure: Factorisation, options: ParticleOptions) -> Verdict:
    """Whether clouds of particles and their sums fit in memory."""
    memory = cloud_memory(structure, options.particles)
    if memory > MOST_MEMORY:
        return Verdict(f"{options.particles} particles would take {memory / 1e9:.2g} GB: take fewer")
    return CAN_RUN


def cloud_memory(structure: Factorisation, n_particles: int = ParticleOptions.particles) -> float:
    """Bytes: two sets of sums for every cell of W; for paths particles of sqrt(T) times, and two clouds for each."""
    rank, (n_features, n_times) = structure.rank, structure.shape
    of_sums = 2.0 * rank * (2 * n_features + 5)
    return 8.0 * n_particles * (of_sums + 3.0 * (2 * rank + 3) * math.sqrt(n_times))
