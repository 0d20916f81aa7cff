"""What X says of chains in time under a W that is known: the likelihood, and each time given those up to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel, not_one_of
from nmf_zoo.inference.hmm.exact import recursions_of
from nmf_zoo.inference.hmm.particle_expectations import read_particles
from nmf_zoo.inference.hmm.particle_filter import require_weight
from nmf_zoo.inference.hmm.particle_options import ParticleOptions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.inference.hmm.support import supports_exact, supports_particles
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.groups import axes_of
from nmf_zoo.runtime.arguments import entropy_of
from nmf_zoo.structure import Array, ChainPrior, Factorisation, Fixed
from nmf_zoo.structure.chains import REAL, supports_of
from nmf_zoo.workbench.marginal import check_weights, component_of

METHODS = ("auto", "exact", "particles")


@names_checked
def filter(
    model: pm.Model,
    W: Any = None,
    *,
    values: Mapping[str, Any] | None = None,
    method: Literal["auto", "exact", "particles"] = "auto",
    marginals: bool = False,
    particles: int = 1000,
    proposal: Literal["auto", "bootstrap", "guided", "auxiliary"] = "auto",
    random_seed: Any = None,
) -> xr.Dataset:
    """The log-likelihood log p(X | W) of chains in time, all their paths summed over; and what is known as times go by.

    Parameters
    ----------
    model : a model whose H is a chain, of :func:`~nmf_zoo.hmm_nmf` or one of your own, with data
    W : (features, components); None where the model knows it
    values : of the chain's unknown parameters, by name, in the model's shapes
    method : "exact": the forward recursion over all 2^K states of binary chains; "particles": an estimate, whose
        exponential is unbiased, for chains of every kind; "auto": exact where that can be
    marginals : whether to tell the mean and sd of H at every time, given X up to that time
    particles, proposal : of "particles", as in :class:`~nmf_zoo.ParticleEM`
    random_seed : of "particles"

    Returns
    -------
    Dataset with ``log_likelihood``, all constants included; with marginals also ``mean`` and ``sd`` (component, obs).
    The attribute ``method`` says how it was found; of particles ``effective`` (obs) is their effective number

    Raises
    ------
    InputError : W or a value is missing, or of another shape
    UnsupportedModel : H is no chain, X no counts, or there are too many states for "exact"
    RunFailed : no state of the chains can make the counts of some time

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.hmm_nmf([[9, 0, 8], [0, 9, 1]], 2, chain=nz.BasisChain(0.8, 0.8), background=0.1)
    >>> round(float(nz.filter(model, [[8, 0], [0, 8]])["log_likelihood"]), 2)
    -16.44
    """
    structure = read(model)
    if method not in METHODS:
        raise InputError("method", repr(method), f"one of {list(METHODS)}")
    options = ParticleOptions(particles=particles, proposal=proposal)
    can_sum = supports_exact(structure)
    verdict = can_sum if method == "exact" else supports_particles(structure, options)
    if structure.data is None or not verdict:
        raise UnsupportedModel(f"filter: {'nothing is observed in X' if structure.data is None else verdict.reason}")
    weights, given = _weights(structure, W), _values(structure, values or {})
    if method == "exact" or (method == "auto" and can_sum):
        found = _exact(structure, weights, given, marginals)
    else:
        found = _by_particles(structure, weights, given, options, marginals, random_seed)
    if "obs" not in found.dims:
        return found
    own = {"obs": axes_of(structure)[1], "component": component_of(structure)}
    named = {dim: axis for dim, axis in own.items() if dim in found.dims}
    return found.assign_coords({dim: axis.labels for dim, axis in named.items()}).rename(
        {dim: axis.dim for dim, axis in named.items()}
    )


def _weights(structure: Factorisation, W: Any) -> Array:
    """W as given, or as the model knows it."""
    if W is None:
        if not isinstance(structure.W.prior, Fixed):
            raise InputError("W", "None", "the weights: the model does not know them")
        return np.array(structure.W.prior.value, dtype=np.float64, order="C")
    return check_weights(structure, W)


def _values(structure: Factorisation, values: Mapping[str, Any]) -> dict[str, Array]:
    """A value for each unknown of the chain, where its law has them."""
    found, supports = {}, supports_of(cast(ChainPrior, structure.H.prior))
    names = [unknown.name for unknown in structure.H.unknowns]
    for name in values:
        if name not in names:
            raise not_one_of("values", name, names)
    for unknown in structure.H.unknowns:
        if unknown.name not in values:
            raise InputError("values", f"no value of {unknown.name}", "one for each unknown parameter of the chain")
        found[unknown.name] = np.asarray(values[unknown.name], dtype=np.float64)
        if found[unknown.name].shape != unknown.variable_shape:
            got = f"{unknown.name} of shape {found[unknown.name].shape}"
            raise InputError("values", got, f"shape {unknown.variable_shape}, as in the model")
        low, high = supports.get(unknown.name, REAL)
        if not np.all((low < found[unknown.name]) & (found[unknown.name] < high)):
            raise InputError(
                "values", f"{unknown.name} = {values[unknown.name]}", f"numbers inside ({low:g}, {high:g})"
            )
    return found


def _exact(structure: Factorisation, W: Array, values: dict[str, Array], marginals: bool) -> xr.Dataset:
    samples = read_samples(structure)
    recursions = recursions_of(structure, samples, W, values)
    log_p, impossible, on = recursions.filtered() if marginals else (*recursions.log_likelihood(), None)
    if impossible != WITHOUT_DATA:
        place = f"{structure.axes[1]} {impossible}"
        raise RunFailed(f"filter: no state of the chains can make the counts of {place}: give a background")
    found = xr.Dataset({"log_likelihood": log_p + samples.constant}, attrs={"method": "exact"})
    if on is None:
        return found
    sd = np.sqrt(np.maximum(on * (1.0 - on), 0.0))
    return found.assign(mean=(("component", "obs"), on.T), sd=(("component", "obs"), sd.T))


def _by_particles(
    structure: Factorisation, W: Array, values: dict[str, Array], options: ParticleOptions, marginals: bool, seed: Any
) -> xr.Dataset:
    particles = read_particles(structure, options)
    filtering = particles.filter(W, values, moments=marginals)
    log_p, impossible, _ = filtering.run(seed_key(entropy_of(seed)))
    require_weight(impossible, "filter", structure.axes[1], options)
    found = xr.Dataset(
        {"log_likelihood": log_p + particles.samples.constant, "effective": ("obs", filtering.track.sizes)},
        attrs={"method": f"particles: {options.particles:,}, {options.proposal_for(structure)}"},
    )
    if not marginals:
        return found
    track = filtering.track
    return found.assign(mean=(("component", "obs"), track.means.T), sd=(("component", "obs"), track.sds.T))
