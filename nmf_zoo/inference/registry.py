"""The one table of what runs on a model: name x likelihood x kind of H. Samplers, optimisers, streams, NUTS, evidence.

Names, verbs, options, refusals, the command line and the model x engine table are made of it. A file that is not
imported here runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from inspect import isabstract
from typing import Any

from nmf_zoo.errors import InputError, UnsupportedModel, not_one_of
from nmf_zoo.inference import nuts
from nmf_zoo.inference.batches import em as batched_em
from nmf_zoo.inference.batches import gibbs as batched_gibbs
from nmf_zoo.inference.batches import vb as batched_vb
from nmf_zoo.inference.counts import (
    em,
    em_blocks,
    gibbs,
    gibbs_blocks,
    mcem,
    mcem_blocks,
    online_em,
    vb,
    vb_blocks,
    vb_minibatches,
)
from nmf_zoo.inference.evidence import bound, chib, enumeration, replicas, smc, smc_draws
from nmf_zoo.inference.general import em as general_em
from nmf_zoo.inference.hmm import exact, particle_em, particle_gibbs, particle_online
from nmf_zoo.inference.hmm import online as exact_online
from nmf_zoo.inference.normal import gibbs as normal_gibbs
from nmf_zoo.inference.normal import vb as normal_vb
from nmf_zoo.inference.overdispersed import em as overdispersed_em
from nmf_zoo.inference.overdispersed import gibbs as overdispersed_gibbs
from nmf_zoo.inference.overdispersed import vb as overdispersed_vb
from nmf_zoo.inference.powers import em as powers_em
from nmf_zoo.inference.powers import em_blocks as powers_em_blocks
from nmf_zoo.inference.powers import gibbs as powers_gibbs
from nmf_zoo.inference.powers import online_em as powers_online_em
from nmf_zoo.inference.powers import vb as powers_vb
from nmf_zoo.inference.powers import vb_blocks as powers_vb_blocks
from nmf_zoo.inference.shared.requirements import takes_chain, takes_known, takes_likelihood
from nmf_zoo.inference.smooth import em as smooth_em
from nmf_zoo.inference.smooth import gibbs as smooth_gibbs
from nmf_zoo.inference.smooth import power_em as smooth_power_em
from nmf_zoo.inference.smooth import power_gibbs as smooth_power_gibbs
from nmf_zoo.inference.smooth import vb as smooth_vb
from nmf_zoo.options import names_checked
from nmf_zoo.reading.likelihoods import LIKELIHOODS, Observation
from nmf_zoo.reading.registry import names as names_of
from nmf_zoo.runtime.engine import BlockEngine, Engine, Registration, Verdict, has_data
from nmf_zoo.structure import Factorisation, Likelihood

# Of one name the first that can run a model does.
REGISTRY: list[Registration] = [
    *(em.ENGINE, powers_em.ENGINE, overdispersed_em.ENGINE, batched_em.ENGINE, general_em.ENGINE),
    *(vb.ENGINE, powers_vb.ENGINE, normal_vb.ENGINE, overdispersed_vb.ENGINE, batched_vb.ENGINE),
    mcem.ENGINE,
    *(gibbs.ENGINE, powers_gibbs.ENGINE, normal_gibbs.ENGINE, overdispersed_gibbs.ENGINE, batched_gibbs.ENGINE),
    *(smooth_em.ENGINE, smooth_power_em.ENGINE, smooth_vb.ENGINE, smooth_gibbs.ENGINE, smooth_power_gibbs.ENGINE),
    *(exact.ENGINE, particle_em.ENGINE, particle_gibbs.ENGINE),
    *(smc_draws.SAMPLER, nuts.SAMPLER),
    *(online_em.STREAM, powers_online_em.STREAM, exact_online.STREAM, particle_online.STREAM),
    *(bound.METHOD, chib.METHOD, smc.METHOD, enumeration.METHOD),
]
OURS = tuple(REGISTRY)  # nothing may take their place
OVER_BLOCKS = (  # data in blocks
    *(em_blocks.ENGINE, vb_blocks.ENGINE, vb_minibatches.ENGINE, powers_em_blocks.ENGINE, powers_vb_blocks.ENGINE),
    *(mcem_blocks.ENGINE, gibbs_blocks.ENGINE),
)
SEE_TABLE = "see the table of engines"
VERBS = ("sample", "fit")  # of what `engine=` names; a stream's engines and the methods have their own
RENAMED = {"exact": "enumeration"}  # methods, by the names that they had
FORMERLY = {("smc", "fit"): "particle_em"}  # engines of a verb, by names that are now those of another verb's


def entries(*verbs: str) -> list[Any]:
    """What is registered for any of these verbs."""
    return [entry for entry in REGISTRY if entry.verb in verbs]


def names(*verbs: str) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys(entry.name for entry in entries(*(verbs or VERBS))))


def named(engine: Any, *verbs: str) -> list[Any]:
    """What an engine, by its name or its options, may stand for: of other likelihoods and chains."""
    return [entry for entry in entries(*(verbs or VERBS)) if stands_for(engine, entry)]


def stands_for(word: Any, entry: Registration) -> bool:
    """Whether a name or an options object is that of an entry."""
    return word == entry.name if isinstance(word, str) else isinstance(word, entry.options)


def renamed(word: Any) -> str:
    """That a method has a new name; "" when it has none."""
    new = RENAMED.get(word) if isinstance(word, str) else None
    return f"{word!r} is now {new!r}" if new else ""


def option_of(word: str, verb: str) -> str:
    """How an option of a verb's engines is given, of the first that has it; "" of any other word."""
    options = (entry.options for entry in entries(verb))
    owner = next((kind.__name__ for kind in options if word in {field.name for field in fields(kind)}), None)
    return "" if owner is None else f"it is an option of engines, e.g. engine=nz.{owner}({word}=...)"


