"""PyMC step methods, our kernels for a part of someone's own model while PyMC samples the rest: ``nz.ConjugateGibbs``.

The block is X ~ Poisson(W H), W and H gamma given whatever else is in the model. The priors' parameters may be any
expression of other variables: they are evaluated at each step. Given them, W and H are drawn as in
:mod:`nmf_zoo.inference.counts.gibbs`, which is right as long as nothing else in the model depends on W or H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import LogTransform
from pymc.step_methods.compound import BlockedStep
from pymc.step_methods.state import DataClassState, dataclass_state
from pymc.util import get_random_generator
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared.factor_view import PriorCells, Side, two_sides
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import names_checked
from nmf_zoo.reading.data import read_data
from nmf_zoo.reading.graph import ModelGraph, name_of
from nmf_zoo.reading.likelihoods import LIKELIHOODS, Observation, read_likelihood
from nmf_zoo.reading.priors import LEFT, RIGHT, read_factor
from nmf_zoo.reading.registry import find, operation, parameters
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Array, Factorisation, Poisson

TAKEN = (Poisson,)  # likelihoods under which gamma factors are conjugate given the sources
SMALLEST = np.finfo(np.float64).tiny  # whose logarithm PyMC can hold


@dataclass_state
class ConjugateGibbsState(DataClassState):
    """What a stored chain keeps of the step: nothing, since it begins each step at the point."""


@names_checked
class ConjugateGibbs(BlockedStep):
    """Draw the factors of X ~ Poisson(W @ H) in your own PyMC model by Gibbs sweeps; other steps take the rest.

    Pass it to ``pm.sample(step=[nz.ConjugateGibbs()])``: it finds the factors itself, and PyMC gives all other
    variables to NUTS. The parameters of the factors' gamma priors may be any expression of these: hyperparameters, a
    regression. With known ones it does what ``nz.sample(engine="gibbs")`` does, trajectories included.

    Parameters
    ----------
    vars : the variables W and H (or the one that is not known), or None: those of the only block in the model
    sweeps : Gibbs sweeps of a step
    model : the model; default the one of the ``with`` context
    rng : random generator; ``pm.sample`` sets it for each chain

    Raises
    ------
    UnsupportedModel : there is no such block, there are several, or something else depends on W or H; the message says
        which

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> with pm.Model():
    ...     rate = pm.Exponential("rate", 1.0)
    ...     W = pm.Gamma("W", 1.0, 1.0, shape=(2, 1))
    ...     H = pm.Gamma("H", 2.0, rate, shape=(1, 3))
    ...     X = pm.Poisson("X", W @ H, observed=[[1, 4, 2], [0, 2, 3]])
    ...     step = nz.ConjugateGibbs()
    >>> [variable.name for variable in step.vars]
    ['W_log__', 'H_log__']
    """

    name = "conjugate_gibbs"
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {"tune": (bool, []), "scale_move": (np.float64, [])}
    _state_class = ConjugateGibbsState

    def __init__(
        self,
        vars: Sequence[Variable] | Variable | None = None,
        *,
        sweeps: int = 4,
        model: pm.Model | None = None,
        rng: Any = None,
        blocked: bool = True,
    ):
        check_counts(sweeps=(sweeps, 1))
        model = pm.modelcontext(model)
        block = find_block(model, None if vars is None else _names(model, vars))
        refusal = gibbs.supports(block.structure, gibbs.Gibbs())
        if not refusal:
            raise UnsupportedModel(f"ConjugateGibbs: {refusal.reason}")
        self.vars = [model.rvs_to_values[rv] for rv in block.factors]
        self.tune, self.sweeps, self.rng = True, sweeps, get_random_generator(rng)
        self._structure = block.structure
        self._problem = gibbs.prepare(block.structure, gibbs.Gibbs(), SERIAL)
        self._gammas = block.gammas
        self._logs = {name_of(rv): isinstance(model.rvs_to_transforms[rv], LogTransform) for rv in block.factors}
        self._values = {name_of(rv): name_of(model.rvs_to_values[rv]) for rv in block.factors}
        self._state: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """For the processes of chains: without the layout, which holds locks and is made again."""
        return {**vars(self), "_problem": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._problem = gibbs.prepare(self._structure, gibbs.Gibbs(), SERIAL)

    def set_rng(self, rng: Any) -> None:
        """Begin a chain (PyMC 5)."""
        self.rng, self._state = get_random_generator(rng, copy=False), None

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin a chain (PyMC 6)."""
        self.set_rng(rng)

    def step(self, point: Mapping[str, Array]) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        """Sweeps from the point's W and H, given its other values."""
        key, state = np.uint64(self.rng.integers(2**63)), self._state_at(point)
        if self._gammas is None:
            problem, advance = self._problem, gibbs.tune if self.tune else gibbs.step
        else:
            problem, advance = self._given(self._gammas(point)), gibbs.step
        for sweep in range(self.sweeps):
            state, info = advance(problem, state, child(key, sweep))
        self._state = state
        return {**point, **self._point_of(state)}, [{"tune": self.tune, "scale_move": info.scale_move}]

    def _given(self, gammas: Mapping[str, tuple[Array, Array]]) -> gibbs.GibbsProblem:
        """The problem with these priors."""
        W, H = two_sides(self._problem.structure)
        (shape_w, rate_w), (shape_h, rate_h) = (_cells(side, gammas) for side in (W, H))
        tilt = shape_w.sum(axis=0) - shape_h.sum(axis=0)
        return replace(self._problem, priors=PriorCells(shape_w, rate_w, shape_h, rate_h, tilt), sweeps=None)

    def _state_at(self, point: Mapping[str, Array]) -> gibbs.GibbsState:
        """The sweeps' state at a point, with what trajectories have learnt in this chain."""
        values = {
            name: np.exp(point[self._values[name]]) if is_log else point[self._values[name]]
            for name, is_log in self._logs.items()
        }
        begun = gibbs.init(self._problem, np.uint64(0), {name: np.asarray(value) for name, value in values.items()})
        return begun if self._state is None else begun._replace(tuning=self._state.tuning)

    def _point_of(self, state: gibbs.GibbsState) -> dict[str, Array]:
        """Values of the factors as a point holds them."""
        found = {}
        for side, array in zip(two_sides(self._problem.structure), (state.W, state.Ht), strict=True):
            name = side.factor.name
            if name in self._logs:
                value = np.maximum(side.as_variable(array), SMALLEST)
                found[self._values[name]] = np.ascontiguousarray(np.log(value) if self._logs[name] else value)
        return found


