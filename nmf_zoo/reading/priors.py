"""The factors: which variable, which orientation, which prior. Rate or mean is recovered from the scale PyMC keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar import Abs, Mul, Pow, Reciprocal, Sign, Sqrt, TrueDiv

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.chains import CHAIN_PRIORS
from nmf_zoo.reading.covariates import as_log_linear
from nmf_zoo.reading.graph import ModelGraph, View, as_joined, is_elemwise, known_value, name_of, ndim, spell, strip
from nmf_zoo.reading.hyperparameters import as_parameter, orient
from nmf_zoo.reading.products import Operand
from nmf_zoo.reading.registry import distribution_name, find, names, parameters
from nmf_zoo.structure import (
    Factor,
    Fixed,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    Known,
    KnownComponents,
    LogLinearGammaPrior,
    Parameter,
    PartlyKnown,
    Prior,
    TruncatedNormalPrior,
)

KNOWN_OR_FREE = (
    "a known value, a free variable (indexed by None only), one joined to known values, or shape / mean with the same "
    "shape; of H also times "
    "exp(design @ slopes.T), slopes normal"
)


LEFT, RIGHT = 1, 0  # of the product: the axis of a factor's components


def read_factor(graph: ModelGraph, operand: Operand, side: int) -> Factor:
    """One side of the product, `LEFT` or `RIGHT`: a matrix with a prior, a known one, or one beside the other."""
    variable = operand.variable
    if ModelGraph.is_known(variable):
        return read_fixed(operand)
    if ndim(variable) == 2 and (terms := as_joined(variable)) is not None:
        return read_joined(graph, operand, side, *terms)
    if not graph.is_free(variable):
        expected = "a free variable or a known matrix on each side of the product"
        raise UnreadableModel(
            spell(variable), "an expression as a factor", expected, "put known arrays around the product"
        )
    reader = find(FACTOR_PRIORS, variable)
    if reader is None:
        found, expected = f"a {distribution_name(variable)} prior", f"one of {names(FACTOR_PRIORS)}"
        raise UnreadableModel(name_of(variable), found, expected, "change this prior or use pm.sample")
    shape = graph.shapes[name_of(variable)]
    if len(shape) != 2:
        raise UnreadableModel(name_of(variable), f"shape {shape}", "a matrix", "declare it with two dims")
    prior = read_covariates(graph, operand, side) or reader(graph, variable, operand.transposed)
    return Factor(name=name_of(variable), shape=turned(shape, operand), prior=prior, transposed=operand.transposed)


def read_covariates(graph: ModelGraph, operand: Operand, side: int) -> LogLinearGammaPrior | None:
    """The prior of H, where its scale is log-linear in covariates of samples; None where it isn't."""
    found = as_log_linear(graph, operand.variable, operand.transposed if side == RIGHT else not operand.transposed)
    if found is None:
        return None
    name = name_of(operand.variable)
    if side == LEFT:
        got, expected = "covariates of the rows of X", "those of its columns, the samples"
        raise UnreadableModel(name, got, expected, "declare X transposed, or use pm.sample")
    check_parameters(graph, operand.variable, found.base.parameters, operand.transposed)
    return found


def turned(shape: tuple[int, ...], operand: Operand) -> tuple[int, int]:
    """The factor's shape in our orientation."""
    rows, cols = shape[::-1] if operand.transposed else shape
    return rows, cols


def read_fixed(operand: Operand) -> Factor:
    """A known matrix, >= 0."""
    value = np.array(known_value(operand.variable), dtype=np.float64)
    name = operand.variable.name or ""
    if value.ndim != 2 or not np.all(np.isfinite(value)) or np.any(value < 0):
        found = f"shape {value.shape}" if value.ndim != 2 else "negative or infinite entries in a known factor"
        raise UnreadableModel(name or "known factor", found, "a finite matrix >= 0", "check the data you gave")
    value = np.ascontiguousarray(value.T) if operand.transposed else value
    return Factor(name=name, shape=value.shape, prior=Fixed(value=value), transposed=operand.transposed)