def of_projection(structure: Factorisation) -> list[str]:
    """Names of the engines that fold new samples in where none is asked for, in the order in which they are tried."""
    found = [fitting(named(name), structure)[0] for name in names()]
    placed = [(entry.projects, entry.name) for entry in found if entry.projects is not None]
    return [name for _, name in sorted(placed)]


def is_maximised(name: str) -> bool:
    """Whether the objective of the optimiser of this name rises."""
    return any(isinstance(entry, Engine) and entry.maximise for entry in named(name, "fit"))


def resolve_engine(engine: Any, verb: str, structure: Factorisation) -> tuple[Any, Any]:
    """The engine that a name or an options object stands for on this model, and its options."""
    require_verb(engine, verb)
    entry = fitting(named(engine, verb), structure)[0]
    options = entry.options() if isinstance(engine, str) else engine
    if entry is gibbs.ENGINE and options.temperatures is not None:
        return replicas.ENGINE, options  # the same name and options, but a chain is several
    return entry, options


def require_verb(engine: Any, verb: str) -> None:
    """Refuse what is no engine of ``nz.sample`` or ``nz.fit``, whichever is asked for."""
    if not named(engine, verb):
        raise _unknown(engine, verb)


def fitting(found: Sequence[Any], structure: Factorisation) -> list[Any]:
    """Of engines with one name those for the model's likelihood and chain; where there are none, those to refuse it."""
    near = [entry for entry in found if takes_likelihood(structure, entry.likelihoods or ())] or list(found)
    return [entry for entry in near if takes_chain(structure, entry.chains)] or near


