"""What an engine is: the seam between the driver, which owns everything engines share, and the algorithms.

An engine file defines, in this order: its ``State`` (all that the next step needs, owned and overwritten in place; as
it is saved in checkpoints: arrays, numbers, text, dicts and NamedTuples at the top of a module, nested; another chain
may go on from a copy, so that nothing in it tells of the chain itself, unless ``can_follow`` is False), its
``Info`` (what is reported, never fed back), its frozen options, and the functions gathered in an :class:`Engine`::

    supports(structure, options) -> Verdict
    prepare(structure, options, workers) -> problem      read-only, made once, shared by all chains or restarts
    init(problem, key, start)    -> State
    step(problem, state, key)    -> State, Info    one sweep or iteration; can be called alone
    tune(problem, state, key)    -> State, Info    optional: a sampler's step in the warm-up, which adapts it
    draw(problem, state, key)    -> dict, dict     variables of one draw and its statistics, lp among them (samplers)
    run(problem, state, key, block)    -> State, dict, dict    optional: the steps and draws of a block in one call;
                                                               None declines, and the steps are made one by one
    close(problem, state) -> State, float    optional: of an optimiser whose steps see parts of the data, the objective
                                             of its last iterate, and a look at all of them for it
    finish(problem, state, key, draws) -> dict, dict     draws of the variables, and what goes to ``fit`` (optimisers);
                                                         of a sampler, optional: at the end of a chain, {} and what
                                                         goes to :class:`~nmf_zoo.runtime.traces.ChainResult`

``workers`` map kernels over chunks (:mod:`nmf_zoo.runtime.workers`). ``key`` is a stream of
:mod:`nmf_zoo.kernels.random.keyed_rng`; ``start`` maps variable names to values in the model's own orientation and may
be empty or partial. The dicts are keyed by the model's variable names, in the model's orientation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nmf_zoo.kernels.compile.ahead import Call
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Likelihood

LARGE = 1 << 18  # products of a pass over the cells: of fewer a sweep takes a millisecond, as an iteration of VB does
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
class Registration:
    """What the registry knows of whatever runs on a model: name x likelihood x kind of H.

    Attributes
    ----------
    name : word for ``engine=`` or ``method=``, and on the command line
    verb : what it is for. A name may stand for several of a verb, for other likelihoods or chains
    likelihoods : the classes of :mod:`nmf_zoo.structure.likelihoods` that it has updates for; all others are refused.
        None: likelihood and chain are the affair of an engine that it is given, which it asks itself
    chains : the priors of an H that is a chain in time which it knows; an H with another is refused
    asks : methods of a likelihood that it calls beside those which every likelihood has, where that is all it needs:
        :func:`nmf_zoo.register_likelihood` adds to its likelihoods. None: it has updates of its own for each
    takes_known : a factor may have known components beside unknown ones; otherwise such a model is refused
    projects : its place among those that :func:`nmf_zoo.project` tries where none is named; None: it is not one
    has_kernels : it runs kernels of ours, which can be compiled ahead
    options : the frozen dataclass of its own options
    supports : (structure, options) -> Verdict, once likelihood and chain are known to be among its own
    """

    name: str
    verb: Literal["sample", "fit", "stream", "evidence", "rank"]
    likelihoods: tuple[type[Likelihood], ...] | None
    chains: tuple[type, ...] = ()
    asks: tuple[str, ...] | None = None
    takes_known: bool = False
    projects: int | None = None
    has_kernels: bool = True
    options: type
    supports: Callable[[Factorisation, Any], Verdict]
    needs_data: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class WholeSampler(Registration):
    """A sampler that makes all its draws in one call, not sweep by sweep in the driver: NUTS, sequential Monte Carlo.

    Its draws can be neither stored nor saved nor looked at before it ends.

    Attributes
    ----------
    sample : (model, structure, options, run, key, starts) -> groups, whether Ctrl-C stopped it; ``model`` is PyMC's
    repeat : (model, structure, options) -> draw(observed, X, run, key), draws by name given one X after the other; of
        samplers that run PyMC's model, and compile it whenever ``sample`` is called. None: ``sample`` needs no model
    has_starts : its chains begin where they are told to; otherwise with draws of the prior
    has_particles : a chain is a run with ``particles``, of which its draws are a selection; its result says so
    """

    sample: Callable[..., tuple[dict, bool]]
    repeat: Callable[..., Callable[..., dict[str, Any]]] | None = None
    has_starts: bool = True
    has_particles: bool = False


def usual_sweep(structure: Factorisation) -> float:
    """Iterations of VB in the time of a sweep that draws something for each cell."""
    return 3.2 if is_large(structure) else 1.2


def is_large(structure: Factorisation) -> bool:
    """Whether passes over the cells are what a run takes its time for."""
    return structure.products >= LARGE


@dataclass(frozen=True, kw_only=True)
class Engine(Registration):
    """An algorithm that the driver runs; its verb is "sample" (a Markov chain) or "fit" (iterations to a solution).

    Attributes
    ----------
    prepare, init, step, tune, draw, run, close, finish : see above; samplers have ``draw``, optimisers ``finish``
    ahead : (structure, options) -> the kernels of a run that take longest to compile, each with arguments of the types
        that it is called with, or none; asked of data that are laid out in no time
    maximise : an optimiser's objective rises (a bound) instead of falling
    is_noisy : an optimiser's objective has Monte-Carlo error, so that the best of many is not the best
    sweep_in_iterations : (structure) -> how many iterations of VB take as long as a sampler's sweep, as was measured
    can_follow : a sampler's chain may go on from a copy of another's state
    """

    prepare: Callable[[Factorisation, Any, Workers], Any]
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]
    draw: Callable[..., tuple[dict, dict]] | None = None
    tune: Callable[..., tuple[Any, Any]] | None = None
    run: Callable[..., tuple[Any, dict, dict] | None] | None = None
    close: Callable[..., tuple[Any, float]] | None = None
    finish: Callable[..., tuple[dict, dict]] | None = None
    ahead: Callable[[Factorisation, Any], Sequence[Call]] | None = None
    maximise: bool = False
    is_noisy: bool = False
    sweep_in_iterations: Callable[[Factorisation], float] = usual_sweep
    can_follow: bool = True


@dataclass(frozen=True, kw_only=True)
class BlockEngine(Engine):
    """An engine whose data come in blocks of whole samples: ``supports`` asks the model alone, without its cells.

    Of samples it hands back arrays in ``structure.data.arrays``, a sampler with ``finish``.

    Attributes
    ----------
    takes_block : (the model of a block's samples, options) -> Verdict: what each block is held against
    constant : of a block's model, what its log-likelihood holds beside the factors
    at_data : of a block's model, its log-likelihood if its mean were X itself; None: nobody asks
    tally : of a block's model, what is counted over all blocks for ``supports``, which is asked again then; or None
    q : what the result's arrays of q are called, after the variable's name and "_"
    draw_q : (arrays of q, generator) -> a draw of their cells; None where there is no q
    is_for : (options) -> whether they ask for this one, of those of its name and likelihood
    in_memory : (options) -> what they are to the engine of its name that holds all of X
    """

    takes_block: Callable[[Factorisation, Any], Verdict]
    constant: Callable[[Factorisation], float]
    at_data: Callable[[Factorisation], float] | None = None
    tally: Callable[[Factorisation], Array] | None = None
    q: tuple[str, ...] = ()
    draw_q: Callable[..., Array] | None = None
    is_for: Callable[[Any], bool] = lambda options: True
    in_memory: Callable[[Any], Any] = lambda options: options
