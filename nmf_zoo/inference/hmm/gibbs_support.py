"""What particle Gibbs can run."""

from __future__ import annotations

from nmf_zoo.inference import gibbs_support as allocation
from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.hmm.gibbs_activations import MOST_EXACT, bytes_of_room
from nmf_zoo.inference.propriety import is_proper
from nmf_zoo.structure import BasisChainPrior, Factorisation, Fixed, Flat, GammaPrior

BLIND_BLOCK, BLOCK = 2, 4  # rows drawn together unless said otherwise: by particles that don't look ahead, and else
MOST_MEMORY = 4e9  # bytes of all particles of all times


def supports_gibbs(structure: Factorisation, block: int, n_particles: int) -> Verdict:
    """Counts, W gamma or known or properly flat, any chain, and room for the particles of all times."""
    if not structure.H.is_chain:
        return Verdict(f"{structure.H.name or 'H'} is no chain in time: its columns are independent given W")
    if structure.imputed is not None:
        return Verdict(f"{structure.imputed.name} is a variable: declare missing cells with mask= or NaN instead")
    if not isinstance(structure.W.prior, Flat | GammaPrior | Fixed):
        return Verdict(f"{structure.W.name} has neither a gamma prior, nor none, nor a known value")
    for verdict in (allocation.takes_counts(structure), is_proper(structure)):
        if not verdict:
            return verdict
    return is_room_small(structure, block, n_particles)


def takes_proposal(structure: Factorisation, proposal: str) -> Verdict:
    """The path's own particle weighs by a proposal's density, which not every one tells."""
    if proposal == "bootstrap" or not isinstance(structure.H.prior, BasisChainPrior):
        return CAN_RUN
    return Verdict(f"{structure.H.name} is binary: with proposal={proposal!r} it runs chains with a density only")


def is_room_small(structure: Factorisation, block: int, n_particles: int) -> Verdict:
    """Whether all particles of all times of a block fit in memory."""
    if isinstance(structure.H.prior, BasisChainPrior) and block <= MOST_EXACT:
        return CAN_RUN
    memory = bytes_of_room(block, structure.shape[1], n_particles)
    if memory <= MOST_MEMORY:
        return CAN_RUN
    found = f"{n_particles} particles of {structure.shape[1]} times, {block} components together"
    return Verdict(f"{found}, would take {memory / 1e9:.2g} GB in each chain: take fewer particles, or a smaller block")
