"""Simulation: one draw of every variable of a declaration, X included, whether X was observed, sparse or missing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.continuous import FlatRV, HalfFlatRV

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.runtime.arguments import entropy_of
from nmf_zoo.structure import Factor, Factorisation

Array = np.ndarray
MAX_CELLS = 10**8  # X is returned dense


@names_checked
def simulate(model: pm.Model, random_seed: Any = None) -> xr.Dataset:
    """Draw every free variable from its prior, and all cells of X given them.

    Parameters
    ----------
    model : pm.Model
        Any model that can be read. Data in it are ignored, except for their shape.
    random_seed : as in :func:`~nmf_zoo.sample`

    Returns
    -------
    xarray.Dataset
        The free variables and X (feature, obs), under the model's names, dims and coords.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> drawn = nz.simulate(nz.gamma_nmf(None, rank=2, shape=(4, 3)), random_seed=1)
    >>> dict(drawn["X"].sizes)
    {'feature': 4, 'obs': 3}
    """
    structure = read(model)
    refuse_flat(model)
    refuse_large(structure)
    seeds = np.random.SeedSequence(entropy_of(random_seed)).spawn(2)
    values = draw_unobserved(model, structure, int(seeds[0].generate_state(1)[0]))
    values[structure.likelihood.name] = draw_data(structure, values, np.random.default_rng(seeds[1]))
    dims = dict(structure.dims) | {structure.likelihood.name: data_dims(structure)}
    arrays = {name: (dims.get(name) or default_dims(name, value.ndim), value) for name, value in values.items()}
    used = {dim for names, _ in arrays.values() for dim in names}
    return xr.Dataset(arrays, coords={dim: labels for dim, labels in structure.coords.items() if dim in used})


def refuse_flat(model: pm.Model) -> None:
    """Flat variables have no distribution to draw from."""
    for variable in model.free_RVs:
        if isinstance(variable.owner.op, FlatRV | HalfFlatRV):
            do = f'fix it first: pm.do(model, {{"{variable.name}": value}}), in the shell --given FILE'
            raise InputError(variable.name, "a flat density, which can't be drawn from", "a proper prior", do)


def refuse_large(structure: Factorisation) -> None:
    cells = structure.shape[0] * structure.shape[1]
    if cells > MAX_CELLS:
        do = "simulate fewer samples: declare the model with X=None and a smaller shape="
        raise InputError("model", f"{cells} cells of X", f"at most {MAX_CELLS}, X is returned dense", do)


def draw_unobserved(model: pm.Model, structure: Factorisation, seed: int, draws: int = 1) -> dict[str, Array]:
    """The free variables without X and the missing cells of it: one draw, or (draws, *variable) each."""
    data = {structure.likelihood.name} | ({structure.imputed.name} if structure.imputed is not None else set())
    variables = [variable for variable in model.free_RVs if variable.name not in data]
    try:
        with warnings.catch_warnings():
            # numba compiles no draws of a truncated normal, which are made all the same
            warnings.filterwarnings("ignore", "Numba will use object mode", UserWarning)
            drawn = pm.draw(variables, draws, random_seed=seed) if variables else []
    except ZeroDivisionError as error:  # an inverse gamma's, compiled by numba; elsewhere such a draw is infinite
        raise _beyond("a prior") from error
    values = {variable.name: np.asarray(value) for variable, value in zip(variables, drawn, strict=True)}
    for name, value in values.items():
        if not np.all(np.isfinite(value)):
            raise _beyond(f"the prior of {name!r}")
    return values


def _beyond(what: str) -> InputError:
    return InputError(
        "model", f"{what} whose draws are beyond all numbers", "draws that float64 holds", "raise its shape"
    )


def draw_data(structure: Factorisation, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
    """X (F, N), drawn block by block."""
    W, H = (factor.value(values) for factor in (structure.W, structure.H))
    out: Array = np.empty(structure.shape, dtype=structure.likelihood.dtype)
    for columns in structure.column_blocks():
        mean, law = structure.mean_of(W, H, columns), structure.likelihood_at(slice(None), columns)
        law.require_drawable(mean)
        out[:, columns] = law.draw(mean, values, rng)
    return out


def data_dims(structure: Factorisation) -> tuple[str, ...]:
    """Dims of X: its own, else those of the factors (a list of cells has only "cell")."""
    own = structure.dims.get(structure.likelihood.name, ())
    if len(own) == 2:
        return own
    return factor_dim(structure, structure.W, 0, "feature"), factor_dim(structure, structure.H, 1, "obs")


def factor_dim(structure: Factorisation, factor: Factor, axis: int, default: str) -> str:
    dims = structure.dims.get(factor.name, ())
    return (dims[::-1] if factor.transposed else dims)[axis] if len(dims) == 2 else default


def default_dims(name: str, ndim: int) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(ndim))
