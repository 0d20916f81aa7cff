"""Fold new columns into a posterior: H of the new samples, with W known from the old ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.distributions.chains import CHAINS, Recipe
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.inference.registry import of_projection, verb_of, verdict
from nmf_zoo.inference.shared.multiplied import without_multipliers
from nmf_zoo.inference.shared.sample_blocks import structure_of_samples
from nmf_zoo.labels import are_counted, contradict, flat_labels
from nmf_zoo.models import gap, hmm_nmf, is_nmf, negative_binomial_nmf, normal_nmf, poisson_nmf
from nmf_zoo.models.inputs import new_samples
from nmf_zoo.models.matrices import COLUMNS, ROWS, as_matrix, read_labels, read_mask
from nmf_zoo.models.offsets import is_pair, read_array
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.component_order import (
    component_order,
    draws_in_order,
    known_of_components,
    require_as_drawn,
    usual_order,
)
from nmf_zoo.results.posterior import (
    LEADING,
    Axis,
    axes_of,
    best_chain,
    check_labels,
    draws_or_means,
    mean_over_draws,
    variable_of,
)
from nmf_zoo.results.trace_storage import MOMENTS
from nmf_zoo.runtime.arguments import variable_shapes
from nmf_zoo.structure import (
    Array,
    ChainPrior,
    Exponential,
    Factorisation,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
    NegativeBinomial,
    Normal,
    PartlyKnown,
    Poisson,
    TruncatedNormalPrior,
    Unknown,
    shared_column,
)
from nmf_zoo.verbs.block_source import BlockSource, as_data, as_source
from nmf_zoo.verbs.new_batches import batches_of_new, multiplied_offsets, with_middle_multipliers
from nmf_zoo.verbs.new_covariates import with_new_design
from nmf_zoo.verbs.sample_and_fit import fit, sample


def project(
    idata: Any,
    X_new: Any = None,
    *,
    model: pm.Model,
    data: Any = None,
    engine: Any = None,
    chain: int | None = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    batch: Any = None,
    design: Any = None,
    **arguments: Any,
) -> Result:
    """The activations H of new samples, given W.

    W and the hyperparameters are held at their posterior mean over the draws of one chain, components in the order and
    under the names that tables and pictures have. H of the new samples has the prior that the model gives to H. The
    uncertainty about W is not carried over: it is small when the old samples are many.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`, W at the scale that it was drawn with
    X_new : (features, new samples), in every form that the declarations take. Labelled rows (DataFrame, DataArray) are
        put in the model's order, when its own rows have labels
    model : the model that ``idata`` came from
    data : in place of ``X_new``, new samples in blocks that need not fit into memory, with exposures, backgrounds and
        missing cells of their own, as in :func:`~nmf_zoo.fit`, which runs then: "em", or "vb" where that can't, and
        ``store=`` for H
    engine : any engine that can run the model with W known, or its options. None is the first that can: of "gibbs",
        "hmm_exact" and "particle_gibbs", which draw, and "em", which finds a point; of normal data "em" comes first
    chain : whose W to use; None for the best one, of a fit the best restart
    mask, observed, exposure, background : of ``X_new``, as in :func:`~nmf_zoo.poisson_nmf`. Those of the model
        are used again when they are the same for all samples, and must be given when they are not. What is given takes
        the model's place: beside an exposure of its features, ``(lengths, depths)`` has both. Rows are those of
        ``X_new``, unless labels say that they are in the model's order
    batch : of a model with multipliers of batches, the batch of each new sample, among those that the model knows. The
        multipliers are held, too, with the rows of W scaled so that a feature's have the geometric mean 1
    design : of a model with covariates, those of the new samples; columns of a DataFrame are found by their names. The
        slopes are held, too
    arguments : run arguments of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`: draws, random_seed, quiet, ...

    Returns
    -------
    InferenceData or DataTree as of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`: H (component, obs) in the
    posterior, W in constant_data
    """
    if (X_new is None) == (data is None):
        got = "neither X_new nor data" if data is None else "X_new and data"
        raise InputError("X_new", got, "new samples, as a table or in blocks", "give one of both")
    offsets = {"exposure": exposure, "background": background}
    if data is not None:
        for name, given in {"mask": mask, "observed": observed, "batch": batch, "design": design, **offsets}.items():
            if given is not None:
                raise InputError(name, "a value with data=", "None: they come with the blocks", "see nz.Samples")
        source = as_source(data)
        new = _model_of_blocks(idata, source, model, chain)
        return fit(engine=_over_blocks(new, source) if engine is None else engine, model=new, data=data, **arguments)
    inputs = {"mask": mask, "observed": observed, "batch": batch, "design": design, **offsets}
    new = projection_model(idata, X_new, model=model, chain=chain, **inputs)
    if engine is None:
        known = read(new)
        tried = of_projection(known)
        engine = next((name for name in tried if verdict(known, name)), tried[0])
    return (fit if verb_of(engine) == "fit" else sample)(engine=engine, model=new, **arguments)


@names_checked
def projection_model(
    idata: Any,
    X_new: Any,
    *,
    model: pm.Model,
    chain: int | None = None,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    batch: Any = None,
    design: Any = None,
) -> pm.Model:
    """The declaration that :func:`project` runs: the model's own, of new samples, with W known. Arguments as there."""
    structure = _with_labels(idata, _with_free_H(model))
    X_new, mask, given = _align(X_new, mask, {"exposure": exposure, "background": background}, axes_of(structure)[0])
    offsets = {name: _offset(structure, name, value) for name, value in given.items()}
    if isinstance(structure.H.prior, LogLinearGammaPrior):
        structure = with_new_design(structure, structure.H.prior, design, _samples_of(X_new))
    elif design is not None:
        raise InputError("design", "covariates", "None: the model has none", "leave it out")
    if structure.likelihood.of_batches is not None:
        offsets["batch"] = batches_of_new(structure, batch, _samples_of(X_new))
    elif batch is not None:
        raise InputError("batch", "labels", "None: the model has no batches", "leave it out")
    return _with_known_W(idata, structure, chain, X_new, mask=mask, observed=observed, **offsets)


def _model_of_blocks(idata: Any, source: BlockSource, model: pm.Model, chain: int | None) -> pm.Model:
    """The same without data, for blocks of new samples; the first block tells whether exposures come with these."""
    structure = _with_labels(idata, _with_free_H(model))
    if structure.likelihood.of_batches is not None:
        raise InputError("data", "blocks", "X_new: multipliers of batches are for samples in memory")
    if isinstance(structure.H.prior, LogLinearGammaPrior):
        raise InputError("data", "blocks", "X_new: covariates are of samples in memory")
    offsets = {name: _offset_of_blocks(structure, source, name) for name in ("exposure", "background")}
    return _with_known_W(idata, structure, chain, None, shape=(structure.shape[0], 1), **offsets)


def _offset_of_blocks(structure: Factorisation, source: BlockSource, name: str) -> Any:
    """The model's exposure or background where all samples share it; None where it comes with the blocks."""
    own = getattr(structure.likelihood, name)
    if own is None or shared_column(own, structure.shape[0], 1.0) is not None:
        return _offset(structure, name, None)
    if getattr(as_data(source, 0)[1], name) is None:
        do = f"let read(number) return nz.Samples(X, {name}=...)"
        raise InputError("data", f"no {name}s", "those of the samples: the model's differ between samples", do)
    return None


def _over_blocks(model: pm.Model, source: BlockSource) -> str:
    """The first engine that can run the first block."""
    structure = read(model)
    if source.shape[0] != structure.shape[0]:
        return OVER_BLOCKS[0]  # which says so
    block = structure_of_samples(structure, *as_data(source, 0))
    return next((name for name in OVER_BLOCKS if verdict(block, name)), OVER_BLOCKS[0])


def _with_free_H(model: pm.Model) -> Factorisation:
    structure = read(model)
    if structure.H.is_free:
        return structure
    raise InputError(
        "model", "known activations", "activations with a prior, or free ones", "there is nothing to project"
    )


def _with_labels(idata: Any, structure: Factorisation) -> Factorisation:
    """The model under the result's labels of features, where its own say nothing: a fit over blocks has theirs."""
    feature = axes_of(structure)[0]
    if not are_counted(feature.labels):
        return structure
    found = draws_or_means(idata).coords.get(feature.dim)
    if found is None or len(found) != len(feature.labels):
        return structure
    return replace(structure, coords={**structure.coords, feature.dim: found.to_numpy()})


def _with_known_W(
    idata: Any, structure: Factorisation, chain: int | None, X_new: Any, batch: Array | None = None, **inputs: Any
) -> pm.Model:
    means = _means(idata, structure, chain)
    structure = replace(structure, H=replace(structure.H, prior=_in_order(structure.H.prior, means.order)))
    if batch is not None:
        inputs |= multiplied_offsets(structure, means.values, batch, X_new, inputs)
        structure = without_multipliers(structure)
    coords = {"feature": axes_of(structure)[0].labels, "component": means.labels}
    with new_samples():
        new = _declare(structure, means.values, X_new, coords=coords, **inputs)
    return pm.do(new, {"W": structure.W.value(means.values)})


def _declare(structure: Factorisation, values: dict[str, Array], X_new: Any, **inputs: Any) -> pm.Model:
    """A declaration of the new samples, its W still unknown."""
    likelihood, prior = structure.likelihood, structure.H.prior
    declared = {of_H: declare for (of_X, of_H), declare in DECLARATIONS.items() if of_X is type(likelihood)}
    if type(prior) not in declared:
        words = " or ".join(of_H.family for of_H in declared)
        expected = f"{words} ones" if declared else "data of another likelihood: no declaration of ours has this one"
        raise InputError("model", f"{likelihood.family} data with {prior.family} activations", expected)
    make, arguments = declared[type(prior)](structure, values)
    return make(X_new, structure.rank, **arguments, **inputs)


OVER_BLOCKS = ("em", "vb")  # in the order in which they are tried
Declared = tuple[Callable[..., pm.Model], dict[str, Any]]  # one of nz.models, and its arguments for H and X


def _of_features(structure: Factorisation, role: str, values: dict[str, Array]) -> dict[str, Array]:
    """A parameter of X's law, which new samples have, too."""
    return {role: structure.likelihood.parameters[role].resolve(values)}


def _refuse_of_samples(role: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 2 and shape[1] > 1:
        expected = "one for all cells, or one per feature, which new samples have, too"
        raise InputError(
            "model", f"{role} that differs between samples", expected, "declare the new samples' own model"
        )


def _normal(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return normal_nmf, _of_features(structure, "sigma", values)


def _overdispersed(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return negative_binomial_nmf, {**_of_features(structure, "alpha", values), **_gamma(structure, values)[1]}


def _half_normal(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return poisson_nmf, {"sigma_h": _tied(structure.H.prior.precision_of(values) ** -0.5, structure.H.shape)}


def _normal_half_normal(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return normal_nmf, {**_normal(structure, values)[1], **_half_normal(structure, values)[1]}


def _normal_gamma(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return normal_nmf, {**_normal(structure, values)[1], **_gamma(structure, values)[1]}


def _truncated_normal(structure: Factorisation, values: dict[str, Array]) -> Declared:
    mu, sigma = (_tied(own.resolve(values), structure.H.shape) for own in structure.H.prior.parameters.values())
    return normal_nmf, {**_normal(structure, values)[1], "mu_h": mu, "sigma_h": sigma}


def _free(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return poisson_nmf, {}


def _gamma(structure: Factorisation, values: dict[str, Array]) -> Declared:
    shape, rate = (_tied(array, structure.H.shape) for array in structure.H.prior.shape_and_rate(values))
    return gap, {"alpha_h": shape, "beta_h": rate}


def _log_linear(structure: Factorisation, values: dict[str, Array]) -> Declared:
    prior = cast(LogLinearGammaPrior, structure.H.prior)
    shape, rate = (_tied(array, structure.H.shape) for array in prior.base.shape_and_rate(values))
    return gap, {"alpha_h": shape, "beta_h": rate / prior.covariates.effects(values)}


def _inverse_gamma(structure: Factorisation, values: dict[str, Array]) -> Declared:
    shape, scale = (_tied(array, structure.H.shape) for array in structure.H.prior.shape_and_scale(values))
    return is_nmf, {"alpha_h": shape, "beta_h": scale}


def _chain(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return hmm_nmf, {"chain": _known_chain(cast(ChainPrior, structure.H.prior), values, structure.rank)}


def _chain_of_powers(structure: Factorisation, values: dict[str, Array]) -> Declared:
    return is_nmf, _chain(structure, values)[1]


# (likelihood of X, prior of H) -> the declaration that has them
DECLARATIONS: dict[tuple[type, Any], Callable[[Factorisation, dict[str, Array]], Declared]] = {
    (Poisson, Flat): _free,
    (Poisson, GammaPrior): _gamma,
    (Poisson, LogLinearGammaPrior): _log_linear,
    (Poisson, HalfNormalPrior): _half_normal,
    **{(Poisson, chain.prior): _chain for chain in CHAINS},
    (Normal, Flat): _normal,
    (Normal, GammaPrior): _normal_gamma,
    (Normal, TruncatedNormalPrior): _truncated_normal,
    (Normal, HalfNormalPrior): _normal_half_normal,
    (Exponential, InverseGammaPrior): _inverse_gamma,
    **{(Exponential, chain.prior): _chain_of_powers for chain in CHAINS if not chain.prior.is_bounded},
    (NegativeBinomial, GammaPrior): _overdispersed,
}


def _known_chain(prior: ChainPrior, values: dict[str, Array], rank: int) -> Recipe:
    """The chain with its parameters as they are, for new samples, of which the first starts it anew."""
    found = {role: np.broadcast_to(own.resolve(values), (rank, 1))[:, 0] for role, own in prior.parameters.items()}
    distribution = next(own for own in CHAINS if own.prior is type(prior))
    return Recipe(distribution, distribution.arguments(**distribution.of_roles(found)))


def _tied(array: Array, shape: tuple[int, int]) -> Array:
    """A hyperparameter of H that is the same for all samples, (K, 1)."""
    full = np.broadcast_to(array, shape)
    if np.any(full != full[:, :1]):
        expected = "one value for all samples, or per component"
        raise InputError("model", "hyperparameters of H that differ between samples", expected, "new samples have none")
    return np.array(full[:, :1])


def _in_order(prior: Any, order: Array) -> Any:
    """A prior of H whose known numbers are those of the components in this order."""
    known = {name: replace(own, value=own.value[order]) for name, own in known_of_components(prior, len(order)).items()}
    if isinstance(prior, LogLinearGammaPrior):
        return replace(prior, base=replace(prior.base, **known))
    return replace(prior, **known) if known else prior


class _OrderedMeans(NamedTuple):
    """Values by name, as the model's variables have them, and the labels (K,) of the components; both in order.

    ``order`` : (K,) which of the model's components each is, as far as H's prior tells them apart
    """

    values: dict[str, Array]
    labels: Array
    order: Array


def _means(idata: Any, structure: Factorisation, chain: int | None) -> _OrderedMeans:
    """Posterior means, over one chain, of W and the hyperparameters that new samples depend on."""
    W, group, shapes = structure.W, draws_or_means(idata), variable_shapes(structure)
    require_as_drawn(idata, structure)
    chains = group["chain"].to_numpy()
    if chain is not None and chain not in chains:
        raise InputError("chain", repr(chain), f"one of {chains.tolist()}, or None for the best one")
    chosen = chains[best_chain(idata)] if chain is None else chain
    needed, order = [] if W.is_fixed else [W.name], np.arange(structure.rank)
    for unknown in structure.H.unknowns:
        _refuse_untied(unknown, structure.H.shape)
    for role, parameter in structure.likelihood.parameters.items():
        if structure.likelihood.of_batches is None:
            _refuse_of_samples(role, parameter.shape)
    needed += [unknown.name for unknown in (*structure.H.unknowns, *structure.likelihood.unknowns)]
    draws = xr.Dataset({name: variable_of(group, structure, name, shapes[name]) for name in needed})
    check_labels(group, structure, needed)
    if W.is_fixed:  # so are the places of its components
        one, labels = draws.sel(chain=[chosen]) if needed else draws, _component_labels(structure)
    else:
        named, component = _with_one_dim(idata, draws, structure)
        (one,) = draws_in_order(named, chosen, W.name, structure.H.name, names=needed)
        labels = one[component].to_numpy()
        if known_of_components(structure.H.prior, structure.rank):
            found = component_order(named, W.name, structure.H.name)
            assert found is not None  # W has draws
            order = usual_order(found, chosen)
        one = with_middle_multipliers(structure, one)
    values = {name: mean_over_draws(one[name].transpose(*LEADING, ...)[0]).to_numpy() for name in needed}
    for unknown in structure.H.unknowns:
        if isinstance(unknown, PartlyKnown) and not W.is_fixed:
            values[unknown.name] = unknown.entries(values[unknown.name][:, None])
    return _OrderedMeans(values if W.is_fixed else values | {W.name: W.orient(values[W.name])}, labels, order)


def _with_one_dim(idata: Any, draws: xr.Dataset, structure: Factorisation) -> tuple[Any, str]:
    """(the result with draws of W and H in our orientation, components along one dim in all variables; which one)

    The structure knows which dims are of components, also where their names do not say so.
    """
    W, H, group = structure.W, structure.H, draws_or_means(idata)
    feature, component = W.orient_dims(_own_dims(draws[W.name]))
    own = {W.name: draws[W.name].transpose(*LEADING, feature, component)}
    if H.name in group and group[H.name].ndim == len(LEADING) + 2:  # maybe of other samples than the model's
        of_h = group[H.name].transpose(*LEADING, ...)
        turned = of_h.transpose(*LEADING, *H.orient_dims(_own_dims(of_h)))
        if turned.shape[2] == structure.rank:
            own[H.name] = _renamed(turned, turned.dims[2], component)
    for unknown in H.unknowns:
        if isinstance(unknown, PartlyKnown):
            whole = unknown.whole(draws[unknown.name].transpose(*LEADING, ...).to_numpy())
            own[unknown.name] = xr.DataArray(whole[..., 0], dims=(*LEADING, component))
        elif structure.rank > 1 and structure.rank in unknown.variable_shape:
            array = draws[unknown.name]
            at = _axis_of_components(structure, unknown)
            own[unknown.name] = _renamed(array, _own_dims(array)[at], component)
    others = {str(name): draws[name] for name in draws.data_vars if name not in own}
    posterior = xr.Dataset({**own, **others})
    if component not in posterior.coords:
        posterior = posterior.assign_coords({component: _component_labels(structure)})
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata) if name != MOMENTS}
    return _compat.of_kind(idata, {**groups, "posterior": posterior}, idata.attrs), component


def _axis_of_components(structure: Factorisation, unknown: Unknown) -> int:
    """Of a variable that H's prior depends on, one of whose axes has their length; slopes may have two such."""
    prior = structure.H.prior
    if isinstance(prior, LogLinearGammaPrior) and unknown.name == prior.covariates.variable.name:
        return int(prior.covariates.transposed) if len(unknown.variable_shape) == 2 else 0
    return unknown.variable_shape.index(structure.rank)


def _own_dims(array: xr.DataArray) -> tuple[str, ...]:
    return tuple(str(dim) for dim in array.dims[len(LEADING) :])


def _renamed(array: xr.DataArray, old: Any, new: Any) -> xr.DataArray:
    """With another dim in place of an old one, whose labels are left out."""
    return array if old == new else array.drop_vars(old, errors="ignore").rename({old: new})


def _refuse_untied(unknown: Unknown, shape: tuple[int, int]) -> None:
    is_of_samples = len(unknown.shape) > 0 and unknown.shape[-1] != 1 and not unknown.tied
    if is_of_samples and shape[1] != 1:
        got = f"{unknown.name}, unknown for each sample"
        raise InputError("model", got, "hyperparameters of H tied over samples", "use nz.free(tie='obs') or tie='all'")


def _offset(structure: Factorisation, name: str, given: Any) -> Any:
    """The exposure or background of new samples: as given, or the model's where all samples share it."""
    own = getattr(structure.likelihood, name)
    if given is not None or own is None:
        return given
    column = shared_column(own, structure.shape[0], 1.0)
    if column is None:
        raise InputError(name, "None", "that of the new samples: the model's differs between samples", f"give {name}=")
    return column[:, None]


def _component_labels(structure: Factorisation) -> Array:
    of_w = structure.W.orient_dims(structure.dims.get(structure.W.name, ()))
    of_h = structure.H.orient_dims(structure.dims.get(structure.H.name, ()))
    dim = of_h[0] if of_h else of_w[1] if of_w else ""
    return structure.coords.get(dim, np.arange(structure.rank))


def _samples_of(X_new: Any) -> Array:
    """Labels of the new samples, else 0, 1, 2, ..."""
    shape = X_new.shape if scipy.sparse.issparse(X_new) else as_matrix("X_new", X_new).shape
    return read_labels(X_new)[1].get(COLUMNS, np.arange(shape[1]))


def _align(X_new: Any, mask: Any, offsets: dict[str, Any], feature: Axis) -> tuple[Any, Any, dict[str, Any]]:
    """X_new, its mask and its offsets with their rows in the model's order."""
    n_features = len(feature.labels)
    index, X_new, mask = _row_labels(X_new, mask, feature.dim)
    if index is None or (are_counted(feature.labels) and not contradict(index, feature.labels)):
        found = X_new.shape[0] if hasattr(X_new, "shape") and len(X_new.shape) else len(X_new)
        if found != n_features:
            raise InputError("X_new", number_of(found, "feature"), f"{n_features}, as many as the model has")
        return X_new, mask, offsets
    _check_labels(index, feature)
    order, own = index.get_indexer(feature.labels), read_labels(X_new)[1]
    X_new = X_new.iloc[order] if isinstance(X_new, pd.DataFrame) else X_new.isel({X_new.dims[0]: order})
    if mask is not None:
        mask = read_mask(mask, X_new.shape, own)[order]
    if are_counted(order):
        return X_new, mask, offsets
    how = order, X_new.shape, own, feature
    return X_new, mask, {name: _rows_in_order(name, given, *how) for name, given in offsets.items()}


def _rows_in_order(
    name: str, given: Any, order: Array, shape: tuple[int, int], own: dict[str, Array], feature: Axis
) -> Any:
    """An offset with its rows where those of X_new (of this shape, labelled ``own``) go, unless they are in place."""
    if is_pair(given):
        return tuple(_rows_in_order(name, part, order, shape, own, feature) for part in given)
    rows = read_labels(given)[1].get(ROWS, ())
    if given is None or scipy.sparse.issparse(given) or np.array_equal(rows, feature.labels):
        return given
    array = read_array(name, given, shape, own)
    return array[order] if array.ndim == 2 and len(array) > 1 else array


def _row_labels(X_new: Any, mask: Any, dim: str) -> tuple[pd.Index | None, Any, Any]:
    """The rows' labels if there are some; a DataArray comes back with its features first."""
    if isinstance(X_new, pd.DataFrame):
        return pd.Index(flat_labels(X_new.index)), X_new, mask
    if not isinstance(X_new, xr.DataArray) or X_new.ndim != 2:
        return None, X_new, mask
    if dim in X_new.dims:
        X_new = X_new.transpose(dim, ...)
    if isinstance(mask, xr.DataArray):
        mask = read_labels(mask)[0]
    rows = X_new.dims[0]
    return (pd.Index(flat_labels(X_new.indexes[rows])) if rows in X_new.indexes else None), X_new, mask


def _check_labels(index: pd.Index, feature: Axis) -> None:
    """Each feature of the model once, and no other."""
    expected = f"each of the model's {number_of(len(feature.labels), 'feature')} once"
    if not index.is_unique:
        raise InputError("X_new", f"rows that repeat: {_some(index[index.duplicated()])}", expected, "add them up")
    missing, extra = pd.Index(feature.labels).difference(index), index.difference(feature.labels)
    if len(missing) or len(extra):
        found = [
            f"{what} features {_some(rows)}" for what, rows in (("missing", missing), ("unknown", extra)) if len(rows)
        ]
        do = "add rows of NaN (not observed) or 0 for the missing ones, drop the unknown ones"
        raise InputError("X_new", " and ".join(found), expected, do)


def _some(labels: pd.Index) -> str:
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    return ", ".join(repr(str(label)) for label in labels[:5]) + more
