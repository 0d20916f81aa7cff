"""Components of W that are known: a catalogue of signatures, say, beside which others are to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.labels import writable_labels
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import ROWS, check_same_labels, read_table, span

Array = np.ndarray
KNOWN, NEW = "known_component", "new_component"
LEAST = 1e-3  # of a column's mean: what a prior around a smaller cell is around


@dataclass(frozen=True, kw_only=True)
class Known:
    """Checked known components.

    Attributes
    ----------
    values : (F, K)
    strength : shape of the gamma priors around them; None where they are fixed
    """

    values: Array
    strength: float | None


def check_known(known: Any, strength: Any, inputs: Inputs) -> tuple[Known | None, Inputs]:
    """``known=`` and ``known_strength=``, and the inputs with the labels of known and new components."""
    if known is None:
        if strength is not None:
            raise InputError("known_strength", repr(strength), "components to believe in", "give known= as well")
        return None, inputs
    table = read_table("known", of_result(known) if isinstance(known, _compat.INFERENCE_DATA) else known)
    values, labels = np.asarray(table.values, dtype=np.float64), table.labels
    values = in_order_of_features(values, labels, inputs)
    if values.shape[0] != inputs.shape[0]:
        raise InputError("known", f"{values.shape[0]} rows", f"{inputs.shape[0]}, the features of X", "transpose it?")
    if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.all(np.any(values > 0, axis=0)):
        got = "a component of zeros" if np.all(np.isfinite(values)) and not np.any(values < 0) else span(values)
        raise InputError("known", got, "finite numbers >= 0, some of each component positive")
    n_known = values.shape[1]
    if n_known > inputs.rank:
        raise InputError("rank", str(inputs.rank), f"at least {n_known}, the known components", "raise rank")
    if strength is not None and not (isinstance(strength, int | float) and 0 < strength < np.inf):
        raise InputError("known_strength", repr(strength), "a finite number > 0, or None for components that are fixed")
    coords = dict(inputs.coords)
    of_known = next((own for dim, own in labels.items() if dim != ROWS), np.arange(n_known))
    if np.array_equal(coords["component"], np.arange(inputs.rank)) and not np.array_equal(of_known, np.arange(n_known)):
        new = [f"new {i}" for i in range(1, inputs.rank - n_known + 1)]
        coords["component"] = writable_labels("component", np.array([*map(str, of_known), *new]))
    if n_known < inputs.rank:
        coords |= {KNOWN: coords["component"][:n_known], NEW: coords["component"][n_known:]}
    found = Known(values=values, strength=None if strength is None else float(strength))
    return found, replace(inputs, coords=coords)


def of_result(idata: Any) -> Any:
    """The mean of W in an earlier result."""
    from nmf_zoo.results.components import mean_weights

    try:
        return mean_weights(idata)
    except InputError as error:
        raise InputError("known", error.got, "a result that holds W", error.do) from error


def in_order_of_features(values: Array, labels: dict[str, Array], inputs: Inputs) -> Array:
    """The rows in the order of X's features, where both are labelled by the same words in another order."""
    own, theirs = labels.get(ROWS), inputs.coords[ROWS]
    if own is None or len(own) != len(theirs):
        return values
    at = {label: row for row, label in enumerate(own.tolist())}
    if len(at) == len(own) and set(at) == set(theirs.tolist()):
        return values[[at[label] for label in theirs.tolist()]]
    check_same_labels("known", {ROWS: own}, {ROWS: theirs})
    return values


def declare_weights(known: Known | None, declare: Callable[[str, tuple[str, str]], TensorVariable]) -> TensorVariable:
    """W (feature, component): as ``declare(name, dims)`` has it, beside what is known.

    Where all components are known nothing is declared: no hyperparameter of new ones either.
    """
    if known is None or known.strength is not None:
        return declare("W", (ROWS, "component"))
    model = pm.modelcontext(None)
    if NEW not in model.coords:
        return pm.Data("W", known.values, dims=(ROWS, "component"))
    given = pm.Data("W_known", known.values, dims=(ROWS, KNOWN))
    new = declare("W_new", (ROWS, NEW))
    return pm.Deterministic("W", pt.concatenate([given, new], axis=1), dims=(ROWS, "component"))


def weights_dims(inputs: Inputs) -> tuple[str, str]:
    """Dims of the components of W that hyperparameters belong to: the new ones, where some are known."""
    return ROWS, NEW if NEW in inputs.coords else "component"


def is_refit(inputs: Inputs) -> bool:
    """Of inputs with known components: whether there is no new one."""
    return NEW not in inputs.coords


def around_known(
    known: Known | None, given: dict[str, TensorVariable], shape: tuple[int, int]
) -> dict[str, TensorVariable]:
    """``alpha`` and ``beta`` of gamma priors on W: around components that are believed, as ``given`` for the others.

    The prior mean of a known cell is its value, or a thousandth of its component's mean cell where that is more.
    """
    if known is None or known.strength is None:
        return given
    values = np.maximum(known.values, LEAST * known.values.mean(axis=0))
    of_known = {"alpha": np.full(values.shape, known.strength), "beta": known.strength / values}
    size = shape[0], len(pm.modelcontext(None).coords.get(NEW, ()))
    return {role: pt.concatenate([own, pt.broadcast_to(given[role], size)], axis=1) for role, own in of_known.items()}