def read_joined(graph: ModelGraph, operand: Operand, side: int, axis: int, terms: list[Variable]) -> Factor:
    """Known components beside those of one free variable: ``pt.concatenate([known, W_new], axis=1)``."""
    named = [own for own in graph.model.deterministics if strip(own) is operand.variable]
    free = [strip(term) for term in terms if not ModelGraph.is_known(term)]
    if axis != (1 - side if operand.transposed else side):
        found, expected = f"a concatenation along axis {axis}", "one along the components"
        raise UnreadableModel(spell(operand.variable), found, expected, "join whole components, or use pm.sample")
    if len(free) != 1 or not graph.is_free(free[0]):
        found, expected = f"{len(free)} unknown parts of one factor", "one free variable beside known arrays"
        raise UnreadableModel(spell(operand.variable), found, expected, "declare the new components in one variable")
    if not named:
        expected = 'a name for it: pm.Deterministic("W", pt.concatenate([known, W_new], axis=1))'
        raise UnreadableModel(name_of(free[0]), "a concatenation without a name", expected, "give it one")
    beside = read_factor(graph, Operand.of(free[0], operand.transposed), side)
    if beside.is_chain:
        found, expected = f"a {beside.prior.family} beside known rows", "rows that are all known, or none"
        raise UnreadableModel(beside.name, found, expected, "use pm.sample")
    parts = [
        beside.shape if term is free[0] else read_fixed(Operand.of(term, operand.transposed)).prior
        for term in map(strip, terms)
    ]
    arrays = [np.zeros(part) if isinstance(part, tuple) else part.value for part in parts]
    ends = np.cumsum([0, *(array.shape[side] for array in arrays)])
    at = next(i for i, part in enumerate(parts) if isinstance(part, tuple))
    values = np.concatenate(arrays, axis=side)
    known = KnownComponents(
        variable=beside.name, values=values, free=slice(int(ends[at]), int(ends[at + 1])), axis=side
    )
    return replace(beside, name=name_of(named[0]), shape=values.shape, known=known)


# -- priors of factors: (graph, variable, transposed) -> Prior -----------------------------------------------------


