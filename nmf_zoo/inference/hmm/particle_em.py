"""EM by sequential Monte Carlo for any chain: W and the chain's parameters, H known only through particles.

X_t ~ Poisson(W h_t), H a chain in time (Yildirim, Cemgil, Singh 2012, sections 3 and 4). An iteration is::

    E   particles of h_t filtered through X at the parameters of now; smoothed sums of the chain's transitions, of
        E[c_fkt | X] and of M_ft h_kt                                    M the mask times the exposure
    M   w_fk = (a - 1 + sum_t E[c_fkt]) / (r + sum_t M_ft E[h_kt]),  and the chain's parameters at their best

with a = 1, r = 0 where W has no prior. The objective is the particles' estimate of log p(X | W, parameters), H
integrated out, and the log-density of the priors: in nats, and noisy. It need not rise in each iteration. Its error
falls as particles^-1/2; exp of it is unbiased, so that itself it is low, by half its variance.

So the residual compares means over windows of iterations and the solution is the mean over the last whole one, unless
that lags behind a climb. Where nothing is unknown, one pass of the filter is the whole fit.

The residual compares the mean of the parameters over a window of iterations (10, or a quarter of those before it) with
that of the window before, per iteration from middle to middle. The noise of single iterations goes to and fro and
averages out of it; what it falls to is the larger of the drift and of the noise of two means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.inference.hmm.chains import CHAINS, update_chain
from nmf_zoo.inference.hmm.particle_expectations import Particles, read_particles
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.inference.hmm.particle_options import (
    ParticleOptions,
)
from nmf_zoo.inference.hmm.starts import mean_of_weights, start_values, start_weights, typical_activations
from nmf_zoo.inference.hmm.support import supports_particles
from nmf_zoo.inference.shared.factor_view import Side, two_sides
from nmf_zoo.inference.shared.multiplicative import update
from nmf_zoo.kernels.numerics.moments import standard_deviation
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_least, names_checked
from nmf_zoo.results.groups import Series, variable_dims
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, ChainPrior, Factorisation, Poisson


class ParticleEMState(NamedTuple):
    """Parameters, what particles say at them, and how they have moved.

    W : (F, K); values : of the chain's unknowns, by name; expected : Expectations, None where nothing is unknown
    objective : the estimate of log p(X, W, values); iterations : so far; window : ParameterWindow
    """

    W: Array
    values: dict[str, Array]
    expected: Any
    objective: float
    iterations: int
    window: ParameterWindow


class ParticleEMInfo(NamedTuple):
    """objective: the estimate of log p at the new parameters; residual: the move from one window to the next."""

    objective: float
    residual: float


@names_checked
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
        check_least(self, repeats=1)


@dataclass(frozen=True)
class ParticleEMProblem:
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


def prepare(structure: Factorisation, options: ParticleEM, workers: Workers) -> ParticleEMProblem:
    """Lay out the data by samples."""
    return ParticleEMProblem(structure, options, read_particles(structure, options), two_sides(structure)[0], workers)


def init(problem: ParticleEMProblem, key: np.uint64, start: Mapping[str, Array]) -> ParticleEMState:
    """W given, or random with the mean of the data; the chain given, or in the middle of its priors. H is not used."""
    structure, values = problem.structure, start_values(problem.structure, start)
    weights, typical = problem.particles.samples.weights, typical_activations(structure, values)
    mean = partial(mean_of_weights, structure, weights, typical)
    W = start_weights(structure.W, start, mean, child(key, 0))
    return _look(problem, W, values, 0, ParameterWindow(), child(key, 1))


def step(problem: ParticleEMProblem, state: ParticleEMState, key: np.uint64) -> tuple[ParticleEMState, ParticleEMInfo]:
    """One iteration: maximise over W and the chain, then filter and smooth at the new parameters."""
    if not problem.learns:
        return state, ParticleEMInfo(state.objective, 0.0)
    W, expected = state.W, state.expected
    if not problem.side.is_fixed:
        numerator, denominator = expected.sources, expected.activations
        W, _ = update(problem.side, "density", W, numerator, denominator, state.values, problem.workers)
    values = update_chain(problem.structure.H, expected.chain, state.values)
    window = look_back(state.window, state.iterations + 1, *_parameters(problem, W, values))
    new = _look(problem, W, values, state.iterations + 1, window, key)
    return new, ParticleEMInfo(new.objective, window.residual)


def finish(
    problem: ParticleEMProblem, state: ParticleEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Draws of H's paths at the solution, which stays as it is, and what the filter says of it."""
    structure, solution = problem.structure, _solution(problem, state, child(key, 1))
    paths, said = report(problem.particles, solution, draws, child(key, 0))
    values = {name: np.broadcast_to(value, (draws, *value.shape)) for name, value in solution.values.items()}
    values |= structure.W.variables(np.broadcast_to(solution.W, (draws, *solution.W.shape)))
    values[structure.H.name] = paths
    return values, said


