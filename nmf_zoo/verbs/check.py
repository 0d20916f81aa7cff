"""Does a structure mean what its model means, with the data of the model, or with samples that come in blocks?

A model without data has one sample. What engines make of a block of samples is that model with as many columns of H,
and the block's cells, exposures and missing cells; its log joint density must be what PyMC's model says, sample by
sample::

    log p(W) + sum_n [log p(h_n) + sum of observed f of log p(x_fn | W, e_n h_n)]

An exposure e of a sample is not in the model: it multiplies the mean without its background, as it multiplies h. Nor is
a background of samples, which is added to what the model has for the mean of X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pymc.logprob.transforms import LogTransform

from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.shared.sample_blocks import structure_of_samples, takes_blocks
from nmf_zoo.options import names_checked
from nmf_zoo.reading import check as check_declared
from nmf_zoo.reading import read
from nmf_zoo.reading.check import UNCOMPILED, CheckFailed, random_points, tolerance
from nmf_zoo.runtime.arguments import check_counts, check_possible
from nmf_zoo.structure import (
    Array,
    Data,
    Dense,
    Exponential,
    Factorisation,
    GammaPrior,
    InverseGammaPrior,
    OffsetsOfSamples,
    Poisson,
    offset_table,
)
from nmf_zoo.verbs.block_source import Samples, as_data, as_source, blocked, check_values, require_once

BACKGROUND = "background of the samples"  # by this name PyMC's density takes it
LAST_IS_MEAN = Poisson, Exponential  # PyMC's random variables of these laws have it as their last input
MOST = 50  # samples of a block that are looked at: PyMC's model is evaluated for each


@names_checked
def check(
    model: pm.Model,
    n: int = 3,
    random_seed: int = 0,
    rtol: float = 1e-10,
    structure: Factorisation | None = None,
    data: Any = None,
) -> None:
    """Compare the structure's log joint with ``model.compile_logp(jacobian=False)``.

    Parameters
    ----------
    model : pm.Model
    n : number of random points
    random_seed : int
    rtol : relative tolerance. Where the model holds single-precision numbers (PyMC stores Python floats so when they
        fit) it is at least 1e-6, as with small integers; write ``np.float64(2.0)`` to compare to the last digits.
    structure : to compare, default ``read(model)``
    data : samples for a model declared without data (``X=None, shape=(F, 1)``), as of :func:`~nmf_zoo.fit`: a table of
        whole samples, :class:`~nmf_zoo.Samples`, or what :func:`~nmf_zoo.open_blocks` opens, of which the first block
        is taken. What engines make of them is compared with the model of one sample, at 50 of them at the most

    Raises
    ------
    CheckFailed
        When they differ at any point.

    Examples
    --------
    >>> import numpy as np, nmf_zoo as nz
    >>> nz.check(nz.gamma_nmf(None, rank=2, shape=(3, 1)), data=np.ones((3, 10)))
    """
    if data is None:
        check_declared(model, n, random_seed, rtol, structure)
        return
    check_counts(n=(n, 1))
    own = read(model) if structure is None else structure
    block, offsets = _samples_of(own, data)
    compared = structure_of_samples(own, block, offsets)
    has_background = offsets.background is not None
    background = offset_table(offsets.background, block.shape, 0.0) if has_background else None
    samples = _OfEach(*cells_of(block), offsets.exposure, background)
    expected_of = _OfPyMC(model, own, has_background)
    for i in range(n):
        values, expected = expected_of(samples, random_seed + i)
        found = compared.log_joint(values)
        if not np.isclose(found, expected, rtol=tolerance(model, rtol), atol=0.0):
            raise CheckFailed(
                f"log joint of {block.shape[1]} samples at random point {i}: found {found!r}; expected {expected!r}, "
                f"the model's (rtol {rtol:g}); the structure of a block doesn't mean the same as the model"
            )


def _samples_of(structure: Factorisation, data: Any) -> tuple[Data, OffsetsOfSamples]:
    """Some samples of the data, and what came with them; or why the model can't have them."""
    if structure.data is not None:
        do = f"declare the model with X=None, shape=({structure.shape[0]}, 1)"
        raise InputError("data", f"data beside those of {structure.likelihood.name}", "one of both", do)
    taken = takes_blocks(structure, GammaPrior, InverseGammaPrior, takes_unknowns=True)
    if not taken or structure.shape[1] != 1:
        reason = taken.reason or f"it has {structure.shape[1]} samples, and is declared with one"
        raise UnsupportedModel(f"check can't hold the model against samples of data=: {reason}")
    source = as_source(_OneBlock(data) if isinstance(data, Samples) else data)
    blocked(structure, source)  # refuses other features
    cells, offsets = as_data(source, 0)
    require_once(structure, offsets)
    if offsets.background is not None and type(structure.likelihood) not in LAST_IS_MEAN:
        law = f"{structure.likelihood.name} is {structure.likelihood.family}, and a background of samples"
        raise UnsupportedModel(f"check can't hold the model against samples of data=: {law} is for counts or powers")
    whole = structure_of_samples(structure, cells, offsets)
    check_values(whole, 0)
    check_possible(whole)
    kept = np.unique(np.linspace(0, cells.shape[1] - 1, min(MOST, cells.shape[1])).astype(int))
    return some_samples(cells, kept), offsets.of(kept)


