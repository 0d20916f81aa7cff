"""Exact EM for binary chains: W, p and q with all 2^K states summed over (Yildirim, Cemgil, Singh 2012, section 3.1).

X_t ~ Poisson(W h_t), each row of H a Markov chain in {0, 1}. An iteration is::

    E   P(h_kt = 1 | X), the expected transitions, E[c_fkt | X]       filter and smoother over the 2^K states
    M   w_fk = (a - 1 + sum_t E[c_fkt]) / (r + sum_t M_ft P(h_kt = 1))         M the mask times the exposure
        p = E[0->0] / E[0->0 or 0->1],  q = E[1->1] / E[1->1 or 1->0]          (chain_updates)

with a = 1, r = 0 where W has no prior. The objective is log p(X, W, p, q), H summed out, in nats; it never falls. The
solution's posterior of H is exact: draws of its paths, with P(h_kt = 1 | X) and the most probable path in ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.chains import update_chain
from nmf_zoo.inference.hmm.m_step import ChainCounts
from nmf_zoo.inference.hmm.recursions import Recursions, as_activations
from nmf_zoo.inference.hmm.samples import CountsBySample, read_samples
from nmf_zoo.inference.hmm.starts import mean_of_weights, start_values, start_weights
from nmf_zoo.inference.hmm.support import supports_exact
from nmf_zoo.inference.shared.factor_view import Side, two_sides
from nmf_zoo.inference.shared.multiplicative import update
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.basis_states import BinaryChain
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BasisChainPrior, Factorisation, Poisson


class ExactState(NamedTuple):
    """Parameters, and what the smoother says at them.

    W : (F, K); values : p, q, ... by name; marginals : (T, K) P(on); pairs : (K, 4); sources : (F, K) sum_t E[c];
    objective : log p(X, W, values)
    """

    W: Array
    values: dict[str, Array]
    marginals: Array
    pairs: Array
    sources: Array
    objective: float


class ExactInfo(NamedTuple):
    """objective: log p at the new parameters; residual: how far the old ones were from stationary."""

    objective: float
    residual: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class HMMExact:
    """Options of exact EM for binary chains: none."""


@dataclass(frozen=True)
class ExactProblem:
    """What all restarts share."""

    structure: Factorisation
    samples: CountsBySample
    side: Side
    workers: Workers


def supports(structure: Factorisation, options: HMMExact) -> Verdict:
    """Binary chains of few components; see :func:`~nmf_zoo.inference.hmm.support.supports_exact`."""
    return supports_exact(structure)


def prepare(structure: Factorisation, options: HMMExact, workers: Workers) -> ExactProblem:
    """Lay out the data by samples."""
    return ExactProblem(structure, read_samples(structure), two_sides(structure)[0], workers)


def init(problem: ExactProblem, key: np.uint64, start: Mapping[str, Array]) -> ExactState:
    """W given, or random with the mean of the data; p and q given, or in the middle of their priors. H is not used."""
    values = start_values(problem.structure, start)
    structure, half = problem.structure, np.full(problem.structure.H.shape[::-1], 0.5)  # on half of the time
    mean = partial(mean_of_weights, structure, problem.samples.weights, half)
    W = start_weights(structure.W, start, mean, child(key, 0))
    return _look(problem, W, values)


def step(problem: ExactProblem, state: ExactState, key: np.uint64 | None = None) -> tuple[ExactState, ExactInfo]:
    """One iteration: maximise over W and the chain, then smooth at the new parameters."""
    W, residual = state.W, 0.0
    if not problem.side.is_fixed:
        denominator = problem.samples.weights.over_samples(state.marginals)
        W, residual = update(problem.side, "density", W, state.sources, denominator, state.values, problem.workers)
    counts = ChainCounts(state.pairs, state.marginals[0][:, None], len(state.marginals) - 1)
    values = update_chain(problem.structure.H, counts, state.values)
    moves = [np.max(np.abs(values[name] - state.values[name])) for name in values]
    new = _look(problem, W, values)
    return new, ExactInfo(new.objective, float(max([residual, *moves])))


def finish(
    problem: ExactProblem, state: ExactState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Draws of H's paths given everything else, which stays as it is; their marginals and the best path for ``fit``."""
    structure, recursions = problem.structure, _recursions(problem, state.W, state.values)
    paths = recursions.draw_paths(draws, key)[2]
    values = {name: np.broadcast_to(value, (draws, *value.shape)) for name, value in state.values.items()}
    values |= structure.W.variables(np.broadcast_to(state.W, (draws, *state.W.shape)))
    name = structure.H.name
    values[name] = as_activations(paths, structure.rank)
    best = as_activations(recursions.best_path()[2], structure.rank)
    chance = np.ascontiguousarray(np.minimum(state.marginals.T, 1.0))  # a sum over states may round above 1
    return values, {f"{name}_mean": chance, f"{name}_best": best}


def _recursions(problem: ExactProblem, W: Array, values: Mapping[str, Array]) -> Recursions:
    return recursions_of(problem.structure, problem.samples, W, values)


def recursions_of(
    structure: Factorisation, samples: CountsBySample, W: Array, values: Mapping[str, Array]
) -> Recursions:
    """At these parameters."""
    prior = structure.H.prior
    assert isinstance(prior, BasisChainPrior)
    law = (np.array(np.broadcast_to(part, (W.shape[1], 1))[:, 0]) for part in prior.law(values))
    return Recursions(samples.counts(W), samples.base, W, BinaryChain(*law))


def _look(problem: ExactProblem, W: Array, values: dict[str, Array]) -> ExactState:
    """Smooth at these parameters."""
    recursions = _recursions(problem, W, values)
    log_p, impossible, sums = recursions.smooth()
    if impossible != WITHOUT_DATA:
        where = f"{problem.structure.axes[1]} {impossible}"
        do = "give a background, or start W with a positive entry for every feature"
        raise RunFailed(f"hmm_exact: no state of the chains can make the counts of {where}: {do}")
    structure = problem.structure
    objective = log_p + problem.samples.constant + structure.W.log_density(W, values)
    objective += sum(float(np.sum(own.prior.log_density(values[name]))) for name, own in structure.unknowns.items())
    return ExactState(W, values, sums.marginals, sums.pairs, recursions.sources(sums, W), objective)


ENGINE: Engine = Engine(
    name="hmm_exact",
    verb="fit",
    likelihoods=(Poisson,),
    chains=(BasisChainPrior,),
    projects=2,
    takes_known=True,
    options=HMMExact,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
