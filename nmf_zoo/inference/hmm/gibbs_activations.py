"""H given W and the chain's parameters, block by block of its rows, each block given the others.

Of binary chains a block of B rows has 2^B states, and its path is drawn exactly: filter forward, sample backward. Of
the others, and of blocks with too many states, a path is renewed by particle Gibbs with ancestor sampling, in which the
particles hold the block's rows alone: the others are part of the rates' background. Which rows go together is drawn
anew in every sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.inference.hmm.gibbs_chain import chain_of
from nmf_zoo.inference.hmm.laws import increment_of, law_of, make_population, with_guide
from nmf_zoo.inference.hmm.recursions import Recursions, as_activations
from nmf_zoo.inference.hmm.samples import CountsBySample
from nmf_zoo.kernels.hmm import basis_states
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles.conditional_filter import FilterHistory, renew_path
from nmf_zoo.kernels.hmm.particles.emission import Target, add_standing_components
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan, Population
from nmf_zoo.kernels.hmm.particles.laws import Cloud, Law
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.structure import Array, Factorisation, slices

# -- starts ----------------------------------------------------------------------------------------------------------


def start_paths(
    structure: Factorisation, values: Mapping[str, Array], key: np.uint64, start: Mapping[str, Array]
) -> tuple[Array, Array]:
    """(h, aux), (K, T): given, or drawn from the prior, or of binary chains all on."""
    H, prior, formulas = structure.H, chain_of(structure), formulas_of(structure.H.prior)
    if H.name in start:
        return formulas.with_companion(np.array(start[H.name], dtype=np.float64))
    law, generator = law_of(prior, values, structure.rank), generator_of(key)
    return formulas.with_companion(
        np.stack([formulas.start_path(law, k, H.shape[1], generator) for k in range(H.shape[0])])
    )


MOST_EXACT = 8  # binary rows drawn together exactly: 256 states
ORDER, BLOCKS = range(2)  # children of the key


class FilterWorkspace(NamedTuple):
    """What one block's particle filter needs."""

    history: FilterHistory
    population: Population


@dataclass(frozen=True)
class ActivationRows:
    """How the rows of H are drawn.

    Attributes
    ----------
    structure : the model
    samples : its data, sample by sample
    block : rows that are drawn together
    n_particles, plan : of the conditional filter
    workspaces : by number of rows, those that no chain is using
    """

    structure: Factorisation
    samples: CountsBySample
    block: int
    n_particles: int
    plan: FilterPlan
    workspaces: dict[int, list[FilterWorkspace]] = field(default_factory=dict)

    def blocks(self, key: np.uint64) -> Iterator[Array]:
        """A random partition of the components."""
        rank = self.structure.rank
        order = generator_of(key).permutation(rank)
        return (np.sort(order[part]) for part in slices(rank, self.block))


def draw_rows(rows: ActivationRows, W: Array, h: Array, aux: Array, values: dict[str, Array], key: np.uint64) -> Array:
    """Draw h (K, T) and aux in place; returns (2,) the shares of h, and of its first time, of new particles."""
    prior, renewed = chain_of(rows.structure), np.zeros(2)
    law = law_of(prior, values, len(h))
    for number, block in enumerate(rows.blocks(child(key, ORDER))):
        target = _target(rows.samples, W, h, law, block)
        block_key = child(key, BLOCKS, number)
        if prior.is_binary and len(block) <= MOST_EXACT:
            h[block] = aux[block] = _draw_exactly(rows.structure, target, block_key)
            renewed += len(block)
        else:
            path = Cloud(np.ascontiguousarray(h[block]), np.ascontiguousarray(aux[block]))
            times, first = _renew(rows, path, target, block_key)
            h[block], aux[block] = path
            renewed += len(block) * np.array([times / h.shape[1], first])
    return renewed / len(h)


def _target(samples: CountsBySample, W: Array, h: Array, law: Law, block: Array) -> Target:
    """The block's rows as a model of their own, the others in its background."""
    own = np.ascontiguousarray(W[:, block])
    counts, base = samples.counts(own), samples.base
    if len(block) < len(h):
        counts, base = _with_others(counts, base, np.delete(W, block, 1), np.delete(h, block, 0)), np.zeros_like(base)
    parts = (np.ascontiguousarray(part[:, block]) for part in (law.parameters, law.initial))
    return Target(counts, own, base, Law(law.kind, *parts))


def _with_others(counts: Counts, base: Array, W: Array, h: Array) -> Counts:
    """The counts with base_f + sum_k w_fk h_kt of these components added to the offsets."""
    offset = base[counts.indices] + (counts.offset if counts.offset.size else 0.0)
    add_standing_components(offset, counts, np.ascontiguousarray(W), np.ascontiguousarray(h.T))
    return counts._replace(offset=offset)


def _draw_exactly(structure: Factorisation, target: Target, key: np.uint64) -> Array:
    """The path of a block of binary rows, (B, T)."""
    (p, q, _), (initial, _) = target.law.parameters, target.law.initial
    _, impossible, paths = Recursions(
        target.counts, target.base, target.W, basis_states.BinaryChain(p, q, initial)
    ).draw_paths(1, key)
    _require_possible(structure, impossible)
    return as_activations(paths, len(p))[0].astype(np.float64)


def _renew(rows: ActivationRows, path: Cloud, target: Target, key: np.uint64) -> tuple[int, int]:
    """Renew the path of a block in place; returns the times that are of new particles, and whether the first is."""
    n_rows, n_times = path.h.shape
    workspaces = rows.workspaces.setdefault(n_rows, [])
    try:
        workspace = workspaces.pop()
    except IndexError:  # every chain has its own
        workspace = make_workspace(n_rows, n_times, rows.n_particles, rows.plan.proposal)
    how = with_guide(rows.plan, target.law.kind), increment_of(rows.plan.proposal, target.law.kind)
    times, first, impossible = renew_path(path, workspace.history, workspace.population, target, how, key)
    workspaces.append(workspace)
    _require_possible(rows.structure, impossible)
    return times, first


def make_workspace(n_rows: int, n_times: int, n_particles: int, proposal: int) -> FilterWorkspace:
    """Scratch for all particles of all times, which move by this proposal of `proposals`."""
    history = FilterHistory(
        h=np.empty((n_times, n_rows, n_particles)),
        aux=np.empty((n_times, n_rows, n_particles)),
        ancestors=np.empty((n_times, n_particles), np.int32),
        ready=np.empty((2 * n_rows, n_particles)),
        order=np.empty(n_particles, np.int64),
    )
    return FilterWorkspace(history, make_population(n_rows, n_particles, proposal))


def bytes_of_workspace(n_rows: int, n_times: int, n_particles: int) -> float:
    """What :func:`make_workspace` takes, nearly."""
    return n_times * n_particles * (16.0 * n_rows + 4.0)


def _require_possible(structure: Factorisation, impossible: int) -> None:
    if impossible != WITHOUT_DATA:
        where = f"{structure.axes[1]} {impossible}"
        do = "give a background, or start W with a positive entry for every feature"
        raise RunFailed(f"particle_gibbs: no state of the chains can make the counts of {where}: {do}")