def verdict(structure: Factorisation, engine: Registration | str, options: Any = None) -> Verdict:
    """Whether an engine can run the model, with default options when none are given."""
    entry = fitting(named(engine), structure)[0] if isinstance(engine, str) else engine
    if entry.needs_data and not has_data(structure):
        return has_data(structure)
    if entry.verb in VERBS and is_all_known(structure):
        return Verdict(f"{structure.W.name or 'W'} and {structure.H.name or 'H'} are known, and so is all else")
    if entry.likelihoods is not None:
        asked = takes_chain(structure, entry.chains), takes_likelihood(structure, entry.likelihoods)
        for found in (*asked, takes_known(structure, entry.takes_known)):
            if not found:
                return found
    return entry.supports(structure, entry.options() if options is None else options)


def is_all_known(structure: Factorisation) -> bool:
    """Whether a model of observed data has no unknown at all."""
    has_unknowns = bool(structure.unknowns) or structure.imputed is not None
    return structure.W.is_fixed and structure.H.is_fixed and not has_unknowns


def verb_of(engine: Any) -> str:
    """ "sample" or "fit": what an engine, by its name or its options, is for."""
    found = named(engine)
    if not found:
        raise not_one_of("engine", engine, names(), ", or their options", SEE_TABLE)
    return found[0].verb


def over_blocks(entry: Registration, options: Any, *verbs: str) -> BlockEngine:
    """The engine that runs an entry's algorithm over blocks of samples; UnsupportedModel where there is none.

    ``verbs`` : of those that are asked for, default all
    """
    able_to = [engine for engine in OVER_BLOCKS if engine.verb in (verbs or VERBS)]
    for engine in able_to:
        is_its_own = engine.name == entry.name and set(engine.likelihoods or ()) <= set(entry.likelihoods or ())
        if is_its_own and engine.is_for(options):
            return engine
    words = dict.fromkeys((engine.verb, engine.name) for engine in able_to)
    able = " or ".join(f"nz.{verb}(engine={own!r}) of {_families(*_over_blocks_of(own))} data" for verb, own in words)
    of = f" of {_families(entry)} data" if entry.likelihoods else ""
    raise UnsupportedModel(f"engine {entry.name!r}{of} holds all of X in memory: data= is for {able}")


def _over_blocks_of(name: str) -> list[BlockEngine]:
    return [engine for engine in OVER_BLOCKS if engine.name == name]


def _families(*found: Registration) -> str:
    return " or ".join(dict.fromkeys(own.family for entry in found for own in entry.likelihoods or ()))


def require_support(structure: Factorisation, entry: Registration, options: Any) -> None:
    """Refuse a model that the engine can't run, with the reason and the engines that can."""
    refusal = verdict(structure, entry, options)
    if refusal:
        return
    able = [f"nz.{verb_of(other)}(engine={other!r})" for other in names() if verdict(structure, other)]
    do = f"; engines that can: {', '.join(able)}" if able else "; no engine can with its default options"
    if not has_data(structure):
        do = ""  # it is not the engine
    raise UnsupportedModel(f"engine {entry.name!r} can't run this model: {refusal.reason}{do}")


@names_checked
def register_engine(engine: Engine) -> None:
    """Make an engine of your own known, for this process: ``nz.sample`` or ``nz.fit`` runs it by name or by options.

    So do :func:`~nmf_zoo.calibrate`, :func:`~nmf_zoo.compare_engines` and all else that takes an engine. Registering
    its name again replaces it. The tenth tutorial writes an engine and registers it.

    Parameters
    ----------
    engine : what :mod:`nmf_zoo.runtime.engine` describes: a name, a verb, the likelihoods and chains it is for, a class
        of options, and the functions

    Raises
    ------
    InputError : an engine of the zoo has its name or its options, its options need arguments, or a function is missing
    """
    ending = "draw" if engine.verb == "sample" else "finish"
    others = [entry for entry in entries(*VERBS) if entry.name != engine.name]
    if engine.verb not in VERBS:
        raise not_one_of("engine.verb", engine.verb, VERBS)
    if not engine.likelihoods:
        raise InputError("engine.likelihoods", "none", "the likelihoods that it has updates for", "e.g. (Poisson,)")
    ours = list(dict.fromkeys(entry.name for entry in OURS if entry.verb in VERBS))
    if engine.name in ours:
        raise InputError("engine.name", repr(engine.name), f"none of {ours}", "choose another name")
    if any(issubclass(engine.options, entry.options) for entry in others):
        raise InputError(
            "engine.options", engine.options.__name__, "a class that is no other engine's, nor derived from one"
        )
    if any(field.default is MISSING is field.default_factory for field in fields(engine.options)):
        raise InputError("engine.options", engine.options.__name__, "a dataclass with a default for every field")
    if getattr(engine, ending) is None:
        raise InputError(f"engine.{ending}", "None", f"a function: an engine for nz.{engine.verb}() has one")
    REGISTRY[:] = [entry for entry in REGISTRY if entry.verb not in VERBS or entry.name != engine.name] + [engine]


