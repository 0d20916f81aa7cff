"""What an engine is: the seam between the driver, which owns everything engines share, and the algorithms.

An engine file defines, in this order: its ``State`` (all that the next step needs, owned and overwritten in place; as
it is saved in checkpoints: arrays, numbers, text, dicts and NamedTuples at the top of a module, nested), its
``Info`` (what is reported, never fed back), its frozen options, and the functions gathered in an :class:`Engine`::

    supports(structure, options) -> Verdict
    prepare(structure, options, workers) -> problem      read-only, made once, shared by all chains or restarts
    init(problem, key, start)    -> State
    step(problem, state, key)    -> State, Info    one sweep or iteration; can be called alone
    tune(problem, state, key)    -> State, Info    optional: a sampler's step in the warm-up, which adapts it
    draw(problem, state, key)    -> dict, dict     variables of one draw and its statistics, lp among them (samplers)
    run(problem, state, key, block)    -> State, dict, dict    optional: the steps and draws of a block in one call;
                                                               None declines, and the steps are made one by one
    finish(problem, state, key, draws) -> dict, dict     draws of the variables, and what goes to ``fit`` (optimisers)

``workers`` map kernels over chunks (:mod:`nmf_zoo.inference.workers`). ``key`` is a stream of
:mod:`nmf_zoo.kernels.streams`; ``start`` maps variable names to values in the model's own orientation and may be empty
or partial. The dicts are keyed by the model's variable names, in the model's orientation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nmf_zoo.inference.workers import Workers
from nmf_zoo.structure import Factorisation, Likelihood

START, DRAW, STEPS = 0, 1, 2  # children of a chain's stream; sweep s draws from child(key, STEPS, s)


@dataclass(frozen=True)
class Verdict:
    """Whether an engine can run a model, and why not. True in a boolean context when it can."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


CAN_RUN = Verdict()


def has_data(structure: Factorisation) -> Verdict:
    """Whether anything is observed: what every engine asks first."""
    if structure.data is not None:
        return CAN_RUN
    name = structure.likelihood.name
    return Verdict(
        f"nothing is observed in {name}: declare the model with data instead of shape=, or pm.observe(model, "
        f"{{{name!r}: data}})"
    )


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An algorithm under its registry name.

    Attributes
    ----------
    name : word for ``engine=`` and the command line
    verb : "sample" (draws of a Markov chain) or "fit" (iterates to a solution)
    likelihoods : the classes of :mod:`nmf_zoo.structure.likelihoods` that it has updates for; all others are refused.
        Engines for different ones may share their name
    is_general : it asks the likelihood for all it needs; :func:`nmf_zoo.register_likelihood` adds to its likelihoods
    options : the frozen dataclass of the algorithm's own options
    supports, prepare, init, step, tune, draw, run, finish : see above; samplers have ``draw``, optimisers ``finish``
    maximise : an optimiser's objective rises (a bound) instead of falling
    """

    name: str
    verb: Literal["sample", "fit"]
    likelihoods: tuple[type[Likelihood], ...]
    options: type
    supports: Callable[[Factorisation, Any], Verdict]
    prepare: Callable[[Factorisation, Any, Workers], Any]
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]
    draw: Callable[..., tuple[dict, dict]] | None = None
    tune: Callable[..., tuple[Any, Any]] | None = None
    run: Callable[..., tuple[Any, dict, dict] | None] | None = None
    finish: Callable[..., tuple[dict, dict]] | None = None
    maximise: bool = False
    is_general: bool = False
