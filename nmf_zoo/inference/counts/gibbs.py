"""Gibbs sampling for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 2), with exact moves beside it.

With C[f, k, n] the sources of a count, X = sum_k C, one sweep draws in this order::

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n))            only where x_fn > 0 and observed
    w_fk ~ Gamma(a_w + sum_n C, r_w + sum_n M_fn h_kn)
    h_kn ~ Gamma(a_h + sum_f C, r_h + sum_f M_fn w_fk)
    scale  w_k -> c w_k, h_k -> h_k / c            c generalised inverse Gaussian
    shear  w_k -> w_k + e w_j, h_j -> h_j - e h_k  e by slice sampling, all ordered pairs
    slopes of covariates                           slice sampling given H (see ``slopes.py``)
    hyperparameters with a proper prior            from their conditional if conjugate, else by slice sampling
    unknown scales of a prior with their factor    slice sampling (see ``hyperparameter_draws.py``)

Under a half-normal prior of precision q a cell has the density w^n exp(-r w - q w^2 / 2), with n its counts, of which
there are exact draws by rejection (:mod:`nmf_zoo.kernels.random.modified_half_normal`); scales are then slice sampled,
and there is no shear, nor are there trajectories.

M is the mask times the exposure; a background is one more source that belongs to no component. A factor without a
prior has shape 1 and rate 0 in these conditionals. Scale and shear leave W H alone, and so the likelihood: they draw
from the prior along directions that the data cannot see. The shear changes the allocation, so it comes after H and
before the next C.

Allocating counts mixes slowly where they are large or few. Where `Gibbs.trajectories` says so, and once the warm-up has
adapted it, a sweep is therefore a Hamiltonian trajectory of every row of H given W, then of W given H (in
``nmf_zoo/kernels/hmc/poisson_rows.py``), and the moves; each leaves the same posterior invariant. One sweep in twenty
allocates as well.

Small data sweep without Python: :mod:`nmf_zoo.kernels.counts.sweeps` takes the same steps with the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.counts.slopes import at_base, draw_slopes, effects_of, has_covariates
from nmf_zoo.inference.counts.sweeps import (
    has_masses,
    is_small,
    make_kept,
    make_sweeps,
    make_tuning,
    make_workspace,
    trajectories_pay,
    with_priors,
)
from nmf_zoo.inference.shared.factor_view import PriorCells, Side, as_variables, impute_counts, prior_cells, two_sides
from nmf_zoo.inference.shared.hyperparameter_draws import Hyperparameters, draw_hyperparameters, lay_out_hyperparameters
from nmf_zoo.inference.shared.joint import LogJoint, followed_means
from nmf_zoo.inference.shared.layout import Layout, SumsOfWeights, by_count, compress, weigh
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_counts, takes_priors
from nmf_zoo.inference.shared.slice_sampling import draw_orbit_scales
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.compile.ahead import Call
from nmf_zoo.kernels.compile.apart import Address, address_of
from nmf_zoo.kernels.counts.allocation import allocate_sources, make_scratch
from nmf_zoo.kernels.counts.gibbs import draw_scales, move_shears
from nmf_zoo.kernels.counts.joint import weigh_features, weigh_samples
from nmf_zoo.kernels.counts.sweeps import (
    ACTIVATIONS,
    HYPERPARAMETERS,
    ORBIT,
    ORBIT_EVERY,
    SCALES,
    SHEARS,
    SOURCES,
    TRAJECTORIES,
    WEIGHTS,
    CountFactors,
    CountSweeps,
    apply_scales,
    keep,
    run_hmc,
    run_sweeps,
    set_rates_of_components,
)
from nmf_zoo.kernels.hmc.adaptation import Kept, Schedule, Tuning, begin_sweep, end_sweep
from nmf_zoo.kernels.random.draws import TINY, draw_factor
from nmf_zoo.kernels.random.keyed_rng import child, children, generator_of
from nmf_zoo.kernels.random.modified_half_normal import draw_half_normal_factor
from nmf_zoo.options import check_types, names_checked
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.engine import CAN_RUN, DRAW, LARGE, STEPS, Engine, Verdict, usual_sweep
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import (
    Array,
    Dense,
    Factor,
    Factorisation,
    GammaPrior,
    HalfNormalPrior,
    LogLinearGammaPrior,
    Poisson,
)

MOVES = ("scale", "shear")
CHANCES = 1.0, 1.0  # as `run_hmc` returns them
MOST_REPLICAS = 10_000  # no table takes so many
OF_DENSE = (1 << 22, 13.0), (LARGE, 5.4)  # products of a pass, and the iterations in the time of a sweep from there on


class GibbsState(NamedTuple):
    """W (F, K), Ht (N, K), the hyperparameters by name, each side's counts by component, what trajectories learnt."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    of_features: Array
    of_samples: Array
    tuning: Tuning | None


