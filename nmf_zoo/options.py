"""Arguments by name, and options objects: what each field holds is what its annotation says, before its own rules."""

from __future__ import annotations

import ast
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from nmf_zoo.errors import InputError, UnknownArgument, did_you_mean, shown

AUTO = "auto"  # of an argument that is chosen by the model and the other arguments
LARGEST = 2**63 - 1  # of a whole number, which loops count in 64 bits


Callee = TypeVar("Callee", bound=Callable[..., Any])


def names_checked(callee: Callee) -> Callee:
    """Decorator that says of unknown arguments the nearest known: of a function, or a class (above ``@dataclass``)."""
    if isinstance(callee, type):
        maker = "__new__" if issubclass(callee, tuple) else "__init__"
        setattr(callee, maker, _checked(getattr(callee, maker), callee.__name__))
        return callee
    return _checked(callee, callee.__qualname__.rpartition("<locals>.")[2])  # type: ignore[return-value]


def names_checked_beside(elsewhere: Callable[[str], str]) -> Callable[[Callee], Callee]:
    """The same, where ``elsewhere`` says of an unknown argument what else has it; "" where nothing does."""
    return lambda callee: _checked(callee, callee.__name__, elsewhere)  # type: ignore[return-value]


def _checked(
    function: Callable[..., Any], name: str, elsewhere: Callable[[str], str] = lambda word: ""
) -> Callable[..., Any]:
    parameters = signature(function).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):  # what it does not know it hands on
        return function
    known = [each.name for each in parameters if each.kind is not Parameter.POSITIONAL_ONLY]
    known = known[1:] if known[:1] in (["self"], ["_cls"]) else known

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= set(known):
            wrong = next(word for word in kwargs if word not in known)
            expected = f"one of {', '.join(known)}"
            do = elsewhere(wrong) or did_you_mean(wrong, known)
            raise UnknownArgument(wrong, f"an argument that {name} doesn't have", expected, do)
        return function(*args, **kwargs)

    return call


def check_types(options: Any) -> None:
    """Refuse what a field of a dataclass can't be by its annotation; other annotations than these are left alone."""
    for field in fields(options):
        value, kinds = getattr(options, field.name), _kinds(str(field.type))
        known = [_RULES[kind] for kind in kinds if kind in _RULES]
        allowed = [word for kind in kinds if kind.startswith("Literal[") for word in _literals(kind)]
        if len(known) + any(kind.startswith("Literal[") for kind in kinds) < len(kinds):
            continue
        if not any(is_so(value) for is_so, _ in known) and not (isinstance(value, str | int) and value in allowed):
            expected = [words for _, words in known] + [f"one of {allowed}"] * bool(allowed)
            raise InputError(field.name, shown(value), " or ".join(expected), did_you_mean(value, allowed))


def check_least(options: Any, **least: float) -> None:
    """Refuse numbers below ``name=least``; what is no number by its annotation, None or a word, is left alone."""
    for name, bound in least.items():
        value = getattr(options, name)
        if isinstance(value, numbers.Real) and not float(value) >= bound:
            kinds = next(_kinds(str(field.type)) for field in fields(options) if field.name == name)
            raise InputError(name, repr(value), f"{'an integer' if 'int' in kinds else 'a number'} >= {bound:g}")


def check_share(options: Any, name: str) -> None:
    """Refuse a number that is not between 0 and 1."""
    if not 0.0 < getattr(options, name) < 1.0:
        raise InputError(name, repr(getattr(options, name)), "a number between 0 and 1")


@cache
def _kinds(annotation: str) -> tuple[str, ...]:
    """The parts of a union."""
    return tuple(kind.strip() for kind in re.split(r"\|(?![^\[]*\])", annotation))


@cache
def _literals(kind: str) -> tuple[Any, ...]:
    return ast.literal_eval(f"({kind[len('Literal[') : -1]},)")


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) <= LARGEST


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return value == value and (not isinstance(value, numbers.Integral) or abs(int(value)) <= LARGEST)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "bool": (lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    "int": (_is_whole, "an integer of 64 bits"),
    "float": (_is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a word"),
    "tuple[str, ...]": (
        lambda value: isinstance(value, Sequence) and all(isinstance(word, str) for word in value),
        "words",
    ),
}
