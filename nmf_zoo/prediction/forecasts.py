"""What comes next, where H is a chain in time: every draw of the posterior goes on from its last time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.keyed_rng import child, generator_of, seed_key
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.component_order import require_as_drawn
from nmf_zoo.results.posterior import LEADING, Posterior, axes_of, open_posterior, require_answer
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.structure import Array, ChainPrior, Factorisation, shared_column


@names_checked
def forecast(
    idata: Any, model: pm.Model, times: int = 1, *, n_draws: int | None = None, random_seed: Any = None
) -> xr.Dataset:
    """Draws of H and X at the times after the last one: the chains of each draw of the posterior go on by their law.

    That is the posterior of a series whose next times are missing, without another fit.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    model : the model that it came from, whose H is a chain in time
    times : how many
    n_draws : draws to use of each chain, evenly spaced; default all
    random_seed : as in :func:`~nmf_zoo.sample`

    Returns
    -------
    Dataset : H (chain, draw, component, obs) and X (chain, draw, feature, obs), under the model's names. Whole numbers
    from 0 on as labels of its times go on; others are numbered on from their count

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.hmm_nmf([[1, 0, 4, 2], [2, 3, 0, 1]], rank=1, chain=nz.BGAR(2.0, 1.0, 0.9), alpha_w=2.0)
    >>> idata = nz.sample(10, tune=10, chains=1, random_seed=1, quiet=True, engine="gibbs", model=model)
    >>> nz.forecast(idata, model, times=2, random_seed=1)["X"].sizes["obs"]
    2
    """
    check_counts(times=(times, 1))
    structure = read(model)
    require_chain(structure)
    require_as_drawn(idata, structure)
    offsets = shared_offsets(structure)
    posterior = open_posterior(idata, structure, n_draws, structure.H.unknowns)
    (n_features, rank), likelihood = structure.W.shape, structure.likelihood
    require_answer(posterior, (n_features + rank) * times, "lower times, or n_draws")
    H = np.empty((*posterior.lead, rank, times))
    X: Array = np.empty((*posterior.lead, n_features, times), dtype=likelihood.dtype)
    key = seed_key(entropy_of(random_seed))
    for draw in posterior:
        rng, h = generator_of(child(key, *draw.place)), draw.H[:, -1]
        for step in range(times):
            h = structure.H.prior.draw_next(h, draw.values, rng)
            mean = (offsets[0] * (draw.W @ h) + offsets[1])[:, None]
            likelihood.require_drawable(mean)
            H[(*draw.at, slice(None), step)] = h
            X[(*draw.at, slice(None), step)] = likelihood.draw(mean, draw.values, rng)[:, 0]
    return _labelled(posterior, H, X, times)


def require_chain(structure: Factorisation) -> None:
    """Refuse an H that is no chain in time."""
    if not isinstance(structure.H.prior, ChainPrior):
        got = f"{structure.H.name or 'H'}, whose columns are independent"
        do = "declare it with nz.hmm_nmf(chain=...); nz.predict draws what was seen"
        raise InputError("model", got, "a chain in time, which says what comes next", do)


def shared_offsets(structure: Factorisation) -> tuple[Array, Array]:
    """(exposure, background), (F,) each, of the times to come: those of all times alike."""
    likelihood, n_features, found = structure.likelihood, structure.shape[0], []
    for role, none in (("exposure", 1.0), ("background", 0.0)):
        column = shared_column(getattr(likelihood, role), n_features, none)
        if column is None:
            do = "declare the times to come with NaN and their own, and use nz.predict"
            raise InputError("model", f"{role} that differs between times", "the same at all times", do)
        found.append(column)
    for role, own in likelihood.parameters.items():
        shape = getattr(own, "shape", structure.shape)  # what is known at listed cells has none
        if len(shape) == 2 and shape[1] != 1:
            raise InputError("model", f"{role} that differs between times", "the same at all times")
    return found[0], found[1]


def _labelled(posterior: Posterior, H: Array, X: Array, times: int) -> xr.Dataset:
    structure = posterior.structure
    feature, obs = axes_of(structure)
    known, n = np.asarray(obs.labels), structure.shape[1]
    first = int(known[-1]) + 1 if known.dtype.kind in "iu" and np.array_equal(np.diff(known), np.ones(n - 1)) else n
    dims = structure.dims.get(structure.H.name, ())
    component = structure.H.orient_dims(dims)[0] if len(dims) == 2 else "component"
    coords = posterior.coords | {feature.dim: feature.labels, obs.dim: np.arange(first, first + times)}
    if component in structure.coords:
        coords[component] = structure.coords[component]
    arrays = {
        structure.H.name: ((*LEADING, component, obs.dim), H),
        structure.likelihood.name: ((*LEADING, feature.dim, obs.dim), X),
    }
    return xr.Dataset(arrays, coords=coords)
