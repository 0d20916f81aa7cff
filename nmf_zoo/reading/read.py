"""Read a model as a whole: strictly, so that nothing in it is overlooked."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pymc as pm
from pymc.logprob.transforms import IntervalTransform, LogOddsTransform, LogTransform
from pytensor.graph.basic import Variable

from nmf_zoo.distributions.chains import CHAINS
from nmf_zoo.errors import InputError, UnreadableModel
from nmf_zoo.options import names_checked
from nmf_zoo.reading.data import as_imputed, read_data
from nmf_zoo.reading.graph import ModelGraph, name_of
from nmf_zoo.reading.likelihoods import LIKELIHOODS, Observation, read_likelihood, read_observation
from nmf_zoo.reading.priors import LEFT, RIGHT, read_factor
from nmf_zoo.reading.registry import find, names, operation
from nmf_zoo.structure import Factor, Factorisation, Imputed

# Transforms to an interval and the distributions whose own they are: on others they narrow the support.
OWN_TRANSFORMS = (
    *((IntervalTransform, pm.Uniform), (IntervalTransform, pm.TruncatedNormal), (LogOddsTransform, pm.Beta)),
    *((chain.transform, chain) for chain in CHAINS if chain.transform is not None),
)


def model_here(model: pm.Model | None) -> pm.Model:
    """The model that was given, else the one in whose context this is."""
    found = pm.Model.get_context(error_if_none=False) if model is None else model
    if found is None:
        raise InputError("model", "none, and no model's context", "a pm.Model", "give it by name, model=")
    return found


@names_checked
def read(model: pm.Model) -> Factorisation:
    """The factorisation that ``model`` declares.

    Parameters
    ----------
    model : pm.Model
        One of our declarations, or your own: X Poisson, normal or exponential, mean exposure * (W @ H) + background.

    Raises
    ------
    UnreadableModel
        When anything in the model has no place in a factorisation. A model is never half-read.
    """
    if not isinstance(model, pm.Model):
        raise InputError("model", type(model).__name__, "a pm.Model")
    drop_repeats(model)
    model = in_plain_tensors(model)
    graph = ModelGraph(model)
    refuse_potentials(model)
    seen = read_observation(observed_variable(model))
    W, H = read_factor(graph, seen.mean.left, LEFT), read_factor(graph, seen.mean.right, RIGHT)
    refuse_repeats(W, H)
    shape = (W.shape[0], H.shape[1])
    data, cells = read_data(graph, seen, shape)
    structure = Factorisation(
        likelihood=read_likelihood(graph, seen, shape, data, cells),
        W=W,
        H=H,
        data=data,
        cells=cells,
        imputed=find_imputed(graph, seen, (W.variable, H.variable), shape),
    )
    refuse_unused(model, structure)
    refuse_constraints(model)
    return with_labels(model, structure)


def in_plain_tensors(model: pm.Model) -> pm.Model:
    """The model, or the twin of one of ``pymc.dims``; who has such a model has imported what it is made of."""
    if "pytensor.xtensor" not in sys.modules:
        return model
    from nmf_zoo.reading.dims import without_dims

    return without_dims(model)


def drop_repeats(model: pm.Model) -> None:
    """Mend what PyMC 5's ``sample_posterior_predictive`` does: it lists the observed variables of its model twice."""
    for position in reversed(range(len(model.observed_RVs))):
        if model.observed_RVs[position] in model.observed_RVs[:position]:
            del model.observed_RVs[position]


def refuse_potentials(model: pm.Model) -> None:
    if model.potentials:
        expected = "no Potential: engines would overlook it"
        raise UnreadableModel(name_of(model.potentials[0]), "a Potential", expected, "remove it or use pm.sample")


def observed_variable(model: pm.Model) -> Variable:
    """The one observed variable; where nothing is observed, the one free variable that can be data."""
    candidates = list(model.observed_RVs) or data_like(model)
    if len(candidates) != 1:
        found = f"{len(candidates)} observed variables ({', '.join(map(name_of, candidates)) or 'none'})"
        raise UnreadableModel("model", found, f"one, {names(LIKELIHOODS)}", "split the model or use pm.sample")
    return candidates[0]


def data_like(model: pm.Model) -> list[Variable]:
    """Free variables with a likelihood we know and a mean that we can read: X of a model without data."""
    known = [(rv, recogniser) for rv in model.free_RVs if (recogniser := find(LIKELIHOODS, rv)) is not None]
    return [rv for rv, recogniser in known if len(known) == 1 or recogniser(rv) is not None]


def refuse_repeats(W: Factor, H: Factor) -> None:
    if W.is_chain:
        raise UnreadableModel(W.name, "a chain on the left of the product", "chains in H only", "write W @ H")
    if not W.is_fixed and W.variable == H.variable:
        raise UnreadableModel(W.variable, "one variable on both sides of the product", "two factors", "use pm.sample")
    if W.shape[1] != H.shape[0]:
        found = f"shapes {W.shape} and {H.shape} in one product"
        raise UnreadableModel(W.name or "W", found, "as many columns as the other has rows", "check the dims")


def find_imputed(
    graph: ModelGraph, seen: Observation, factors: tuple[str, str], shape: tuple[int, int]
) -> Imputed | None:
    """The missing cells' variable, if there is one."""
    others = [rv for rv in graph.model.free_RVs if rv is not seen.variable and rv.name not in factors]
    found = [imputed for rv in others if (imputed := as_imputed(graph, rv, seen, shape)) is not None]
    return found[0] if len(found) == 1 else None


def refuse_unused(model: pm.Model, structure: Factorisation) -> None:
    """Each free variable has exactly one place."""
    places = [factor.variable for factor in (structure.W, structure.H) if not factor.is_fixed]
    places += list(structure.unknowns)
    places += [structure.imputed.name] if structure.imputed is not None else []
    places += [structure.likelihood.name] if structure.data is None else []
    expected = "each free variable to have one role: factor, hyperparameter of a factor, sigma, or imputed data"
    for name in map(name_of, model.free_RVs):
        if places.count(name) != 1:
            found = "an unused free variable" if name not in places else "a variable with two roles"
            raise UnreadableModel(name, found, expected, "remove it or use pm.sample")


def refuse_constraints(model: pm.Model) -> None:
    """A transform other than the distribution's own narrows the support (``ordered``), unseen by its density."""
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        is_own = any(isinstance(transform, kind) and type(rv.owner.op) is operation(of) for kind, of in OWN_TRANSFORMS)
        if transform is not None and not isinstance(transform, LogTransform) and not is_own:
            found = f"the transform {type(transform).__name__}"
            raise UnreadableModel(name_of(rv), found, "the distribution's own", "drop transform= or use pm.sample")


def with_labels(model: pm.Model, structure: Factorisation) -> Factorisation:
    """The structure with the dims and coords of the model; PyMC allows None for both, which says nothing."""
    dims = {name: tuple(found) for name, found in model.named_vars_to_dims.items() if None not in found}
    coords = {dim: np.asarray(labels) for dim, labels in model.coords.items() if labels is not None}
    return replace(structure, dims=dims, coords=coords)
