"""InferenceData made by hand, for what is done with a result."""

from __future__ import annotations

from nmf_zoo import _compat
from nmf_zoo.reading import read
from nmf_zoo.results.groups import LEADING, as_dataset


def idata_of(model, **arrays):
    """A result with the given posterior, arrays (chain, draw, ...) by variable name."""
    return _compat.inference_data({"posterior": as_dataset(read(model), arrays, LEADING)}, {})


def random_idata(model, rng, chains=2, draws=3):
    """A result with factors from Gamma(2, 1), for a model whose variables are all positive."""
    shapes = model.eval_rv_shapes()
    names = [variable.name for variable in model.free_RVs]
    return idata_of(model, **{name: rng.gamma(2.0, size=(chains, draws, *shapes[name])) for name in names})
