"""Components of W, or of H, that are known: a catalogue of signatures, say, beside which others are to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.labels import are_counted, with_row_labels, writable_labels
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import COLUMNS, ROWS, check_same_labels, read_table, span
from nmf_zoo.results.channels import same_words

Array = np.ndarray
LEAST = 1e-3  # of a column's mean: what a prior around a smaller cell is around


class KnownPlace(NamedTuple):
    """Where known components stand: the factor, the argument, dims of their cells and of known and new ones."""

    factor: str
    argument: str
    cells: str
    known: str
    new: str

    @property
    def axis(self) -> int:
        """Of the components."""
        return int(self is LEFT)

    def dims(self, component: str) -> tuple[str, str]:
        """In the order of the factor's axes."""
        return (self.cells, component) if self is LEFT else (component, self.cells)


LEFT = KnownPlace("W", "known", ROWS, "known_component", "new_component")
RIGHT = KnownPlace("H", "known_h", COLUMNS, "known_h_component", "new_h_component")


@dataclass(frozen=True, kw_only=True)
class CheckedComponents:
    """Checked known components.

    Attributes
    ----------
    values : (F, K) of W, (K, N) of H
    strength : shape of the gamma priors around them; None where they are fixed
    """

    values: Array
    strength: float | None = None


def check_strength(strength: Any, known: Any, known_h: Any) -> float | None:
    """``known_strength=``, of the components that ``known=`` and ``known_h=`` give."""
    if strength is None:
        return None
    if known is None and known_h is None:
        do = "give known= or known_h= as well"
        raise InputError("known_strength", repr(strength), "components to believe in", do)
    if not (isinstance(strength, int | float) and 0 < strength < np.inf):
        raise InputError("known_strength", repr(strength), "a finite number > 0, or None for components that are fixed")
    return float(strength)


def check_known(known: Any, strength: float | None, inputs: Inputs) -> tuple[CheckedComponents | None, Inputs]:
    """``known=``, and the inputs with the labels of known and new components."""
    if known is None:
        return None, inputs
    values, inputs = check_components(LEFT, known, inputs)
    return CheckedComponents(values=values, strength=strength), inputs


def check_known_activations(
    known: Any, strength: float | None, inputs: Inputs
) -> tuple[CheckedComponents | None, Inputs]:
    """``known_h=``, and the inputs with the labels of known and new components."""
    if known is None:
        return None, inputs
    values, inputs = check_components(RIGHT, known, inputs)
    return CheckedComponents(values=values, strength=strength), inputs


def check_components(place: KnownPlace, given: Any, inputs: Inputs) -> tuple[Array, Inputs]:
    """The values in the factor's orientation, and the inputs with the labels of known and new components."""
    given = of_result(place, given) if _compat.is_result(given) else given
    table, argument = read_table(place.argument, with_row_labels(given)), place.argument
    values, labels = np.asarray(table.values, dtype=np.float64), table.labels
    values = in_order(place, values if place is LEFT else values.T, labels, inputs)
    size, word = inputs.shape[1 - place.axis], "features" if place is LEFT else "samples"
    if values.shape[0] != size:
        got = f"{values.shape[0]} {'rows' if place is LEFT else 'columns'}"
        raise InputError(argument, got, f"{size}, the {word} of X", "transpose it?")
    if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.all(np.any(values > 0, axis=0)):
        got = "a component of zeros" if np.all(np.isfinite(values)) and not np.any(values < 0) else span(values)
        raise InputError(argument, got, "finite numbers >= 0, some of each component positive")
    n_known, coords = values.shape[1], dict(inputs.coords)
    if inputs.observed is None and place.cells in labels and are_counted(coords[place.cells]):
        coords[place.cells] = writable_labels(place.cells, labels[place.cells])  # data to come are held against them
    if n_known > inputs.rank:
        raise InputError("rank", str(inputs.rank), f"at least {n_known}, the known components", "raise rank")
    of_known = next((own for dim, own in labels.items() if dim != place.cells), np.arange(n_known))
    if np.array_equal(coords["component"], np.arange(inputs.rank)) and not np.array_equal(of_known, np.arange(n_known)):
        new = [f"new {i}" for i in range(1, inputs.rank - n_known + 1)]
        coords["component"] = writable_labels("component", np.array([*map(str, of_known), *new]))
    if n_known < inputs.rank:
        coords |= {place.known: coords["component"][:n_known], place.new: coords["component"][n_known:]}
    return (values if place is LEFT else values.T), replace(inputs, coords=coords)


