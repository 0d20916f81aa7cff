"""The catalogue of the command line, made from the registries.

``python -m nmf_zoo.interfaces.cli.inventory`` writes it, after an engine, a model, an option or its explanation has
changed; a test says so.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

from nmf_zoo.files import replacing
from nmf_zoo.inference import registry
from nmf_zoo.interfaces.cli.catalogue import FILE
from nmf_zoo.models import MODELS
from nmf_zoo.runtime.engine import WholeSampler
from nmf_zoo.verbs.sample_and_fit import fit, sample
from nmf_zoo.workbench.rank import METHODS

ROLE = re.compile(r":\w+:(?=`)`~?(?:nmf_zoo\.)?")  # of Sphinx, before a name
Words = dict[str, Any]
VERBS: dict[str, Callable[..., Any]] = {"sample": sample, "fit": fit}


def inventory() -> dict[str, dict[str, Words]]:
    """What the catalogue holds."""
    return {
        "models": {name: _of_function(builder, skip=("X", "rank")) for name, builder in MODELS.items()},
        "engines": {name: _of_options(registry.named(name)[0]) for name in registry.names()},
        "methods": {name: _of_options(method) for name, method in METHODS.items()},
        "runs": {name: _of_function(verb) for name, verb in VERBS.items()},
    }


def _of_function(function: Callable, skip: tuple[str, ...] = ()) -> Words:
    explained = explanations(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in skip]
    arguments = [
        [each.name, str(each.annotation), repr(each.default), explained.get(each.name, "")] for each in parameters
    ]
    return {"name": function.__name__, "summary": _summary(function), "arguments": arguments}


def _of_options(entry: Any) -> Words:
    """Its options, without those that are arguments of its verb; the summary is that of its algorithm's file."""
    elsewhere = inspect.signature(VERBS[entry.verb]).parameters if entry.verb in VERBS else ()
    arguments = [
        [each.name, str(each.type), _default(each), _explained(entry.options, each.name)]
        for each in fields(entry.options)
        if each.name not in elsewhere
    ]
    algorithm = next(getattr(entry, name) for name in ("step", "estimate", "sample") if hasattr(entry, name))
    home = sys.modules[algorithm.__module__]
    about = {"name": entry.name, "summary": _summary(home), "verb": entry.verb}
    return about | {"is_whole": isinstance(entry, WholeSampler), "arguments": arguments}


def _explained(options: type, name: str) -> str:
    """By the class that declares the option, not by one that inherits it."""
    owner = next(own for own in options.__mro__ if name in inspect.get_annotations(own))
    return explanations(owner).get(name, "")


def _default(field: Field) -> str:
    return "" if field.default is MISSING else repr(field.default)


def _summary(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").split("\n")[0].strip()


def explanations(documented: Any) -> dict[str, str]:
    """The first sentence of each ``a, b : text`` in a numpydoc section, the lines indented below it included.

    Without the marks of the site: ``:func:`~nmf_zoo.fit` `` is nz.fit.
    """
    found: dict[str, str] = {}
    text = inspect.cleandoc(documented.__doc__ or "")
    for match in re.finditer(r"^(\w+(?:, \w+)*) : (.*(?:\n +\S.*)*)", text, re.MULTILINE):
        words = " ".join(ROLE.sub("nz.", match[2].replace("``", "")).replace("`", "").split())
        found |= dict.fromkeys(match[1].split(", "), re.split(r"\. (?=[A-Z])", words)[0].rstrip("."))
    return found


def text() -> str:
    """The file's text."""
    return json.dumps(inventory(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    with replacing(FILE, "catalogue") as partial:
        partial.write_text(text(), encoding="utf-8")
