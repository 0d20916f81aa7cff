"""EM by sequential Monte Carlo for any chain: W and the chain's parameters, H known only through particles.

X_t ~ Poisson(W h_t), H a chain in time (Yildirim, Cemgil, Singh 2012, sections 3 and 4). An iteration is::

    E   particles of h_t filtered through X at the parameters of now; smoothed sums of the chain's transitions, of
        E[c_fkt | X] and of M_ft h_kt                                    M the mask times the exposure
    M   w_fk = (a - 1 + sum_t E[c_fkt]) / (r + sum_t M_ft E[h_kt]),  and the chain's parameters at their best

with a = 1, r = 0 where W has no prior. The objective is the particles' estimate of log p(X | W, parameters), H
integrated out, and the log-density of the priors: in nats, and noisy. It need not rise in each iteration. Its error
falls as particles^-1/2; exp of it is unbiased, so that itself it is low, by half its variance.

So the residual compares means over windows of iterations (:mod:`nmf_zoo.inference.hmm.particle_windows`), and the
solution is the mean over the last whole one, unless that lags behind a climb. Where nothing is unknown, one pass of the
filter is the whole fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.engine import Engine, Verdict
from nmf_zoo.inference.hmm.chain_updates import update_chain
from nmf_zoo.inference.hmm.particle_expectations import Particles, read_particles
from nmf_zoo.inference.hmm.particle_options import ParticleOptions, require_integer, require_word
from nmf_zoo.inference.hmm.particle_report import Judged, judge, report
from nmf_zoo.inference.hmm.particle_start import start_values, start_weights
from nmf_zoo.inference.hmm.particle_windows import Window, look_back
from nmf_zoo.inference.hmm.support import supports_particles
from nmf_zoo.inference.multiplicative import update
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factorisation, Poisson

SMOOTHERS = ("backward", "forward", "path")


class ParticleState(NamedTuple):
    """Parameters, what particles say at them, and how they have moved.

    W : (F, K); values : of the chain's unknowns, by name; expected : Expectations, None where nothing is unknown
    objective : the estimate of log p(X, W, values); iterations : so far; window : Window
    """

    W: Array
    values: dict[str, Array]
    expected: Any
    objective: float
    iterations: int
    window: Window


class ParticleInfo(NamedTuple):
    """objective: the estimate of log p at the new parameters; residual: the move from one window to the next."""

    objective: float
    residual: float


@dataclass(frozen=True, kw_only=True)
class ParticleEM(ParticleOptions):
    """Options of EM by sequential Monte Carlo, for chains of every kind.

    The objective is an estimate, as is all that the fit says. ``fit`` holds the ``log_likelihood`` at the solution, the
    mean of ``repeats`` runs of the filter with its standard error ``log_likelihood_error`` in nats, the filter's mean
    ``H_filtered`` and standard deviation ``H_filtered_sd`` of H given the samples so far, its effective sample size
    ``ess`` at every sample, the share of the samples at which it ``resampled``, and the smoothed ``H_mean`` and
    ``H_sd``, given all samples, of the posterior's draws.

    Where a run stops before it has come to rest, the mean of its last window lags behind: the solution is the last
    iterate then, if its estimate is higher by more than the errors of both.

    Attributes
    ----------
    particles, proposal, resampling, ess : of the filter
    smoother : how the sums over all samples are made: "backward" draws where each particle may have come from anew;
        "forward" sums over all of these, in time particles^2; "path" follows each particle's own line, which is
        fastest, and degenerates over many samples
    repeats : runs of the filter at the solution
    average : the solution is the mean of the last whole window of iterations; False: the last iterate
    """

    smoother: Literal["backward", "forward", "path"] = "backward"
    repeats: int = 4
    average: bool = True

    def __post_init__(self):
        super().__post_init__()
        require_word("smoother", self.smoother, SMOOTHERS)
        require_integer("repeats", self.repeats, 1)
        if type(self.average) is not bool:
            raise InputError("average", repr(self.average), "True or False")


@dataclass(frozen=True)
class Problem:
    """What all restarts share."""

    structure: Factorisation
    options: ParticleEM
    particles: Particles
    side: Side
    workers: Workers

    @property
    def learns(self) -> bool:
        """Whether anything is unknown beside H."""
        return bool(self.structure.unknowns) or not self.side.is_fixed


def supports(structure: Factorisation, options: ParticleEM) -> Verdict:
    """Chains of every kind; see :func:`~nmf_zoo.inference.hmm.support.supports_particles`."""
    return supports_particles(structure, options)


def prepare(structure: Factorisation, options: ParticleEM, workers: Workers) -> Problem:
    """Lay out the data by samples."""
    return Problem(structure, options, read_particles(structure, options), two_sides(structure)[0], workers)


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> ParticleState:
    """W given, or random with the mean of the data; the chain given, or in the middle of its priors. H is not used."""
    values = start_values(problem.structure, start)
    W = start_weights(problem.structure, problem.particles.samples.weights, values, child(key, 0), start)
    return _look(problem, W, values, 0, Window(), child(key, 1))


def step(problem: Problem, state: ParticleState, key: np.uint64) -> tuple[ParticleState, ParticleInfo]:
    """One iteration: maximise over W and the chain, then filter and smooth at the new parameters."""
    if not problem.learns:
        return state, ParticleInfo(state.objective, 0.0)
    W, expected = state.W, state.expected
    if not problem.side.is_fixed:
        pull, drag = expected.sources, expected.drag
        W, _ = update(problem.side, "density", W, pull, drag, state.values, problem.workers)
    values = update_chain(problem.structure.H, expected.chain, state.values)
    window = look_back(state.window, state.iterations + 1, *_parameters(problem, W, values))
    new = _look(problem, W, values, state.iterations + 1, window, key)
    return new, ParticleInfo(new.objective, window.residual)


def finish(
    problem: Problem, state: ParticleState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Draws of H's paths at the solution, which stays as it is, and what the filter says of it."""
    structure, solution = problem.structure, _solution(problem, state, child(key, 1))
    paths, said = report(problem.particles, solution, draws, child(key, 0))
    values = {name: np.broadcast_to(value, (draws, *value.shape)) for name, value in solution.values.items()}
    if not structure.W.is_fixed:
        oriented = structure.W.orient(solution.W)
        values[structure.W.name] = np.broadcast_to(oriented, (draws, *oriented.shape))
    values[structure.H.name] = paths
    return values, said


