"""

Monte-Carlo expectation-maximisation: maximum marginal likelihood (Filstroff, Lumbreras and Fevotte 2018, section 5).

GaP, W without a prior and H ~ Gamma(alpha, beta) integrated out. Each iteration runs Gibbs sweeps of (H, C) at its W,
on from where the last iteration's ended (eq. 38-40), and then updates W from their averages; M is mask times exposure::

    C     w_fk = (beta_k / alpha_k) mean_n E[c_fkn]        eq. 48; then sum_k (alpha_k / beta_k) w_fk = mean_n x_fn
    CH    w_fk = sum_n E[c_fkn] / sum_n M E[h_kn]          eq. 41
    H     the same with E[c | h] = x w h / (W H) and draws of h, eq. 42

Free shapes alpha move to their best values in the same iteration (:mod:`nmf_zoo.inference.counts.mcem_updates`). Rates
are not free beside W: only W / beta counts (eq. 32). Where W has a prior, too, or is known, what is maximised are free
hyperparameters, from E[v] and E[log v] of the factors' cells (Cemgil 2009, section 4.1 names it).

Stochastic approximation (SAEM): after ``explore`` iterations the statistics are averaged over iterations, S <- S +
g (s - S) with g = t^-step, so that the noise of the draws dies out. Every S is an average of sums over whole tables, so
the identity in the line of C holds for it, too.

The objective is -log p(X | W), exactly where that is affordable, else estimated from the sweeps, at the W they ran at.
It need not fall in each iteration. The residual compares the mean W of a window of iterations (20, or a quarter of
those before it) with that of the window before: sum |difference| / sum W, per iteration from middle to middle; alike
for logarithms of hyperparameters. So the noise of the draws, which goes to and fro, averages out of it, and small steps
of SAEM count as what they would be without averaging. A run ends, "converged", when that is below tol, or after
max_iter iterations; that a window shows no drift does not prove that there is none. The result is the mean over the
last window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed, warn_caller
from nmf_zoo.inference.counts.mcem_expectations import (
    ExactLikelihood,
    GivenW,
    Jointly,
    MCEMExpectations,
    WantedExpectations,
)
from nmf_zoo.inference.counts.mcem_updates import (
    SHAPE_RANGE,
    best_shapes,
    divide_by_exposure,
    exposure_by_prior,
    has_no_root,
    why_not_c,
)
from nmf_zoo.inference.shared.factor_view import as_one_draw, prior_cells, two_sides
from nmf_zoo.inference.shared.hyperparameters import moments_of, untied, update_hyperparameters
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.inference.shared.requirements import knows_weights_only, takes_counts, takes_gammas
from nmf_zoo.inference.shared.start import SPREAD, start_factors, start_hyperparameters
from nmf_zoo.kernels.random.draws import TINY, draw_factor
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.memory import require_memory
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.results.groups import Series
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.runtime.state_patterns import Growing
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Flat, Poisson, Unknown


@names_checked
@dataclass(frozen=True, kw_only=True)
class MCEM:
    """Options of Monte-Carlo EM: GaP's W at the maximum of log p(X | W), H integrated out (Filstroff 2018, section 5).

    ``fit`` holds the column ``norms`` (iteration, component), the ``objective`` -log p(X | W) with its Monte-Carlo
    ``objective_error`` (0 where it is exact), and which components are ``pruned``: those whose share of the expected
    total is at most 0.001. Surplus columns shrink with the number of samples, and slowly with iterations: of 10,000
    samples one can keep a share of 0.006 and is not pruned. So look at the norms, too.

    Attributes
    ----------
    complete : what is drawn and then treated as data: "C", "H" or "CH"; "auto" is "C" where its update holds (no
        missing cells; rate and exposure the same for all samples) and "CH" elsewhere
    sweeps : sweeps of Gibbs sampling in an iteration
    burn_in : how many of an iteration's sweeps are discarded
    step : exponent of the averaging over iterations, above 0.5 and at most 1; None averages nothing
    explore : iterations before the averaging begins
    start : where ``initvals`` say nothing: "random" divides the mean counts among the components at random,
        "deterministic" equally (eq. 51: then only noise separates the components)
    rao_blackwell : expectations given the other variables take the place of draws, wherever they are known; "H" has
        them in its numerator in any case. Averages of drawn C make a cell of W 0 for ever once no draw of an iteration
        holds a count there
    average : the result is the mean of the last whole window of iterations; False: the last iterate
    exact : evaluate log p(X | W) exactly in each iteration; "auto" where that takes less than 10 ms on one thread
    """

    complete: Literal["auto", "C", "H", "CH"] = "auto"
    sweeps: int = 20
    burn_in: int = 5
    step: float | None = None
    explore: int = 200
    start: Literal["random", "deterministic"] = "random"
    rao_blackwell: bool = True
    average: bool = True
    exact: bool | Literal["auto"] = "auto"

    def __post_init__(self):
        check_types(self)
        check_least(self, sweeps=1, burn_in=0, explore=0)
        if self.burn_in >= self.sweeps:
            raise InputError("burn_in", f"{self.burn_in} of {self.sweeps} sweeps", "fewer than sweeps")
        if self.step is not None and not 0.5 < self.step <= 1.0:
            raise InputError("step", repr(self.step), "None or a number above 0.5 and at most 1")


PRUNED = 1e-3  # a component with less than this share of the expected total has been emptied


class MCEMState(NamedTuple):
    """W (F, K), Ht (N, K) where the chains are, hyperparameters by name, averaged statistics by name.

    Ht_mean (N, K) : E[h], averaged alike; norms (iterations, K) : sums of W's columns; errors (iterations,) : of the
    objective
    """

    W: Array
    Ht: Array
    values: dict[str, Array]
    statistics: dict[str, Array]
    Ht_mean: Array
    norms: Growing
    errors: Growing
    window: ObjectiveWindow


class MCEMInfo(NamedTuple):
    """objective: -log p(X | W), exact or estimated; residual: relative size of the mean step over the last window."""

    objective: float
    residual: float


# -- what it can run -------------------------------------------------------------------------------------------------


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson counts: a free W under a gamma H, or gamma or known factors with free hyperparameters."""
    checks = (_check_counts, check_known, check_factors, _check_hyperparameters, _check_complete)
    return next((verdict for verdict in (check(structure, options) for check in checks) if not verdict), CAN_RUN)