@names_checked
def register_likelihood(
    likelihood: type[Likelihood],
    distribution: type,
    recognise: Callable[[Any], Observation | None],
    engines: Sequence[str] = (),
) -> None:
    """Make a likelihood of your own known, for this process: models that have it are read, and these engines run them.

    Everything that asks the likelihood itself works at once: ``describe``, ``check``, ``simulate``, ``predict``,
    ``impute``, ``log_likelihood``, the plots. Every other engine refuses it. The page "Add a likelihood" is an example.

    Parameters
    ----------
    likelihood : a class derived from :class:`nmf_zoo.structure.Likelihood`
    distribution : PyMC's, ``pm.StudentT`` say, whose variables ``recognise`` is given
    recognise : variable -> :class:`nmf_zoo.reading.likelihoods.Observation`, None when unsure
    engines : "nuts", where PyMC has its gradient; "em", where it has ``slopes``

    Raises
    ------
    InputError : it is not such a class, the distribution is read already, or an engine is not one of these
    """
    if not (isinstance(likelihood, type) and issubclass(likelihood, Likelihood)) or isabstract(likelihood):
        expected = "a class derived from nmf_zoo.structure.Likelihood, nothing abstract left"
        raise InputError("likelihood", getattr(likelihood, "__name__", repr(likelihood)), expected)
    if LIKELIHOODS.get(distribution, recognise) is not recognise:
        read_already = f"none of {names_of(LIKELIHOODS)}, which are read already"
        raise InputError("distribution", distribution.__name__, read_already)
    general = {entry.name: entry for entry in REGISTRY if entry.asks is not None}
    if isinstance(engines, str) or not set(engines) <= set(general):
        raise InputError("engines", repr(engines), f"a selection of {list(general)}, in a tuple")
    for name in engines:
        for method in general[name].asks or ():
            if getattr(likelihood, method) is getattr(Likelihood, method):
                expected = f"{likelihood.__name__}.{method} for {name!r}"
                raise InputError("engines", repr(engines), expected, "write it")
    LIKELIHOODS[distribution] = recognise
    REGISTRY[:] = [
        replace(entry, likelihoods=(*(entry.likelihoods or ()), likelihood))
        if entry.asks is not None and entry.name in engines
        else entry
        for entry in REGISTRY
    ]


def _unknown(engine: Any, verb: str) -> InputError:
    """No engine of this verb has this name or these options."""
    known = names(verb)
    for entry in named(engine):
        do = f"use nz.{entry.verb}(engine={entry.name!r})"
        if (entry.name, verb) in FORMERLY:
            do = f"it is now {FORMERLY[entry.name, verb]!r}, or {do}"
        return InputError("engine", repr(entry.name), f"one of {known} for {verb}()", do)
    classes = list(dict.fromkeys(entry.options.__name__ for entry in entries(verb)))
    do = f"write nz.{engine.__name__}()" if getattr(engine, "__name__", "") in classes else SEE_TABLE
    return not_one_of("engine", engine, known, f", or options of {classes}", do)