def _names(model: pm.Model, given: Sequence[Variable] | Variable) -> list[str]:
    """Names of the variables, which may be given as values, too."""
    listed = list(given) if isinstance(given, Sequence) else [given]
    return [name_of(model.values_to_rvs.get(variable, variable)) for variable in listed]


def _cells(side: Side, gammas: Mapping[str, tuple[Array, Array]]) -> tuple[Array, Array]:
    """Shape and rate of every cell of a factor (rows, K); of a known one what adds nothing."""
    rows = side.factor.shape[::-1] if side.is_right else side.factor.shape
    if side.factor.name not in gammas:
        return np.ones(rows), np.zeros(rows)
    variable = side.factor.orient(np.empty(side.factor.shape)).shape
    given = (np.broadcast_to(array, variable) for array in gammas[side.factor.name])
    shape, rate = (np.ascontiguousarray(side.turn(side.factor.orient(array))) for array in given)
    return shape, rate


# -- the conjugate block of a model ----------------------------------------------------------------------------------


Gammas = dict[str, tuple[Array, Array]]  # factor -> (shape, rate) of its cells, in the variable's orientation


@dataclass(frozen=True)
class StepBlock:
    """What is drawn together.

    Attributes
    ----------
    structure : the factorisation, its priors as they are at the model's initial point
    factors : the free variables among W and H
    gammas : function of a point that gives shapes and rates by factor; None where they are known
    """

    structure: Factorisation
    factors: tuple[Variable, ...]
    gammas: Callable[[Mapping[str, Array]], Gammas] | None


def find_block(model: pm.Model, wanted: Sequence[str] | None) -> StepBlock:
    """The block of the factors ``wanted`` (names), or the only one there is."""
    seen = _observation(model, wanted)
    factors = tuple(operand.variable for operand in (seen.mean.left, seen.mean.right))
    free = tuple(variable for variable in factors if variable in model.free_RVs)
    if wanted is not None and set(wanted) != {name_of(variable) for variable in free}:
        expected = ", ".join(name_of(variable) for variable in free)
        _refuse(f"got {', '.join(wanted)}; the block of {seen.name} is {expected}: give these, or none")
    _refuse_other_uses(model, seen, free)
    return StepBlock(_structure(model, seen, free), free, _gammas(model, free))


def _refuse(reason: str) -> None:
    raise UnsupportedModel(f"ConjugateGibbs: {reason}")