def complete_set(structure: Factorisation, options: Any) -> str:
    """ "C", "H" or "CH", and "" when W is not maximised over."""
    W, H = two_sides(structure)
    if not W.is_flat:
        return ""
    if options.complete != "auto":
        return options.complete
    return "CH" if why_not_c(H, weigh(structure)) else "C"


def _check_counts(structure: Factorisation, options: Any) -> Verdict:
    counts = takes_counts(structure)
    return takes_gammas(structure) if counts else counts


def check_known(structure: Factorisation, options: Any) -> Verdict:
    """Beside known components of W it maximises over the others; of hyperparameters there nothing is worked out."""
    asked, W = knows_weights_only(structure), structure.W
    if not asked or W.known is None:
        return asked
    if not isinstance(W.prior, Flat):
        return Verdict(f"{W.variable} has a prior, and beside known components it maximises over new ones without")
    if structure.unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"hyperparameter {names} is unknown, beside known components of {W.name}: give it")
    return CAN_RUN


def check_factors(structure: Factorisation, options: Any) -> Verdict:
    W, H = two_sides(structure)
    if W.is_flat and H.is_gamma:
        return CAN_RUN
    w, h = W.factor.name, H.factor.name
    if H.is_flat:
        if W.is_flat:
            return Verdict(f"{w} and {h} have no prior, so nothing can be integrated out: nz.gap gives {h} one")
        return Verdict(f"{h} has no prior and would have to be integrated out: pass the transpose of X to nz.gap")
    if not structure.unknowns:
        return Verdict(
            f"it maximises over a {w} without a prior, as in nz.gap, or over free hyperparameters, as in "
            "nz.gamma_nmf(alpha_w=nz.free()), and there are neither"
        )
    return CAN_RUN


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: it takes known or free hyperparameters")
    W, H = two_sides(structure)
    if not W.is_flat or not H.is_gamma:
        return CAN_RUN
    shape = H.gamma.shape
    scales = [p.name for role, p in H.gamma.parameters.items() if role != "shape" and isinstance(p, Unknown)]
    if scales and not (isinstance(shape, Unknown) and shape.name in scales):
        name, w = scales[0], W.factor.name
        return Verdict(f"{name} is free, and so is {w}: only their ratio matters (eq. 32), so give {name} a value")
    if scales:
        return Verdict(f"{scales[0]} is shape and rate at once: give the rate a value")
    return CAN_RUN


