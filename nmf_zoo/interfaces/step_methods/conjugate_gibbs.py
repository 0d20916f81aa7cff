"""``nz.ConjugateGibbs``: PyMC samples a model, and W and H in it are drawn by Gibbs sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.logprob.transforms import LogTransform
from pymc.step_methods.compound import BlockedStep
from pymc.step_methods.state import DataClassState, dataclass_state
from pymc.util import get_random_generator
from pytensor.graph.basic import Variable

from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared.factor_view import PriorCells, Side, two_sides
from nmf_zoo.interfaces.step_methods.block import find_block
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.reading.graph import name_of
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Array

SMALLEST = np.finfo(np.float64).tiny  # whose logarithm PyMC can hold


@dataclass_state
class ConjugateGibbsState(DataClassState):
    """What a stored chain keeps of the step: nothing, since it begins each step at the point."""


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

    def _given(self, gammas: Mapping[str, tuple[Array, Array]]) -> gibbs.Problem:
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