def _look(
    problem: ParticleEMProblem,
    W: Array,
    values: dict[str, Array],
    iterations: int,
    window: ParameterWindow,
    key: np.uint64,
) -> ParticleEMState:
    """Filter, and smooth where something is unknown."""
    structure, particles = problem.structure, problem.particles
    expected = particles.expect(W, values, key) if problem.learns else None
    log_p = particles.log_likelihood(particles.filter(W, values), key) if expected is None else expected.log_p
    return ParticleEMState(W, values, expected, log_p + _log_prior(structure, W, values), iterations, window)


def _log_prior(structure: Factorisation, W: Array, values: Mapping[str, Array]) -> float:
    """Of W and the chain's unknowns."""
    others = (float(np.sum(own.prior.log_density(values[name]))) for name, own in structure.unknowns.items())
    return float(structure.W.log_density(W, values)) + sum(others)


def _parameters(problem: ParticleEMProblem, W: Array, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """What is maximised: of W, and of the chain."""
    others = [np.ravel(values[name]) for name in problem.structure.unknowns]
    return np.empty(0) if problem.side.is_fixed else W, np.concatenate([np.empty(0), *others])


def _solution(problem: ParticleEMProblem, state: ParticleEMState, key: np.uint64) -> Judged:
    """The last iterate, or the mean over the last whole window where that is as good."""
    options = problem.options
    last = judge(problem.particles, state.W, state.values, options.repeats, problem.workers, key)
    if not options.average or state.window.last_mean is None:
        return last
    mean = judge(problem.particles, *_window_mean(problem, state), options.repeats, problem.workers, key)
    of_last, of_mean = (one.log_p + _log_prior(problem.structure, one.W, one.values) for one in (last, mean))
    return last if of_last - of_mean > np.nansum([last.error, mean.error]) else mean


def _window_mean(problem: ParticleEMProblem, state: ParticleEMState) -> tuple[Array, dict[str, Array]]:
    """(W, values) averaged over the last whole window."""
    mean, W, values, at = state.window.last_mean, state.W, dict(state.values), 0
    if not problem.side.is_fixed:
        W, at, known = mean[: W.size].reshape(W.shape), W.size, problem.structure.W.known
        W = W if known is None else known.whole(known.part(W))  # a mean of equal numbers is rounded
    for name in problem.structure.unknowns:
        values[name] = mean[at : at + values[name].size].reshape(values[name].shape)
        at += values[name].size
    return W, values


# -- averages of the last iterations ---------------------------------------------------------------------------------


WINDOW = 10  # iterations that the residual looks back on at first


class ParameterWindow(NamedTuple):
    """Parameters summed over the iterations of this window, and their mean over the last whole one.

    start, end : the iterations before this window, and its last one; last_middle : the last one's mean iteration
    """

    total: Any = None
    start: int = 0
    end: int = WINDOW
    last_mean: Any = None
    last_middle: float = 0.0
    residual: float = np.inf


def look_back(window: ParameterWindow, iteration: int, W: Array, others: Array) -> ParameterWindow:
    """The parameters after an iteration (from 1) added to its window; at its end the move becomes the residual.

    It is sum |move| / sum W of the weights, and the largest |move| of the others.
    """
    now = np.concatenate([W.ravel(), others])
    total = now if window.total is None else window.total + now
    if iteration < window.end:
        return window._replace(total=total)
    mean, middle = total / (window.end - window.start), 0.5 * (window.start + window.end + 1)
    residual = np.inf
    if window.last_mean is not None:
        moves = np.abs(mean - window.last_mean) / (middle - window.last_middle)
        of_w = moves[: W.size].sum() / max(mean[: W.size].sum(), np.finfo(np.float64).tiny)
        residual = float(max(of_w, moves[W.size :].max(initial=0.0)))
    return ParameterWindow(None, iteration, iteration + max(WINDOW, iteration // 4), mean, middle, residual)


# -- what the result tells -------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """Parameters, and what filters say of them.

    W : (F, K); values : of the chain's unknowns, by name
    log_p : an estimate of log p(X | W, values); error : its standard error; filtering : the first filter, with moments
    """

    W: Array
    values: dict[str, Array]
    log_p: float
    error: float
    filtering: ParticleFilter


def judge(
    particles: Particles, W: Array, values: dict[str, Array], repeats: int, workers: Workers, key: np.uint64
) -> Judged:
    """Run ``repeats`` filters."""
    filters = [particles.filter(W, values, moments=number == 0) for number in range(repeats)]
    keys = [child(key, number) for number in range(repeats)]
    estimates = np.array(workers.map(particles.log_likelihood, filters, keys))
    return Judged(W, values, *combine(estimates), filters[0])


def report(particles: Particles, judged: Judged, draws: int, key: np.uint64) -> tuple[Array, dict[str, Any]]:
    """(draws of H's paths (draws, K, T), what goes to ``fit``)"""
    structure, filtering = particles.structure, judged.filtering
    paths = particles.paths(judged.W, judged.values, draws, key)
    if cast(ChainPrior, structure.H.prior).is_binary:
        paths = paths.astype(np.int8)
    name, (of_component, of_sample) = structure.H.name, variable_dims(structure, structure.H.name, 2)
    said = {
        f"{name}_mean": paths.mean(axis=0),
        f"{name}_sd": standard_deviation(paths),
        f"{name}_filtered": np.ascontiguousarray(filtering.track.means.T),
        f"{name}_filtered_sd": Series((of_component, of_sample), np.ascontiguousarray(filtering.track.sds.T)),
        "ess": Series((of_sample,), filtering.track.sizes),
        "resampled": Series((), np.array(share_resampled(filtering))),
        "log_likelihood": Series((), np.array(judged.log_p)),
        "log_likelihood_error": Series((), np.array(judged.error)),
    }
    return paths, said


def combine(estimates: Array) -> tuple[float, float]:
    """(log of the mean of e^estimates, its standard error): log p(X) from unbiased estimates of p(X); NaN for one.

    Relative to their mean, n estimates spread by sqrt(n) at most, however noisy; their logarithms tell then.
    """
    n = len(estimates)
    log_p = float(logsumexp(estimates) - np.log(n))
    if n == 1:
        return log_p, np.nan
    ratios = np.exp(estimates - log_p)
    return log_p, float(max(np.std(ratios, ddof=1), standard_deviation(estimates, ddof=1)) / np.sqrt(n))


def share_resampled(filtering: ParticleFilter) -> float:
    """The share of the samples after the first at which the particles were resampled."""
    return float(filtering.track.resampled[1:].mean()) if filtering.n_times > 1 else 0.0


ENGINE: Engine = Engine(
    name="particle_em",
    verb="fit",
    likelihoods=(Poisson,),
    chains=CHAINS,
    takes_known=True,
    options=ParticleEM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
    is_noisy=True,
)