def _check_complete(structure: Factorisation, options: Any) -> Verdict:
    W, H = two_sides(structure)
    if not W.is_flat:
        if options.complete == "auto":
            return CAN_RUN
        return Verdict(f"complete= says how {W.factor.name} is updated, and it has a prior: leave it out")
    reason = why_not_c(H, weigh(structure)) if options.complete == "C" else ""
    return Verdict(f'the update of complete="C" does not hold ({reason}): use complete="CH"') if reason else CAN_RUN


FEW_SECONDS, MOST_SECONDS = 0.01, 600.0  # of an exact likelihood: worth it unasked; refused


@dataclass(frozen=True)
class MCEMProblem:
    """What all restarts share.

    ``complete`` : "C", "H" or "CH", "" where W is not maximised over; ``likelihood`` : the exact one, where affordable
    """

    structure: Factorisation
    options: MCEM
    complete: str
    expect: GivenW | Jointly
    likelihood: ExactLikelihood | None


def prepare(structure: Factorisation, options: MCEM, workers: Workers) -> MCEMProblem:
    """Lay out the data for the chains; warn of hyperparameters that nothing holds back."""
    loose = [name for side in two_sides(structure) for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warn_caller(f"{', '.join(loose)}: {message}")
    complete = complete_set(structure, options)
    has_unknowns = bool(structure.unknowns)
    wanted = wanted_of(options, complete, has_unknowns and complete != "C", has_unknowns and complete == "C")
    W, H = two_sides(structure)
    if W.is_gamma or H.is_fixed:
        return MCEMProblem(structure, options, complete, Jointly(structure, workers, wanted), None)
    likelihood = _exact_likelihood(structure, options, workers)
    return MCEMProblem(structure, options, complete, GivenW(structure, workers, wanted), likelihood)


def wanted_of(options: MCEM, complete: str, logs: bool = False, reached: bool = False) -> WantedExpectations:
    """What the sweeps gather for the M-step of a complete set; ``logs``, ``reached`` : for free hyperparameters."""
    averages = options.rao_blackwell
    return WantedExpectations(
        options.sweeps,
        options.burn_in,
        expects=averages or complete == "H",
        conditional=averages and complete != "H",
        logs=logs,
        reached=reached,
    )


def _exact_likelihood(structure: Factorisation, options: MCEM, workers: Workers) -> ExactLikelihood | None:
    """What evaluates log p(X | W) exactly, if it was asked for or costs next to nothing."""
    if options.exact is False:
        return None
    likelihood = ExactLikelihood(structure, workers)
    cost = likelihood.cost
    if options.exact is True:
        if cost.seconds > MOST_SECONDS:
            seconds = f"about {cost.seconds:.2g} s an iteration"
            raise RunFailed(f"mcem: exact=True would take {seconds}, more than {MOST_SECONDS:g}: use exact=False")
        # restarts side by side, each with a table of its own
        require_memory("exact", "exact values, a core each", available_cores() * cost.memory, "use exact=False")
    return likelihood if options.exact is True or cost.seconds < FEW_SECONDS else None


# -- where it starts -------------------------------------------------------------------------------------------------


def init(problem: MCEMProblem, key: np.uint64, start: Mapping[str, Array]) -> MCEMState:
    """The start given; else W as the options say, and H at the mean of its prior."""
    structure = problem.structure
    values = start_hyperparameters(structure, start)
    W, Ht = start_factors(structure, key, start)
    if isinstance(problem.expect, GivenW):
        priors = prior_cells(structure, values)
        if structure.H.name not in start:
            Ht = np.ascontiguousarray(priors.shape_h / priors.rate_h)
        if not structure.W.is_fixed and not set(structure.W.shapes) & set(start):
            side = two_sides(structure)[0]
            W = side.with_free(W, _share_mean(problem, Ht, key)[:, side.free])
    return MCEMState(W, Ht, values, {}, Ht.copy(), np.empty((0, W.shape[1])), np.empty(0), ObjectiveWindow())


def _share_mean(problem: MCEMProblem, Ht: Array, key: np.uint64) -> Array:
    expect = problem.expect
    assert isinstance(expect, GivenW)
    n_features, rank = problem.structure.W.shape
    counts = np.bincount(expect.layout.indices, expect.layout.values, n_features)
    exposure = np.broadcast_to(expect.weights.over_samples(Ht), (n_features, rank))
    return share_counts(counts, exposure, problem.options, key)


def share_counts(counts: Array, exposure: Array, options: MCEM, key: np.uint64) -> Array:
    """W with which the counts (F,) of the features are expected, given what exposes it (F, K).

    All columns are alike (eq. 51), or the counts are shared among them at random.
    """
    share = np.ones(exposure.shape)
    if options.start == "random":
        cells = np.full_like(share, SPREAD)
        draw_factor(share, cells, np.ones_like(share), 0, len(share), child(key, 2))
    share /= share.sum(axis=1, keepdims=True)
    return np.divide(counts[:, None] * share, exposure, out=np.zeros_like(share), where=exposure > 0)


# -- an iteration ----------------------------------------------------------------------------------------------------


def step(problem: MCEMProblem, state: MCEMState, key: np.uint64) -> tuple[MCEMState, MCEMInfo]:
    """Sweeps, their averages, and the best parameters given these."""
    found = problem.expect(state.W, state.Ht, state.values, state.Ht_mean, key)
    iteration = len(state.norms)
    weight = step_size(problem.options, iteration) if state.statistics else 1.0
    averaged = found.statistics if weight == 1.0 else _mix(state.statistics, found.statistics, weight)
    W, values = _maximise(problem, found, averaged, state)
    norms = np.vstack([state.norms, W.sum(axis=0)])
    window = look_back(problem, state, W, values, weight)
    objective, error = found.objective, found.error
    if problem.likelihood is not None:
        objective, error = -problem.likelihood(W, values), 0.0
    errors = np.append(state.errors, error)
    new = MCEMState(W, found.Ht, values, averaged, averaged["H"], norms, errors, window)
    return new, MCEMInfo(objective, window.residual)


def step_size(options: MCEM, iteration: int) -> float:
    averaged = iteration - options.explore
    return 1.0 if options.step is None or averaged < 1 else (1.0 + averaged) ** -options.step


def _mix(old: Mapping[str, Array], new: Mapping[str, Array], weight: float) -> dict[str, Array]:
    return {name: old[name] + weight * (new[name] - old[name]) for name in new}


def _maximise(
    problem: MCEMProblem, found: MCEMExpectations, averaged: dict[str, Array], state: MCEMState
) -> tuple[Array, dict[str, Array]]:
    """The M-step: free hyperparameters, then W."""
    structure, values = problem.structure, state.values
    side_w, side_h = two_sides(structure)
    if "reached" in averaged:
        (unknown,) = side_h.factor.unknowns
        shapes = best_shapes(unknown, values[unknown.name], averaged["reached"], structure.shape[1])
        values = {**values, unknown.name: shapes}
    elif structure.unknowns:
        parts = [
            moments_of(side, averaged[name], averaged[f"log_{name}"])
            for side, name in ((side_w, "W"), (side_h, "H"))
            if side.is_gamma and side.factor.unknowns
        ]
        values = update_hyperparameters(parts, values)
    if not problem.complete:
        return found.W, values
    expect = problem.expect
    assert isinstance(expect, GivenW)
    if problem.complete == "C":
        priors = prior_cells(structure, values)
        exposure = exposure_by_prior(expect.weights, priors.shape_h, priors.rate_h)
    else:
        exposure = expect.weights.over_samples(averaged["H"])
    new = divide_by_exposure(averaged["sources"], state.W, exposure)
    return side_w.with_free(state.W, new[:, side_w.free]), values


def finish(
    problem: MCEMProblem, state: MCEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """W, the posterior mean of H given it, and free hyperparameters, as a posterior of one draw."""
    structure = problem.structure
    best, free = solution(problem, state)
    W, Ht = state.statistics.get("W", best), state.Ht_mean
    return as_one_draw(structure, W, Ht, free), _report(problem, state, free)


def _mean_activations(structure: Factorisation, Ht: Array, free: Mapping[str, Array]) -> Array:
    """The mean of H by component, (K,): of its prior, or of what it is known to be."""
    if structure.H.is_fixed:
        return Ht.mean(axis=0)
    priors = prior_cells(structure, free)
    return np.mean(priors.shape_h / priors.rate_h, axis=0)


def _report(problem: MCEMProblem, state: MCEMState, free: Mapping[str, Array]) -> dict[str, Any]:
    """What goes to ``fit``; a free shape at the end of its range is worth a warning."""
    activations = _mean_activations(problem.structure, state.Ht_mean, free)
    for name, value in free.items():
        unknown, reached = problem.structure.unknowns[name], state.statistics.get("reached")
        endless = reached is not None and np.any(has_no_root(unknown, reached, problem.structure.shape[1]))
        if endless or np.any(value > 0.99 * SHAPE_RANGE[1]):
            message = "counts that vary no more than Poisson counts do have no best shape: it grows for ever"
            warn_caller(f"{name} is at {np.max(value):.3g}: {message}")
    return series_of(problem, state, activations)


def series_of(problem: Any, state: Any, activations: Array) -> dict[str, Any]:
    """What ``fit`` holds of the iterations; from the mean of H, (K,), which components have been emptied."""
    expected = state.norms[-1] * activations
    return {
        "norms": Series(("iteration", "component"), state.norms),
        "objective_error": Series(("iteration",), state.errors),
        "pruned": Series(("component",), expected <= PRUNED * expected.sum()),
        "complete": Series((), np.array(problem.complete)),
    }


# -- means over windows of iterations --------------------------------------------------------------------------------


WINDOW = 20  # iterations that the residual looks back on at first


class ObjectiveWindow(NamedTuple):
    """What is maximised, summed over the iterations of this window, and its mean over the last one.

    time : sum of the weights of all iterations so far; times, last_middle : its sum over this window, its mean over
    the last; end : this window's last iteration; residual : of the last
    """

    total: Any = None
    times: float = 0.0
    iterations: int = 0
    time: float = 0.0
    end: int = WINDOW
    last_mean: Any = None
    last_middle: float = 0.0
    residual: float = np.inf


def _parameters(problem: Any, W: Array, values: Mapping[str, Array]) -> Array:
    """What is maximised: W, logarithms of hyperparameters."""
    free = [np.log(np.ravel(value)) for value in values.values()]
    return np.concatenate([W.ravel() if problem.complete else np.empty(0), *free])


def look_back(problem: Any, state: Any, W: Array, values: Mapping[str, Array], weight: float) -> ObjectiveWindow:
    """This iteration added to the window; at its end the move since the last one becomes the residual."""
    now, window, iteration = _parameters(problem, W, values), state.window, len(state.norms) + 1
    time = window.time + weight
    total, times = (now, time) if window.iterations == 0 else (window.total + now, window.times + time)
    window = window._replace(total=total, times=times, iterations=window.iterations + 1, time=time)
    if iteration < window.end:
        return window
    mean, middle, in_w = total / window.iterations, times / window.iterations, W.size if problem.complete else 0
    residual = np.inf
    if window.last_mean is not None:
        moves = np.abs(mean - window.last_mean) / (middle - window.last_middle)
        residual = float(max(moves[:in_w].sum() / max(mean[:in_w].sum(), TINY), moves[in_w:].max(initial=0.0)))
    end = iteration + max(WINDOW, iteration // 4)
    return ObjectiveWindow(None, 0.0, 0, time, end, mean, middle, residual)


def solution(problem: Any, state: Any) -> tuple[Array, dict[str, Array]]:
    """(W, free hyperparameters), averaged over the last whole window if the options say so and there was one."""
    mean = state.window.last_mean
    if not problem.options.average or mean is None:
        return state.W, state.values
    W = mean[: state.W.size].reshape(state.W.shape) if problem.complete else state.W
    if problem.structure.W.known is not None:  # of which a mean has rounded
        W = problem.structure.W.known.whole(problem.structure.W.known.part(W))
    values, at = {}, mean.size - sum(value.size for value in state.values.values())
    for name, value in state.values.items():
        values[name] = np.exp(mean[at : at + value.size]).reshape(value.shape)
        at += value.size
    return W, values


ENGINE: Engine = Engine(
    name="mcem",
    verb="fit",
    likelihoods=(Poisson,),
    takes_known=True,
    options=MCEM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    is_noisy=True,
)
