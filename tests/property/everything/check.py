"""What holds of every result: finite numbers of the right shapes under the right labels, factors >= 0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from nmf_zoo import _compat
from nmf_zoo.inference.registry import is_maximised
from nmf_zoo.reading import read
from nmf_zoo.runtime.arguments import variable_shapes
from nmf_zoo.structure import Dense, Known, KnownAtCells, NegativeBinomial, Normal, Poisson
from nmf_zoo.verbs.block_source import Samples

GROUPS = ("posterior", "warmup_posterior", "posterior_moments")
MONOTONE = ("em", "vb", "hmm_exact")  # by promise; the others' objectives are estimates
ROUNDING, EPSILON = 1e-9, 1e-15  # of an objective, and of what it is made of, relative


def result(idata: Any, model: Any, projected: Any = None) -> None:
    """Every variable of the model is there, finite, in its shape; factors are >= 0; a promised descent is one.

    ``projected`` is the model whose priors a projection, which has no model, keeps.
    """
    of_structure(idata, None if model is None else read(model), None if projected is None else read(projected))


def of_blocks(idata: Any, model: Any, X: Any) -> None:
    """The same of a fit whose data came in blocks: X is all of them, of which the model has no samples."""
    declared = read(model)
    X = X.toarray() if hasattr(X, "toarray") else X
    data = Dense(values=np.nan_to_num(X), mask=~np.isnan(X))
    H = replace(declared.H, shape=(declared.rank, X.shape[1]))
    coords = {dim: labels for dim, labels in declared.coords.items() if dim != declared.axes[1]}
    of_structure(idata, replace(declared, H=H, data=data, coords=coords))


class Blocks:
    """X cut at ``bounds``, with exposures of its samples: the least that ``data=`` takes."""

    def __init__(self, X: Any, bounds: list[int], exposure: Any = None):
        self.X, self.shape, self.bounds, self.exposure = X, X.shape, bounds, exposure

    def read(self, number: int) -> Samples:
        part = slice(self.bounds[number], self.bounds[number + 1])
        X = self.X.tocsc() if hasattr(self.X, "tocsc") else self.X
        return Samples(X[:, part], None if self.exposure is None else self.exposure[part])


def of_structure(idata: Any, structure: Any, projected: Any = None) -> None:
    """What :func:`result` says, of the structures that were read."""
    found = [name for name in GROUPS if name in _compat.group_names(idata)]
    assert found or structure.W.is_fixed, "no posterior"  # a stream with W known may have nothing to learn
    for name in found:
        group = _compat.group(idata, name)
        is_one = name == "posterior_moments" and idata.sample_stats.sizes["draw"] == 1
        finite(group[[own for own in group.data_vars if not (is_one and own.endswith("_sd"))]])
        for variable in ("W", "H"):
            if variable in group and (structure is None or variable not in structure.signed):
                assert group[variable].min() >= 0, f"{variable} is negative"
        if structure is not None and name == "posterior" and structure.W.known is not None and "W" in group:
            known, W = structure.W.known, group["W"].to_numpy()
            assert np.array_equal(W, known.whole(known.part(W))), "known components have moved"
    if structure is not None and "posterior" in found:
        shapes_and_labels(_compat.group(idata, "posterior"), structure, idata.attrs)
    if "sample_stats" in _compat.group_names(idata):
        stats = _compat.group(idata, "sample_stats")
        lp = stats["lp"].to_numpy()
        is_underflow = lp == -np.inf  # a draw of a heavy tail, whose density no number holds
        assert np.all(np.isfinite(lp) | (is_underflow & (idata.attrs["engine"] == "vb"))), "lp is not finite"
    if "fit" in _compat.group_names(idata) and "objective" in _compat.group(idata, "fit"):
        descent(_compat.group(idata, "fit"), idata.attrs, structure or projected)


def shapes_and_labels(group: Any, structure: Any, attrs: Any) -> None:
    is_stream = attrs["status"] == "stream"
    for name, shape in variable_shapes(structure).items():
        if is_stream and name not in group:
            continue
        assert group[name].shape[2:] == shape, f"{name}: shape {group[name].shape[2:]}, declared as {shape}"
        for dim in structure.dims.get(name, ()):
            labels = structure.coords.get(dim)
            if labels is not None and dim in group.coords:
                np.testing.assert_array_equal(group[dim].to_numpy(), labels)


def rounding(structure: Any, objective: np.ndarray) -> np.ndarray:
    """What rounding alone may do to an objective beside its own last digits.

    A Poisson objective of large counts is the small difference of large terms: x log(mean) and, in a bound, the
    normalisers of both posteriors, whose shapes are sums of counts. So are normalisers of priors of large shapes. A
    normal one squares (x - mean) / sigma, and these differences carry x's last digits.
    """
    if structure is None or structure.data is None:
        return np.zeros(len(objective))
    x, likelihood = structure.data.observed_values, structure.likelihood
    terms = sum(map(normalisers, (structure.W, structure.H)))
    if isinstance(likelihood, Poisson | NegativeBinomial):
        large = 1 + sum(not factor.is_fixed for factor in (structure.W, structure.H))
        terms += large * float(np.sum(x * (1.0 + np.log1p(x))))
    found = np.full(len(objective), EPSILON * terms)
    if isinstance(likelihood, Normal) and isinstance(likelihood.sigma, Known | KnownAtCells):
        rows, cols, x = structure.observed_cells()
        last = float(np.linalg.norm(EPSILON * x / structure.likelihood_at(rows, cols).sigma.resolve({})))
        found += last * (last + 2.0 * np.sqrt(2.0 * np.abs(objective)))
    return found


def normalisers(factor: Any) -> float:
    """The size of log Gamma(shape), over the cells of a factor."""
    shape = getattr(factor.prior, "shape", None)
    if not isinstance(shape, Known):
        return 0.0
    return float(np.sum(np.broadcast_to(shape.value * (1.0 + np.log1p(shape.value)), factor.free_shape)))


def descent(fit: Any, attrs: Any, structure: Any) -> None:
    objective = fit["objective"].to_numpy()
    for restart in objective:
        values = restart[~np.isnan(restart)]
        assert len(values), "no objective"
        assert np.all(np.isfinite(values)), "the objective is not finite"
        engine = attrs["engine"]
        in_steps = json.loads(attrs.get("options", "{}")).get("batch_size")  # of which each sees some samples alone
        if engine not in MONOTONE or "float32" in str(attrs) or in_steps:
            continue
        steps = np.diff(values) * (-1.0 if is_maximised(engine) else 1.0)
        allowed = ROUNDING * np.maximum(np.abs(values[1:]), 1.0) + rounding(structure, values[1:])
        assert np.all(steps <= allowed), f"{engine}: the objective moved the wrong way: {values}"


def finite(found: Any) -> None:
    """Every number of a Dataset or DataArray is finite."""
    arrays = (
        {found.name: found} if hasattr(found, "to_dataset") and not hasattr(found, "data_vars") else found.data_vars
    )
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            assert np.all(np.isfinite(array)), f"{name} has cells that are not finite"


def activations(found: Any) -> None:
    """As :func:`finite`, but a heavy tail may have no variance."""
    finite(found[[name for name in found.data_vars if name != "H_sd"]])
    assert "H_sd" not in found or not np.any(np.isnan(found["H_sd"]))


def log_likelihood(idata: Any) -> None:
    finite(_compat.group(idata, "log_likelihood"))


def same(one: Any, other: Any) -> None:
    """Bit for bit the same draws."""
    for name in GROUPS:
        assert (name in _compat.group_names(one)) == (name in _compat.group_names(other))
        if name in _compat.group_names(one):
            a, b = _compat.group(one, name), _compat.group(other, name)
            assert set(a.data_vars) == set(b.data_vars)
            for variable in a.data_vars:
                has_nan = a[variable].dtype.kind == "f"
                assert np.array_equal(a[variable], b[variable], has_nan), f"{variable} differs from run to run"
