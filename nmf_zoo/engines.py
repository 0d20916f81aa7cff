"""Which engines there are, what each can run, and who else can when one can't.

The registry of :mod:`nmf_zoo.inference` plus NUTS, which is PyMC's; the model x engine table is made of these verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from inspect import isabstract
from typing import Any

from nmf_zoo import nuts
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference import ENGINES, OTHERS, engine_for
from nmf_zoo.inference.engine import Engine, Verdict, has_data
from nmf_zoo.inference.families import takes_likelihood
from nmf_zoo.inference.hmm.support import chain_verdict
from nmf_zoo.reading.likelihoods import LIKELIHOODS, Observation
from nmf_zoo.reading.registry import names
from nmf_zoo.structure import Factorisation, Likelihood

VERBS = {name: engine.verb for name, engine in ENGINES.items()} | {nuts.NAME: "sample"}
OPTIONS = {name: engine.options for name, engine in ENGINES.items()} | {nuts.NAME: nuts.NUTS}
OWN = dict(OPTIONS)  # of the zoo: nothing may take their place


def register_engine(engine: Engine) -> None:
    """Make an engine of your own known, for this process: ``nz.sample`` or ``nz.fit`` runs it by name or by options.

    So do :func:`~nmf_zoo.calibrate`, :func:`~nmf_zoo.compare_engines` and all else that takes an engine. Registering
    its name again replaces it. The tenth tutorial writes an engine and registers it.

    Parameters
    ----------
    engine : what :mod:`nmf_zoo.inference.engine` describes: a name, a verb, a class of options, and the functions. Not
        for models of a chain in time, which only engines of the zoo are asked about

    Raises
    ------
    InputError : an engine of the zoo has its name or its options, its options need arguments, or a function is missing
    """
    ending = "draw" if engine.verb == "sample" else "finish"
    if not engine.likelihoods:
        raise InputError("engine.likelihoods", "none", "the likelihoods that it has updates for", "e.g. (Poisson,)")
    if engine.name in OWN:
        raise InputError("engine.name", repr(engine.name), f"none of {list(OWN)}", "choose another name")
    if any(issubclass(engine.options, taken) for name, taken in OPTIONS.items() if name != engine.name):
        raise InputError(
            "engine.options", engine.options.__name__, "a class that is no other engine's, nor derived from one"
        )
    if any(field.default is MISSING is field.default_factory for field in fields(engine.options)):
        raise InputError("engine.options", engine.options.__name__, "a dataclass with a default for every field")
    if getattr(engine, ending) is None:
        raise InputError(f"engine.{ending}", "None", f"a function: an engine for nz.{engine.verb}() has one")
    ENGINES[engine.name], VERBS[engine.name], OPTIONS[engine.name] = engine, engine.verb, engine.options


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
        raise InputError("distribution", distribution.__name__, f"none of {names(LIKELIHOODS)}, which are read already")
    general = [engine.name for engine in OTHERS if engine.is_general]
    if isinstance(engines, str) or not set(engines) <= {*general, nuts.NAME}:
        raise InputError("engines", repr(engines), f"a selection of {[*general, nuts.NAME]}, in a tuple")
    if set(engines) & set(general) and likelihood.slopes is Likelihood.slopes:
        raise InputError("engines", repr(engines), f"{likelihood.__name__}.slopes for {general}", "write it")
    LIKELIHOODS[distribution] = recognise
    if nuts.NAME in engines:
        nuts.likelihoods = (*nuts.likelihoods, likelihood)
    OTHERS[:] = [
        replace(one, likelihoods=(*one.likelihoods, likelihood)) if one.is_general and one.name in engines else one
        for one in OTHERS
    ]


def resolve_engine(engine: Any, verb: str, structure: Factorisation) -> tuple[str, Any, Engine | None]:
    """The engine's name, its options, and the engine itself (None for NUTS), from a name or an options object."""
    named = [name for name, own in VERBS.items() if own == verb]
    for name in OPTIONS:
        if isinstance(engine, OPTIONS[name]) or (isinstance(engine, str) and engine == name):
            if name not in named:
                other = "fit" if verb == "sample" else "sample"
                raise InputError(
                    "engine", repr(name), f"one of {named} for {verb}()", f"use nz.{other}(engine={name!r})"
                )
            options = OPTIONS[name]() if isinstance(engine, str) else engine
            return name, options, None if name == nuts.NAME else engine_for(name, structure)
    classes = [OPTIONS[name].__name__ for name in named]
    raise InputError("engine", repr(engine), f"one of {named}, or options of {classes}", "see the table of engines")


def verdict(structure: Factorisation, name: str, options: Any = None) -> Verdict:
    """Whether the engine ``name`` can run the model, with default options when none are given."""
    engine = nuts if name == nuts.NAME else engine_for(name, structure)
    for found in (has_data(structure), chain_verdict(structure, name), takes_likelihood(structure, engine.likelihoods)):
        if not found:
            return found
    return engine.supports(structure, OPTIONS[name]() if options is None else options)


def verb_of(engine: Any) -> str:
    """ "sample" or "fit": what an engine, by its name or its options, is for."""
    for name, options in OPTIONS.items():
        if isinstance(engine, options) or (isinstance(engine, str) and engine == name):
            return VERBS[name]
    raise InputError("engine", repr(engine), f"one of {list(OPTIONS)}, or their options", "see the table of engines")


def require_support(structure: Factorisation, name: str, options: Any) -> None:
    """Refuse a model that the engine can't run, with the reason and the engines that can."""
    refusal = verdict(structure, name, options)
    if refusal:
        return
    able = [f"nz.{VERBS[other]}(engine={other!r})" for other in VERBS if verdict(structure, other)]
    do = f"; engines that can: {', '.join(able)}" if able else "; no engine can with its default options"
    if not has_data(structure):
        do = ""  # it is not the engine
    raise UnsupportedModel(f"engine {name!r} can't run this model: {refusal.reason}{do}")