class _OneBlock:
    """Samples as a source."""

    def __init__(self, samples: Samples):
        self._samples, self.shape = samples, np.shape(samples.X)
        self.bounds = [0, self.shape[1]]

    def read(self, number: int) -> Samples:
        return self._samples


def some_samples(data: Data, kept: Array) -> Data:
    """Samples ``kept``, which rise, of the data, in the form that these have."""
    if isinstance(data, Dense):
        return Dense(values=data.values[:, kept], mask=None if data.mask is None else data.mask[:, kept])
    place = np.full(data.shape[1], -1, np.int32)
    place[kept] = np.arange(len(kept))
    own = place[data.cols] >= 0
    cols, shape = place[data.cols[own]], (data.shape[0], len(kept))
    indptr = np.searchsorted(cols, np.arange(len(kept) + 1)).astype(np.int64)
    return replace(data, rows=data.rows[own], cols=cols, values=data.values[own], shape=shape, indptr=indptr)


def cells_of(data: Data) -> tuple[Array, Array]:
    """(X, which cells were observed), dense."""
    if isinstance(data, Dense):
        return data.values, np.ones(data.shape, bool) if data.mask is None else data.mask
    X, observed = np.zeros(data.shape), np.full(data.shape, data.is_complete)
    X[data.rows, data.cols], observed[data.rows, data.cols] = data.values, True
    return X, observed


class _OfEach(NamedTuple):
    """X, and which cells were observed, (F, n); exposures (n,) and the background (F, n), or None."""

    X: Array
    observed: Array
    exposure: Array | None
    background: Array | None


class _OfPyMC:
    """The log joint density of samples by PyMC's model of one."""

    def __init__(self, model: pm.Model, structure: Factorisation, has_background: bool):
        self._model, self._names = model, (structure.H.variable, structure.likelihood.name)
        self._H, self._X = (model[name] for name in self._names)
        rest = [rv for rv in model.free_RVs if rv.name not in self._names]
        self._of_rest = self._compiled(model.logp(rest, jacobian=False)) if rest else lambda point: 0.0
        self._of_H = self._compiled(model.logp([self._H], jacobian=False))
        of_cells = [model.logp([self._X], jacobian=False, sum=False)[0]]
        self._of_cells = self._compiled(*(self._with_background() if has_background else of_cells))

    def _compiled(self, density: Any, *more: Any) -> Callable[[dict[str, Array]], Any]:
        inputs = [*self._model.value_vars, *more]
        how: dict[str, Any] = {"inputs": inputs, "mode": UNCOMPILED, "on_unused_input": "ignore"}
        return self._model.compile_fn(density, **how)

    def _with_background(self) -> tuple[Any, Any]:
        """(the log densities of the cells of X with a background beside what the model has; that)"""
        *others, mean = self._X.owner.inputs  # so it is of `LAST_IS_MEAN`
        added = mean.type.clone(shape=(None, 1))(name=BACKGROUND)
        X = self._X.owner.op.make_node(*others, mean + added).default_output()
        value = self._model.rvs_to_values[self._X]
        transform = self._model.rvs_to_transforms[self._X]
        x = value if transform is None else transform.backward(value, *X.owner.inputs)
        (density,) = self._model.replace_rvs_by_values([pm.logp(X, x)])
        return density, added

    def __call__(self, samples: _OfEach, random_seed: int) -> tuple[dict[str, Array], float]:
        """(the variables at a random point, by name, with a column of H for each sample; the log density there)"""
        X, observed, exposure, background = samples
        points = list(random_points(self._model, 1 + X.shape[1], random_seed))
        (shared, values), of_samples = points[0], points[1:]
        H = np.concatenate([of_one[self._names[0]] for _, of_one in of_samples], axis=1)
        total, name = float(self._of_rest(shared)), self._model.rvs_to_values[self._H].name
        for sample, (point, _) in enumerate(of_samples):
            at = {**shared, name: point[name]}
            total += float(self._of_H(at))
            scale = 0.0 if exposure is None else np.log(exposure[sample])
            at = {**at, name: at[name] + scale, **self._as_value(X[:, sample])}
            at |= {} if background is None else {BACKGROUND: background[:, [sample]]}
            total += float(np.sum(np.asarray(self._of_cells(at)).reshape(-1)[observed[:, sample]]))
        return {**values, self._names[0]: H}, total

    def _as_value(self, x: Array) -> dict[str, Array]:
        """Of X, on the scale of PyMC's value variable: a power's is its logarithm."""
        value, transform = self._model.rvs_to_values[self._X], self._model.rvs_to_transforms[self._X]
        with np.errstate(divide="ignore"):
            own = np.log(x) if isinstance(transform, LogTransform) else x
        return {value.name: own.reshape(-1, 1).astype(value.dtype)}