class GibbsInfo(NamedTuple):
    """scale_move: root mean square of log c over the components, 0 without the move."""

    scale_move: float


class TrajectoryInfo(NamedTuple):
    """The same where trajectories run: their mean acceptance probabilities (NaN before they do) and leapfrog steps."""

    scale_move: float
    accept_W: float
    accept_H: float
    n_steps_W: float
    n_steps_H: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class Gibbs:
    """Options of Gibbs sampling.

    Attributes
    ----------
    moves : which moves along the orbit follow each sweep: any of "scale" and "shear". They need both factors unknown.
        "scale" also moves an unknown mean, rate or scale of a prior together with its factor.
        Powers have the same two, under inverse-gamma priors; beside trajectories they follow every tenth sweep. So do
        normal data, "shear" where no gamma shape differs from 1, after every sweep.
    trajectories : where Hamiltonian trajectories take over once the warm-up has adapted them: "auto" where there are
        enough counts for the cells of W and H (about 0.7 each with prior shapes of 1, and more with smaller shapes),
        "always" on any, "never". Tables with more than 262,144 filled cells, and more than 4,194,304 in all, go
        without. Where the data are powers, "auto" is "always", and nothing goes without. Of negative binomial counts
        it is "always", too, up to 262,144 cells, zeros among them. Normal data have none, and no counts in blocks of
        samples (``data=``), whose one move is "scale".
    temperatures : replica exchange, for posteriors with several modes: how many replicas of each chain, from the
        posterior to the prior; or powers of the likelihood, falling from 1 to 0 or more. Powers in between are adapted
        in the warm-up. None for none. Of counts, with gamma priors of known hyperparameters
        (:mod:`nmf_zoo.inference.evidence.replicas`)
    """

    moves: tuple[str, ...] = MOVES
    trajectories: Literal["auto", "always", "never"] = "auto"
    temperatures: int | tuple[float, ...] | None = None

    def __post_init__(self):
        check_types(self)
        given = (self.moves,) if isinstance(self.moves, str) else self.moves
        wrong = [move for move in given if move not in MOVES] if isinstance(given, Sequence) else given
        if wrong or not isinstance(given, Sequence):
            raise InputError("moves", repr(wrong), f"a selection of {list(MOVES)}; () for none")
        object.__setattr__(self, "moves", tuple(given))
        object.__setattr__(self, "temperatures", check_temperatures(self.temperatures))


def check_temperatures(given: Any) -> int | tuple[float, ...] | None:
    """How many replicas, or their temperatures as floats."""
    if given is None:
        return None
    expected = "an integer >= 2, or numbers that fall from 1 to 0 or more"
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if not 2 <= given <= MOST_REPLICAS:
            raise InputError("temperatures", repr(given), expected)
        return int(given)
    try:
        ladder = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("temperatures", repr(given)[:60], expected) from None
    if ladder.ndim != 1 or len(ladder) < 2 or ladder[0] != 1.0 or not np.all(np.diff(ladder) < 0.0) or ladder[-1] < 0.0:
        raise InputError("temperatures", repr(given)[:60], expected, "e.g. temperatures=8 or (1, 0.3, 0.1, 0)")
    return tuple(ladder.tolist())


