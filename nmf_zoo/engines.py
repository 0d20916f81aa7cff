"""Which engines there are, what each can run, and who else can when one can't.

The registry of :mod:`nmf_zoo.inference` plus NUTS, which is PyMC's; the model x engine table is made of these verdicts.
"""

from __future__ import annotations

from typing import Any

from nmf_zoo import nuts
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference import ENGINES, engine_for
from nmf_zoo.inference.engine import Engine, Verdict
from nmf_zoo.inference.hmm.support import chain_verdict
from nmf_zoo.structure import Factorisation

VERBS = {name: engine.verb for name, engine in ENGINES.items()} | {nuts.NAME: "sample"}
OPTIONS = {name: engine.options for name, engine in ENGINES.items()} | {nuts.NAME: nuts.NUTS}


def resolve_engine(engine: Any, verb: str, structure: Factorisation) -> tuple[str, Any, Engine | None]:
    """The engine's name, its options, and the engine itself (None for NUTS), from a name or an options object."""
    names = [name for name, own in VERBS.items() if own == verb]
    for name in OPTIONS:
        if isinstance(engine, OPTIONS[name]) or (isinstance(engine, str) and engine == name):
            if name not in names:
                other = "fit" if verb == "sample" else "sample"
                raise InputError(
                    "engine", repr(name), f"one of {names} for {verb}()", f"use nz.{other}(engine={name!r})"
                )
            options = OPTIONS[name]() if isinstance(engine, str) else engine
            return name, options, None if name == nuts.NAME else engine_for(name, structure)
    classes = [OPTIONS[name].__name__ for name in names]
    raise InputError("engine", repr(engine), f"one of {names}, or options of {classes}", "see the table of engines")


def verdict(structure: Factorisation, name: str, options: Any = None) -> Verdict:
    """Whether the engine ``name`` can run the model, with default options when none are given."""
    refusal = chain_verdict(structure, name)
    if not refusal:
        return refusal
    supports = nuts.supports if name == nuts.NAME else engine_for(name, structure).supports
    return supports(structure, OPTIONS[name]() if options is None else options)


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
    able = [other for other in VERBS if verdict(structure, other)]
    do = (
        f"engines that can: {', '.join(f'nz.{VERBS[other]}(engine={other!r})' for other in able)}"
        if able
        else "no engine can with its default options"
    )
    raise UnsupportedModel(f"engine {name!r} can't run this model: {refusal.reason}; {do}")