def _look(
    problem: Problem, W: Array, values: dict[str, Array], iterations: int, window: Window, key: np.uint64
) -> ParticleState:
    """Filter, and smooth where something is unknown."""
    structure, particles = problem.structure, problem.particles
    expected = particles.expect(W, values, key) if problem.learns else None
    log_p = particles.log_likelihood(particles.filter(W, values), key) if expected is None else expected.log_p
    return ParticleState(W, values, expected, log_p + _log_prior(structure, W, values), iterations, window)


def _log_prior(structure: Factorisation, W: Array, values: Mapping[str, Array]) -> float:
    """Of W and the chain's unknowns."""
    others = (float(np.sum(own.prior.log_density(values[name]))) for name, own in structure.unknowns.items())
    return float(structure.W.log_density(W, values)) + sum(others)


def _parameters(problem: Problem, W: Array, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """What is maximised: of W, and of the chain."""
    others = [np.ravel(values[name]) for name in problem.structure.unknowns]
    return np.empty(0) if problem.side.is_fixed else W, np.concatenate([np.empty(0), *others])


def _solution(problem: Problem, state: ParticleState, key: np.uint64) -> Judged:
    """The last iterate, or the mean over the last whole window where that is as good."""
    options = problem.options
    last = judge(problem.particles, state.W, state.values, options.repeats, problem.workers, key)
    if not options.average or state.window.last_mean is None:
        return last
    mean = judge(problem.particles, *_window_mean(problem, state), options.repeats, problem.workers, key)
    of_last, of_mean = (one.log_p + _log_prior(problem.structure, one.W, one.values) for one in (last, mean))
    return last if of_last - of_mean > np.nansum([last.error, mean.error]) else mean


def _window_mean(problem: Problem, state: ParticleState) -> tuple[Array, dict[str, Array]]:
    """(W, values) averaged over the last whole window."""
    mean, W, values, at = state.window.last_mean, state.W, dict(state.values), 0
    if not problem.side.is_fixed:
        W, at = mean[: W.size].reshape(W.shape), W.size
    for name in problem.structure.unknowns:
        values[name] = mean[at : at + values[name].size].reshape(values[name].shape)
        at += values[name].size
    return W, values


ENGINE = Engine(
    name="smc",
    verb="fit",
    likelihoods=(Poisson,),
    options=ParticleEM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