def _observation(model: pm.Model, wanted: Sequence[str] | None) -> Observation:
    """The observed Poisson variable whose mean is a product with gamma factors."""
    found = [seen for rv in model.observed_RVs if (seen := _as_block(model, rv)) is not None]
    if wanted is not None:
        found = [seen for seen in found if set(wanted) & set(_factor_names(seen))] or found
    if not found:
        _refuse("no observed Poisson variable has a mean W @ H of Gamma or Exponential variables")
    if len(found) > 1:
        several = " and ".join(", ".join(_factor_names(seen)) for seen in found)
        _refuse(f"there are {len(found)} blocks, {several}: name the variables of one, and add a step for each")
    return found[0]


def _factor_names(seen: Observation) -> list[str]:
    return [name_of(operand.variable) for operand in (seen.mean.left, seen.mean.right)]


def _as_block(model: pm.Model, rv: Variable) -> Observation | None:
    recogniser = find(LIKELIHOODS, rv)
    seen = None if recogniser is None else recogniser(rv)
    if seen is None or seen.likelihood not in TAKEN:
        return None
    operands = [operand.variable for operand in (seen.mean.left, seen.mean.right)]
    free = [variable for variable in operands if variable in model.free_RVs]
    others_known = all(variable in free or ModelGraph.is_known(variable) for variable in operands)
    return seen if free and others_known and all(map(_is_gamma, free)) else None


def _is_gamma(variable: Variable) -> bool:
    return type(variable.owner.op) in (operation(pm.Gamma), operation(pm.Exponential))


def _refuse_other_uses(model: pm.Model, seen: Observation, free: Sequence[Variable]) -> None:
    """Nothing but X may depend on the factors: their conditional would not be gamma."""
    variables = [*model.free_RVs, *model.observed_RVs]
    for user in [*variables, *model.potentials]:
        if user is seen.variable:
            continue
        others = [variable for variable in variables if variable is not user]
        inputs = user.owner.inputs if user in variables else [user]
        used = [rv for rv in free if rv is not user and rv in set(ancestors(inputs, blockers=others))]
        if used:
            is_factor = "its prior" if user in free else "it"
            _refuse(f"{name_of(used[0])} is used in {name_of(user)}, too, and {is_factor} would change its conditional")


def _structure(model: pm.Model, seen: Observation, free: Sequence[Variable]) -> Factorisation:
    """The factorisation with everything else at the model's initial point."""
    others = {name: value for name, value in _initial_values(model).items() if name not in map(name_of, free)}
    fixed = pm.do(model, others) if others else model
    graph = ModelGraph(fixed)
    variable = fixed[seen.name]
    recogniser = find(LIKELIHOODS, variable)
    assert recogniser is not None
    again = recogniser(variable)
    W, H = read_factor(graph, again.mean.left, LEFT), read_factor(graph, again.mean.right, RIGHT)
    shape = (W.shape[0], H.shape[1])
    data, cells = read_data(graph, again, shape)
    likelihood = read_likelihood(graph, again, shape, data, cells)
    return Factorisation(likelihood=likelihood, W=W, H=H, data=data, cells=cells)


def _initial_values(model: pm.Model) -> dict[str, Array]:
    """The free variables, not transformed, where sampling would start."""
    variables = model.unobserved_value_vars
    evaluate = model.compile_fn(variables, inputs=model.value_vars, on_unused_input="ignore")
    values = dict(zip(map(name_of, variables), evaluate(model.initial_point()), strict=True))
    return {name_of(rv): values[name_of(rv)] for rv in model.free_RVs}


def _gammas(model: pm.Model, free: Sequence[Variable]) -> Callable[[Mapping[str, Array]], Gammas] | None:
    """Shapes and rates of the factors' priors as a function of a point."""
    pairs = [_shape_and_scale(variable) for variable in free]
    if all(ModelGraph.is_known(part) for pair in pairs for part in pair):
        return None
    flat = model.replace_rvs_by_values([part for pair in pairs for part in pair])
    evaluate = model.compile_fn(flat, inputs=model.value_vars, on_unused_input="ignore")

    def gammas(point: Mapping[str, Array]) -> Gammas:
        values = evaluate(point)
        return {name_of(rv): (values[2 * i], 1.0 / values[2 * i + 1]) for i, rv in enumerate(free)}

    return gammas


def _shape_and_scale(variable: Variable) -> tuple[Variable, Variable]:
    if type(variable.owner.op) is operation(pm.Exponential):
        (scale,) = parameters(variable)
        return pt.ones_like(scale), scale
    shape, scale = parameters(variable)
    return shape, scale