def of_result(place: KnownPlace, idata: Any) -> Any:
    """The mean of the factor in an earlier result; which of its dims are components is told by both factors."""
    from nmf_zoo.results.components import mean_activations, mean_weights

    try:
        return (mean_weights if place is LEFT else mean_activations)(idata)
    except InputError as error:
        expected = "a result that holds W" if place is LEFT else "a result that holds W and H"
        raise InputError(place.argument, error.got, expected, error.do) from error


def in_order(place: KnownPlace, values: Array, labels: dict[str, Array], inputs: Inputs) -> Array:
    """The rows (cells, K) in the order of X's, where both are labelled by the same words in another order.

    Channels of mutations are the same in any of their spellings (:mod:`nmf_zoo.results.channels`).
    """
    own, theirs = labels.get(place.cells), inputs.coords[place.cells]
    if own is None or len(own) != len(theirs):
        return values
    wanted, there = same_words(theirs, own) or (theirs.tolist(), own.tolist())
    at = {label: row for row, label in enumerate(there)}
    if len(at) == len(there) and set(wanted) == set(at):
        return values[[at[label] for label in wanted]]
    check_same_labels(place.argument, {place.cells: own}, {place.cells: theirs})
    return values


Declare = Callable[[str, tuple[str, str]], TensorVariable]


def declare_weights(known: CheckedComponents | None, declare: Declare) -> TensorVariable:
    """W (feature, component): as ``declare(name, dims)`` has it, beside what is known."""
    return declare_beside(LEFT, known, declare)


def declare_activations(known: CheckedComponents | None, declare: Declare) -> TensorVariable:
    """H (component, obs) alike."""
    return declare_beside(RIGHT, known, declare)


def declare_beside(place: KnownPlace, known: CheckedComponents | None, declare: Declare) -> TensorVariable:
    """Where all components are known nothing is declared: no hyperparameter of new ones either."""
    name, whole = place.factor, place.dims("component")
    if known is None or known.strength is not None:
        return declare(name, whole)
    model = pm.modelcontext(None)
    if place.new not in model.coords:
        return pm.Data(name, known.values, dims=whole)
    given = pm.Data(f"{name}_known", known.values, dims=place.dims(place.known))
    new = declare(f"{name}_new", place.dims(place.new))
    return pm.Deterministic(name, pt.concatenate([given, new], axis=place.axis), dims=whole)


def weights_dims(inputs: Inputs) -> tuple[str, str]:
    """Dims of the components of W that hyperparameters belong to: the new ones, where some are known."""
    return new_dims(LEFT, inputs)


def activations_dims(inputs: Inputs) -> tuple[str, str]:
    """Of those of H."""
    return new_dims(RIGHT, inputs)


def new_dims(place: KnownPlace, inputs: Inputs) -> tuple[str, str]:
    return place.dims(place.new if place.new in inputs.coords else "component")


def is_refit(inputs: Inputs) -> bool:
    """Of inputs with known components: whether W has no new one."""
    return LEFT.new not in inputs.coords


def around_known(
    place: KnownPlace,
    known: CheckedComponents | None,
    declare: Callable[[], dict[str, TensorVariable]],
    inputs: Inputs,
) -> dict[str, TensorVariable]:
    """``alpha`` and ``beta`` of a factor's gamma priors: around components that are believed, as declared for others.

    The prior mean of a known cell is its value, or a thousandth of its component's mean cell where that is more.
    """
    if known is None or known.strength is None:
        return declare()
    values = np.maximum(known.values, LEAST * known.values.mean(axis=1 - place.axis, keepdims=True))
    of_known = {"alpha": np.full(values.shape, known.strength), "beta": known.strength / values}
    if place.new not in inputs.coords:
        return of_known
    given, size = declare(), list(values.shape)
    size[place.axis] = len(inputs.coords[place.new])
    return {
        role: pt.concatenate([own, pt.broadcast_to(given[role], size)], axis=place.axis)
        for role, own in of_known.items()
    }
