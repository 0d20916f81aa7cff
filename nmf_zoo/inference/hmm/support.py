"""What the exact engine can run, and what the others can't where H is a chain."""

from __future__ import annotations

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.hmm.recursions import block_length
from nmf_zoo.structure import BasisChainPrior, Factorisation, Fixed, Flat, GammaPrior, UnitChainPrior

MOST_COMPONENTS = 16
MOST_MEMORY = 4e9  # bytes of rows of 2^K numbers
HYPER_PRIORS = ("uniform", "beta")


def supports_exact(structure: Factorisation) -> Verdict:
    """Binary chains, few enough of them that all 2^K states can be held, and W free, gamma or known."""
    H, W = structure.H, structure.W
    if not isinstance(H.prior, BasisChainPrior):
        return Verdict(f"{H.name or 'H'} is no binary chain: it sums over all states of a BasisChain")
    if structure.data is None:
        return Verdict(f"nothing is observed in {structure.likelihood.name}")
    if structure.likelihood.kind != "poisson":
        return Verdict(f"its likelihood is {structure.likelihood.kind}, and its updates are for counts")
    if structure.imputed is not None:
        return Verdict(f"{structure.imputed.name} is a variable: declare missing cells with mask= or NaN instead")
    if not isinstance(W.prior, Flat | GammaPrior | Fixed) or W.unknowns:
        return Verdict(f"{W.name} has neither a known gamma prior, nor none, nor a known value")
    for unknown in H.unknowns:
        if unknown.prior.kind not in HYPER_PRIORS:
            return Verdict(f"{unknown.name} has a {unknown.prior.kind} prior: it takes uniform and beta ones")
    return are_states_few(structure)


def are_states_few(structure: Factorisation) -> Verdict:
    """Whether rows of 2^K numbers fit: two tables and a sum for every feature, and the rows of one block of times."""
    rank, (n_features, n_times) = structure.rank, structure.shape
    n_rows = 3 * n_features + 2 * block_length(n_times, 1 << rank) + n_times // block_length(n_times, 1 << rank) + rank
    memory = 8.0 * n_rows * 2.0**rank
    if rank > MOST_COMPONENTS or memory > MOST_MEMORY:
        return Verdict(f"{rank} components have 2^{rank} states, which take {memory / 1e9:.2g} GB: lower rank")
    return CAN_RUN


def chain_verdict(structure: Factorisation, name: str) -> Verdict:
    """Why an engine that knows no chains can't run a model with one; CAN_RUN where that is not the reason."""
    H = structure.H
    if not H.is_chain or name == "hmm_exact":
        return CAN_RUN
    if name != "nuts":
        return Verdict(f"the columns of {H.name} are a Markov chain, and it takes them for independent")
    if isinstance(H.prior, BasisChainPrior):
        return Verdict(f"{H.name} is discrete")
    if isinstance(H.prior, UnitChainPrior):
        return Verdict(f"the density of {H.name} jumps: use slice or Metropolis steps of pm.sample")
    return CAN_RUN