@dataclass(frozen=True)
class GibbsProblem:
    """What all chains share.

    ``priors`` is None when hyperparameters are drawn; ``checked`` are the cells of ``mean``; ``sweeps`` is what a
    small problem needs to sweep without Python, or for trajectories, else None. With unknown hyperparameters its priors
    are a guess that every sweep replaces.
    """

    structure: Factorisation
    options: Gibbs
    layout: Layout
    order: Array
    weights: SumsOfWeights
    workers: Workers
    log_joint: LogJoint
    priors: PriorCells | None
    hyperparameters: Hyperparameters | None
    checked: tuple[Array, Array]
    sweeps: CountSweeps | None

    @property
    def compiled(self) -> CountSweeps | None:
        """What sweeps need to follow each other without Python; None where they can't."""
        return None if self.priors is None else self.sweeps

    @property
    def runs_hmc(self) -> bool:
        """Whether trajectories run."""
        return self.sweeps is not None and self.sweeps.plan.runs_hmc

    @cached_property
    def hmc(self) -> Address:
        """Trajectories, as compiled sweeps call them. Where none run they are not compiled."""
        return address_of(run_hmc, self.example, CHANCES, is_called=self.runs_hmc)

    @property
    def example(self) -> tuple[Any, ...]:
        """Arguments of :func:`run_hmc`, of the types that it is called with."""
        assert self.sweeps is not None
        (n_features, n_samples), rank = self.structure.shape, self.structure.rank
        W, Ht = np.ones((n_features, rank)), np.ones((n_samples, rank))
        factors, tuning = CountFactors(W, Ht, W, Ht), _first_tuning(self.structure, self.sweeps)
        what = Schedule(allocates=False, runs_hmc=True, measures=True, moves=False)
        return self.sweeps, factors, tuning, make_workspace(self.sweeps, factors), what, np.uint64(0)

    def over_samples(self, Ht: Array) -> Array:
        """sum_n weight_fn h_kn, by the kernel that a small problem's sweeps use."""
        if self.sweeps is None:
            return self.weights.over_samples(Ht)
        out = np.empty((self.structure.shape[0], Ht.shape[1]))
        weigh_samples(out, self.sweeps.weights, Ht)
        return out

    def over_features(self, W: Array) -> Array:
        """sum_f weight_fn w_fk"""
        if self.sweeps is None:
            return self.weights.over_features(W)
        out = np.empty((self.structure.shape[1], W.shape[1]))
        weigh_features(out, self.sweeps.weights, W)
        return out


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson counts with gamma, half-normal (or proper flat) factors and proper hyperpriors."""
    checks = (takes_counts, _takes_families, is_proper)
    found = next((verdict for verdict in (check(structure) for check in checks) if not verdict), CAN_RUN)
    if found and options.trajectories == "always" and has_half_normals(structure):
        given = 'trajectories="always", which are for gamma priors, and there is a half-normal one'
        return Verdict(f'{given}: leave it at "auto"')
    return found


def _takes_families(structure: Factorisation) -> Verdict:
    return takes_priors(structure, GammaPrior, LogLinearGammaPrior, HalfNormalPrior)


def has_half_normals(structure: Factorisation) -> bool:
    """Whether a factor has a half-normal prior."""
    return any(side.is_half_normal for side in two_sides(structure))


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> GibbsProblem:
    """Lay out the data for the sweeps."""
    layout, weights = compress(structure), weigh(structure)
    values = start_hyperparameters(structure, {})
    priors, asked = prior_cells(structure, values), options.trajectories
    checked, sweeps = checked_cells(structure.shape), None
    runs_hmc = asked == "always" or (asked == "auto" and trajectories_pay(structure, layout, values))
    in_blocks = all_free(structure) and not has_half_normals(structure)
    if (runs_hmc or not values) and is_small(structure, layout, weights, runs_hmc) and in_blocks:
        sweeps = make_sweeps(structure, options.moves, runs_hmc, layout, weights, priors, checked)
    order = by_count(layout)
    release(structure)
    return GibbsProblem(
        structure=structure,
        options=options,
        layout=layout,
        order=order,
        weights=weights,
        workers=workers,
        log_joint=LogJoint(structure, layout, weights, workers),
        priors=None if values else priors,
        hyperparameters=lay_out_hyperparameters(at_base(structure), options.moves),
        checked=checked,
        sweeps=sweeps,
    )


def init(problem: GibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> GibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start)
    values = start_hyperparameters(problem.structure, start)
    tuning = None if problem.sweeps is None else _first_tuning(problem.structure, problem.sweeps)
    return GibbsState(W, Ht, values, np.zeros_like(W), np.zeros_like(Ht), tuning)


def _first_tuning(structure: Factorisation, sweeps: CountSweeps) -> Tuning:
    of_W, of_H = (side.prior_rate.shape for side in sweeps.sides)
    return make_tuning(of_W, of_H, has_masses(structure))


def step(problem: GibbsProblem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep."""
    return _sweep(problem, state, key, is_tuning=False)