def read_flat(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    return Flat()


def read_gamma(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    shape, scale = parameters(variable)
    return gamma_prior(graph, variable, View.of(shape), View.of(scale), transposed)


def read_exponential(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    """Gamma with shape 1, so that its scale is its mean."""
    scale = View.of(parameters(variable)[0])
    return gamma_prior(graph, variable, View.of(pt.as_tensor(np.ones(()))), scale, transposed)


def read_inverse_gamma(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    found = {}
    for role, name, parameter in zip(("shape", "scale"), ("alpha", "beta"), parameters(variable), strict=True):
        view = View.of(parameter)
        known_or_free = as_parameter(graph, view, transposed)
        if known_or_free is None:
            raise unreadable_parameter(variable, name, view)
        found[role] = known_or_free
    check_parameters(graph, variable, found, transposed)
    return InverseGammaPrior(**found)


def read_half_normal(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    """With its sigma, or what it is a power of: sqrt(variance), 1 / sqrt(precision), PyMC's tau."""
    view = View.of(parameters(variable)[1])
    role, inside = as_variance_or_precision(view) or ("sigma", view)
    found = as_parameter(graph, inside, transposed)
    if found is None:
        raise unreadable_parameter(variable, role, inside)
    check_parameters(graph, variable, {role: found}, transposed)
    return HalfNormalPrior(**{role: found})


def read_truncated_normal(graph: ModelGraph, variable: Variable, transposed: bool) -> Prior:
    """With known parameters, on [0, inf)."""
    mu, sigma, lower, upper = parameters(variable)
    found = {}
    for role, parameter in (("mu", mu), ("sigma", sigma), ("lower", lower), ("upper", upper)):
        view = View.of(parameter)
        if not ModelGraph.is_known(view.source):
            raise unreadable_parameter(variable, role, view)
        found[role] = Known(value=orient(view.value, transposed))
    if np.any(found["lower"].value != 0.0) or np.any(found["upper"].value != np.inf):
        ends = f"a normal on [{found['lower'].value.min():g}, {found['upper'].value.max():g}]"
        raise UnreadableModel(name_of(variable), ends, "lower=0 and no upper", "change this prior or use pm.sample")
    check_parameters(graph, variable, {"sigma": found["sigma"]}, transposed)
    return TruncatedNormalPrior(mu=found["mu"], sigma=found["sigma"])


FACTOR_PRIORS: dict[type, Callable[[ModelGraph, Variable, bool], Prior]] = {
    pm.Gamma: read_gamma,
    pm.Exponential: read_exponential,
    pm.InverseGamma: read_inverse_gamma,
    pm.HalfNormal: read_half_normal,
    pm.TruncatedNormal: read_truncated_normal,
    pm.HalfFlat: read_flat,
    **CHAIN_PRIORS,
}


def gamma_prior(graph: ModelGraph, variable: Variable, shape: View, scale: View, transposed: bool) -> GammaPrior:
    """The prior, or the reason why it can't be read."""
    found_shape = as_parameter(graph, shape, transposed)
    if found_shape is None:
        raise unreadable_parameter(variable, "alpha", shape)
    second = as_rate_or_mean(graph, shape, scale, transposed)
    if second is None:
        is_inverted = is_elemwise(scale.source, Reciprocal)
        raise unreadable_parameter(variable, *(("beta", scale.inside()) if is_inverted else ("1 / beta", scale)))
    check_parameters(graph, variable, {"shape": found_shape, **second}, transposed)
    return GammaPrior(shape=found_shape, **second)


def check_parameters(graph: ModelGraph, variable: Variable, found: dict[str, Parameter], transposed: bool) -> None:
    """The parameters of a factor's prior broadcast to it, and known ones are finite and positive."""
    size = graph.shapes[name_of(variable)][::-1] if transposed else graph.shapes[name_of(variable)]
    for role, parameter in found.items():
        if not all(a in (1, b) for a, b in zip(parameter.shape, size, strict=False)):
            expected = f"a shape that broadcasts to {size}"
            raise UnreadableModel(
                name_of(variable), f"{role} of shape {parameter.shape} in its prior", expected, "reshape it"
            )
        known = _known_part(parameter)
        if not (np.all(known > 0) and np.all(np.isfinite(known))):
            got = f"{role} {known.min()} in its prior"
            raise UnreadableModel(name_of(variable), got, "finite numbers > 0", "check the hyperparameters")


def _known_part(parameter: Parameter) -> np.ndarray:
    """The numbers of a parameter; of a variable none."""
    if isinstance(parameter, PartlyKnown):
        return parameter.known
    return parameter.value if isinstance(parameter, Known) else np.ones(())


def unreadable_parameter(variable: Variable, role: str, view: View) -> UnreadableModel:
    found = f"{role} = {spell(view.source)}"
    do = "make it a variable of its own (scale its prior instead) or use pm.sample"
    return UnreadableModel(name_of(variable), found, KNOWN_OR_FREE, do)


def as_rate_or_mean(graph: ModelGraph, shape: View, scale: View, transposed: bool) -> dict[str, Parameter] | None:
    """{"rate": ...} or {"mean": ...} from the scale: 1 / rate, 1 / (shape / mean), or for shape 1 the mean itself."""
    if not is_elemwise(scale.source, Reciprocal):
        return as_plain_scale(graph, shape, scale, transposed)
    rate = scale.inside()
    if is_same(graph, rate, shape) and not ModelGraph.is_known(rate.source):
        return {"mean": Known(value=np.ones(()))}  # Gamma(a, a)
    if is_elemwise(rate.source, TrueDiv) and is_same(graph, rate.inside(0), shape):
        mean = as_parameter(graph, rate.inside(1), transposed)
        if mean is not None:
            return {"mean": mean}
    found = as_parameter(graph, rate, transposed)
    return None if found is None else {"rate": found}


def as_variance_or_precision(sigma: View) -> tuple[str, View] | None:
    """("variance", v) of sqrt(v) or v ** 0.5; ("precision", p) of 1 / sqrt(p), p ** -0.5 or PyMC's ``tau=p``."""
    if ModelGraph.is_known(sigma.source):
        return None
    if is_elemwise(sigma.source, Mul):  # of tau: abs(p) ** -0.5 * sign(p)
        return as_precision_of_tau(sigma)
    if is_elemwise(sigma.source, Sqrt):
        return "variance", sigma.inside()
    if is_elemwise(sigma.source, Pow):
        return as_root(sigma)
    is_ratio = is_elemwise(sigma.source, TrueDiv) and is_one(sigma.inside(0))
    if is_ratio or is_elemwise(sigma.source, Reciprocal):
        found = as_variance_or_precision(sigma.inside(1 if is_ratio else 0))
        return None if found is None or found[0] != "variance" else ("precision", found[1])
    return None


def as_root(power: View) -> tuple[str, View] | None:
    """What a power is the root of, or one over the root of."""
    exponent = power.inside(1)
    if not ModelGraph.is_known(exponent.source):
        return None
    role = {0.5: "variance", -0.5: "precision"}.get(float(np.ravel(exponent.value)[0]))
    return None if role is None or np.ptp(exponent.value) else (role, power.inside(0))


def as_precision_of_tau(sigma: View) -> tuple[str, View] | None:
    root, sign = sigma.inside(0), sigma.inside(1)
    if not is_elemwise(sign.source, Sign) or not is_elemwise(root.source, Pow):
        return None
    found = as_root(root)
    if found is None or found[0] != "precision" or not is_elemwise(found[1].source, Abs):
        return None
    inside = found[1].inside()
    return ("precision", inside) if inside.source is sign.inside().source else None


def is_one(view: View) -> bool:
    return ModelGraph.is_known(view.source) and bool(np.all(view.value == 1.0))


def as_plain_scale(graph: ModelGraph, shape: View, scale: View, transposed: bool) -> dict[str, Parameter] | None:
    """A scale that PyMC did not make from a rate: known, or a free variable where shape is 1."""
    if ModelGraph.is_known(scale.source):
        return {"rate": Known(value=orient(np.asarray(1.0 / scale.value), transposed))}
    if ModelGraph.is_known(shape.source) and np.all(shape.value == 1):
        mean = as_parameter(graph, scale, transposed)
        return None if mean is None else {"mean": mean}
    return None


def is_same(graph: ModelGraph, first: View, second: View) -> bool:
    """The same free variable broadcast in the same way, or equal known values."""
    if ModelGraph.is_known(first.source) and ModelGraph.is_known(second.source):
        a, b = np.broadcast_arrays(first.value, second.value)
        return np.array_equal(a, b)
    if first.source is not second.source or not graph.is_free(first.source):
        return False
    shape = graph.shapes[name_of(first.source)]
    entries = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.array_equal(np.atleast_2d(first.apply(entries)), np.atleast_2d(second.apply(entries)))
