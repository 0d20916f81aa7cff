"""Errors and warnings that users see: one clear line that names what, where, what was expected and what to do."""

from __future__ import annotations


class NmfZooWarning(UserWarning):
    """Something worth knowing that is no error."""


class InputError(ValueError):
    """An argument that can't be used.

    Attributes
    ----------
    name : the argument
    got : what was given, with the place where it matters
    expected : what could be given
    do : what to do about it, or ""
    """

    def __init__(self, name: str, got: str, expected: str, do: str = ""):
        super().__init__(f"{name}: got {got}; expected {expected}" + (f"; {do}" if do else ""))
        self.name = name
        self.got = got
        self.expected = expected
        self.do = do


class UnreadableModel(ValueError):
    """A ``pm.Model`` that isn't one of the factorisations we can read.

    Attributes
    ----------
    variable : the model variable at fault
    found : what stands there
    expected : what could stand there
    do : what to do about it
    """

    def __init__(self, variable: str, found: str, expected: str, do: str):
        super().__init__(f"{variable}: found {found}; expected {expected}; {do}")
        self.variable = variable
        self.found = found
        self.expected = expected
        self.do = do


class UnsupportedModel(ValueError):
    """A readable model that the chosen engine can't run."""


class RunFailed(RuntimeError):
    """An engine that started and could not go on."""