def tune(problem: GibbsProblem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    return _sweep(problem, state, key, is_tuning=True)


def _sweep(problem: GibbsProblem, state: GibbsState, key: np.uint64, is_tuning: bool):
    if problem.sweeps is None or state.tuning is None or not problem.runs_hmc:
        return state, GibbsInfo(_draw_by_sources(problem, state, key))
    sweeps, tuning, scale_move = problem.sweeps, state.tuning, 0.0
    what = begin_sweep(tuning, is_tuning, ORBIT_EVERY)
    if what.allocates:
        scale_move = _draw_by_sources(problem, state, key)
    if problem.priors is None:
        sweeps = with_priors(sweeps, prior_cells(problem.structure, state.values))
    lengths = float(tuning.W.length[0]), float(tuning.H.length[0])
    factors = _factors(state)
    workspace = make_workspace(sweeps, factors)
    of_W, of_H = run_hmc(sweeps, factors, tuning, workspace, what, child(key, TRAJECTORIES))
    if what.moves and sweeps.plan.draws_W and sweeps.plan.draws_H:
        scale_move = move_along_orbit(problem.options.moves, state, sweeps.priors, child(key, ORBIT))
    end_sweep(tuning, sweeps.sides, workspace.sides, is_tuning)
    _draw_unknowns(problem, state, child(key, TRAJECTORIES, HYPERPARAMETERS))
    return state, TrajectoryInfo(scale_move, of_W, of_H, *lengths)


def _factors(state: GibbsState) -> CountFactors:
    return CountFactors(state.W, state.Ht, state.of_features, state.of_samples)


def _draw_by_sources(problem: GibbsProblem, state: GibbsState, key: np.uint64) -> float:
    """Counts by source, factors, moves and hyperparameters; returns the size of the scale move."""
    structure = problem.structure
    W, H = two_sides(structure)
    keys = children(key, HYPERPARAMETERS + 1)
    priors = problem.priors or prior_cells(structure, state.values)
    draw_sources(problem.layout, problem.order, problem.workers, state, keys[SOURCES])
    if not structure.W.is_fixed:
        counts, weight = state.of_features, problem.over_samples(state.Ht)
        given = (priors.shape_w, counts), (priors.rate_w, weight), keys[WEIGHTS]
        draw_side(problem.workers, state.W, *given, _curve(W, state))
        restore_known(structure.W, state.W)
    if not structure.H.is_fixed:
        counts, weight = state.of_samples, problem.over_features(state.W)
        given = (priors.shape_h, counts), (priors.rate_h, weight), keys[ACTIVATIONS]
        draw_side(problem.workers, state.Ht, *given, _curve(H, state))
        restore_known(structure.H, state.Ht.T)
    scale_move = 0.0
    if not structure.W.is_fixed and not structure.H.is_fixed:
        scale_move = _move(problem, state, priors, key)
    _draw_unknowns(problem, state, keys[HYPERPARAMETERS])
    return scale_move


def _curve(side: Side, state: GibbsState) -> Array | None:
    """(rows, K) precisions of a half-normal prior, any number where components are known; None of another prior."""
    if not side.is_half_normal:
        return None
    whole = np.ones_like(state.Ht if side.is_right else state.W)
    whole[:, side.free] = side.curve(state.values)
    return whole


def _move(problem: GibbsProblem, state: GibbsState, priors: PriorCells, key: np.uint64) -> float:
    """Along the orbit of equal W H, in place; returns the size of the scale move."""
    structure, moves = problem.structure, problem.options.moves
    if not has_half_normals(structure):
        return move_along_orbit(moves, state, priors, key, movable(structure))
    if "scale" not in moves or not all_free(structure):
        return 0.0
    generator = generator_of(child(key, SCALES))
    return apply_scales(state.W, state.Ht, draw_orbit_scales(structure, state.W, state.Ht.T, state.values, generator))


def _draw_unknowns(problem: GibbsProblem, state: GibbsState, key: np.uint64) -> None:
    """Draw the unknown hyperparameters, and move those that scale a factor together with it."""
    structure, W, Ht = problem.structure, state.W, state.Ht
    if not has_covariates(structure):
        scale = draw_hyperparameters(problem.hyperparameters, W, Ht, state.values, key)
        if scale is not None:
            apply_scales(W, Ht, scale)
        return
    draw_slopes(structure, Ht.T, state.values, generator_of(key))
    effects = effects_of(structure, state.values)
    base = np.maximum(Ht / effects, TINY)
    scale = draw_hyperparameters(problem.hyperparameters, W, base, state.values, key)
    if scale is not None:
        apply_scales(W, base, scale)
        np.maximum(base * effects, TINY, out=Ht)
        restore_known(structure.H, Ht.T)


def draw(problem: GibbsProblem, state: GibbsState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    factors = _factors(state)
    if problem.compiled is not None:
        sweeps = problem.compiled
        kept = make_kept(problem.structure, sweeps.followed, 1)
        keep(sweeps, factors, make_workspace(sweeps, factors), kept, 0)
        values, stats = _collect(problem, kept, [key])
        return {name: value[0] for name, value in values.items()}, {name: stats[name][0] for name in ("lp", "mean")}
    values = as_variables(problem.structure, state.W, state.Ht) | state.values
    if problem.structure.imputed is not None:
        values[problem.structure.imputed.name] = impute_counts(problem.structure, state.W[None], state.Ht[None], [key])[
            0
        ]
    mean = followed_means(state.W, state.Ht, problem.checked)
    lp = np.float64(problem.log_joint(state.W, state.Ht, values))
    check_finite(lp, state.W, state.Ht)
    return values, {"lp": lp, "mean": mean}


def run(
    problem: GibbsProblem, state: GibbsState, key: np.uint64, block: Block
) -> tuple[GibbsState, dict[str, Array], dict[str, Array]] | None:
    """The sweeps of a block in one compiled call, and their draws; None where sweeps must go step by step."""
    sweeps, factors = problem.compiled, _factors(state)
    if sweeps is None:
        return None
    kept = make_kept(problem.structure, sweeps.followed, block.kept)
    steps, workspace = child(key, STEPS), make_workspace(sweeps, factors)
    given = sweeps, factors, state.tuning, workspace, kept, tuple(block), problem.hmc, steps
    check_allocation(run_sweeps(*given))
    keys = [child(key, DRAW, sweep) for sweep in range(block.first, block.stop) if block.keeps(sweep)]
    return state, *(_collect(problem, kept, keys) if keys else ({}, {}))


def _collect(problem: GibbsProblem, kept: Kept, keys: list[np.uint64]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables and statistics of the kept sweeps of a small problem; ``keys`` are the draws' streams."""
    structure = problem.structure
    values = as_variables(structure, kept.W, kept.Ht)
    if structure.imputed is not None:
        values[structure.imputed.name] = impute_counts(structure, kept.W, kept.Ht, keys)
    lp = problem.log_joint.complete(kept.lp, kept.W, kept.Ht, values)
    check_finite(lp, kept.W, kept.Ht)
    infos = dict(zip((TrajectoryInfo if problem.runs_hmc else GibbsInfo)._fields, kept.infos.T, strict=False))
    return values, {**infos, "lp": lp, "mean": kept.mean}


# -- the steps of a sweep on data of any size ------------------------------------------------------------------------


def draw_sources(layout: Layout, order: Array, workers: Workers, state: GibbsState, key: np.uint64) -> None:
    """Allocate all counts; chunks own their rows of the long side, and sum into the short side in order.

    ``order`` as :func:`~nmf_zoo.inference.shared.layout.by_count` gives it.
    """
    major, minor = layout.sides(state.W, state.Ht)
    of_major, of_minor = layout.sides(state.of_features, state.of_samples)

    def chunk_counts(chunk: int) -> tuple[int, Array]:
        part, scratch = np.zeros_like(of_minor), make_scratch(layout, major.shape[1], order)
        return allocate_sources(layout, major, minor, chunk, of_major, part, scratch, key), part

    of_minor[:] = 0.0
    failures = 0

    def add(found: tuple[int, Array]) -> None:
        nonlocal failures, of_minor
        failures += found[0]
        of_minor += found[1]

    workers.fold(chunk_counts, range(layout.n_chunks), add)
    check_allocation(failures)


def check_allocation(failures: int) -> None:
    """Stop where counts could not be allocated."""
    if failures:
        raise RunFailed(
            f"gibbs: {failures} counts lie where W H is 0 or not finite: give a start with positive W H there"
        )


def check_finite(lp: Array | np.float64, W: Array, Ht: Array) -> None:
    """Stop where a posterior that is hardly proper has led a factor beyond all numbers."""
    if not np.all(np.isfinite(lp)) and not (np.all(np.isfinite(W)) and np.all(np.isfinite(Ht))):
        raise RunFailed(
            "gibbs: a draw of a factor is beyond all numbers, as its prior and the data hardly hold it: give a factor "
            "without a prior a prior, or raise the shapes of the other's"
        )


def draw_side(
    workers: Workers,
    out: Array,
    shape: tuple[Array, Array],
    rate: tuple[Array, Array],
    key: np.uint64,
    curve: Array | None = None,
) -> None:
    """Draw one factor (rows, K) from its conditional, prior and counts added up, rows shared by the threads.

    It is gamma, with a ``curve`` (rows, K), the precisions of a half-normal prior, modified half-normal.
    """

    shapes, rates = np.empty_like(out), np.empty_like(out)

    def draw_rows(first: int, last: int) -> None:
        for cells, (of_prior, of_data) in ((shapes, shape), (rates, rate)):
            data = of_data[first:last] if len(of_data) > 1 else of_data
            np.add(of_prior[first:last], data, out=cells[first:last])
        if curve is None:
            draw_factor(out, shapes, rates, first, last, key)
        else:
            draw_half_normal_factor(out, shapes, rates, curve, first, last, key)

    workers.map_rows(draw_rows, out)


def restore_known(factor: Factor, array: Array) -> None:
    """The known components of a factor that was drawn as a whole, in our orientation, as they were."""
    if factor.known is not None:
        array[...] = factor.known.whole(factor.known.part(array))


def all_free(structure: Factorisation) -> bool:
    """Whether no factor has known components beside unknown ones."""
    return structure.W.known is None and structure.H.known is None


def movable(structure: Factorisation) -> Array | None:
    """The components that are known neither in W nor in H, which may move along the orbit; None for all."""
    return None if all_free(structure) else np.flatnonzero(structure.free_in_both)


def move_along_orbit(
    moves: tuple[str, ...], state: Any, priors: PriorCells, key: np.uint64, movable: Array | None = None
) -> float:
    """Move along the orbit of equal W H, in place; returns the size of the scale move.

    ``state`` : a NamedTuple with W and Ht, as the states of several samplers are
    ``movable`` : the components that may move, None for all
    """
    if movable is not None:
        if not movable.size:
            return 0.0
        arrays = (np.ascontiguousarray(array[:, movable]) for array in state[:2])
        shape_w, rate_w, shape_h, rate_h = (cells[:, movable] for cells in priors[:4])
        own = PriorCells(shape_w, rate_w, shape_h, rate_h, priors.tilt[movable])
        part = state._replace(W=next(arrays), Ht=next(arrays))
        size = move_along_orbit(moves, part, own, key)
        state.W[:, movable], state.Ht[:, movable] = part.W, part.Ht
        return size
    W, Ht, scale_move = state.W, state.Ht, 0.0
    if "scale" in moves:
        scale = np.empty(W.shape[1])
        a, b = np.empty_like(scale), np.empty_like(scale)
        set_rates_of_components(a, priors.rate_w, W)
        set_rates_of_components(b, priors.rate_h, Ht)
        draw_scales(scale, priors.tilt, a, b, child(key, SCALES))
        scale_move = apply_scales(W, Ht, scale)
    if "shear" in moves and W.shape[1] > 1:
        by_component = np.ascontiguousarray(W.T), np.ascontiguousarray(Ht.T)
        cells = (np.array(array.T, order="C") for array in priors[:4])  # of one kind, whatever priors were declared
        move_shears(*by_component, *cells, child(key, SHEARS))
        W[:], Ht[:] = by_component[0].T, by_component[1].T
    return scale_move


# -- what a first run compiles ---------------------------------------------------------------------------------------


def ahead(structure: Factorisation, options: Gibbs) -> list[Call]:
    """Whole blocks of sweeps, and trajectories, where a run has them."""
    problem = prepare(structure, options, SERIAL)
    if problem.sweeps is None:
        return []
    example = problem.example
    calls: list[Call] = [(run_hmc, example)] if problem.runs_hmc else []
    if problem.compiled is not None:
        block = tuple(Block(first=0, stop=1, base=0, thin=1, tuning=True))
        kept, hmc = make_kept(structure, problem.checked, 1), address_of(run_hmc, example, CHANCES, is_called=False)
        calls.append((run_sweeps, (*example[:4], kept, block, hmc, np.uint64(0))))
    return calls


def sweep_in_iterations(structure: Factorisation) -> float:
    """Of large dense tables an iteration of VB is matrix products, and a sweep draws or moves along trajectories."""
    steps = OF_DENSE if isinstance(structure.data, Dense) else ()
    return next((iterations for least, iterations in steps if structure.products >= least), usual_sweep(structure))


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Poisson,),
    takes_known=True,
    projects=1,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    run=run,
    ahead=ahead,
    sweep_in_iterations=sweep_in_iterations,
)
