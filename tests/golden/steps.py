"""One step from a given start, for processors other than the one whose digests are kept: there, last bits differ.

Kept are the parts that no seed decides, found by running with two seeds: what optimisers make of their start in one
iteration, exact evidences, log-likelihoods at given factors. Draws are left out: where a uniform number meets a
rounded boundary, a discrete choice may flip, and all that follows is another path.

Of each array one number is kept, the sum with fixed weights that all differ, and it is compared relative to the sum of
the absolute terms. So every cell counts, and a swap of two is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import nmf_zoo as nz
from tests.contract.test_engines import MAKERS
from tests.golden import recipes
from tests.golden.arrays import arrays_of
from tests.results import idata_of

SEEDS = (1, 2)
DRAWS = ("posterior/", "sample_stats/lp")  # made from the result, by engines that don't give a point
DATA = ("observed_data/", "constant_data/")
TOLERANCE = 1e-9
Step = tuple[str, Callable[[int], Any]]


def grid(shape: tuple[int, ...]) -> np.ndarray:
    """Positive numbers with few binary digits, the same everywhere, and columns that are not proportional."""
    return 0.5 + (7 * np.arange(np.prod(shape, dtype=int)) % 11).reshape(shape) / 8


def start_of(model: Any) -> dict[str, np.ndarray]:
    """A value of each factor that the model has."""
    shapes = model.eval_rv_shapes()
    return {rv.name: grid(shapes[rv.name]) for rv in model.free_RVs if rv.ndim == 2 and rv.dtype.startswith("float")}


def steps() -> Iterator[Step]:
    calls = {
        "": ([own for own, verb in recipes.engines().items() if verb == "fit"], _fitted),
        "stream ": (recipes.streams(), _streamed),
        "evidence ": (recipes.methods(), _evidence),
    }
    for what, (classes, call) in calls.items():
        for own, name in product(classes, MAKERS):
            yield f"{what}{own.__name__}: {name}", partial(call, own, name)
    for name in MAKERS:
        yield f"log_likelihood: {name}", partial(_log_likelihood, name)


def _fitted(own: type, name: str, seed: int) -> Any:
    once = {"max_iter": 1, "tol": 0.0, "restarts": 1, "draws": 1}
    return recipes.run(own, name, **once, random_seed=seed, initvals=start_of(recipes.model_of(name)))


def _streamed(own: type, name: str, seed: int) -> Any:
    start = {key: value for key, value in start_of(recipes.model_of(name)).items() if key == "W"}
    return recipes.stream(own, name, random_seed=seed, initvals=start)


def _evidence(own: type, name: str, seed: int) -> Any:
    return recipes.evidence(own, name, random_seed=seed)


def _log_likelihood(name: str, seed: int) -> Any:  # it has no seed
    model = recipes.model_of(name)
    shapes = model.eval_rv_shapes()
    draws = {rv.name: grid((1, 1, *shapes[rv.name])) for rv in model.free_RVs}
    return {"log_likelihood": nz.log_likelihood(idata_of(model, **draws), model)["log_likelihood"]}


def decided(step: Callable[[int], Any]) -> dict[str, np.ndarray]:
    """The arrays that no seed decides; none where more than draws from the result hangs on it."""
    one, other = (_computed(step(seed)) for seed in SEEDS)
    both = [name for name in one if name in other]
    same = {name: one[name] for name in both if np.array_equal(one[name], other[name], equal_nan=True)}
    return same if all(name in same or name.startswith(DRAWS) for name in one) else {}


def decided_or_nothing(step: Callable[[int], Any]) -> dict[str, np.ndarray]:
    """Nothing too where the model is refused."""
    try:
        return decided(step)
    except (nz.UnsupportedModel, nz.InputError):
        return {}


def _computed(result: Any) -> dict[str, np.ndarray]:
    """Arrays of real numbers, without the data."""
    arrays = {name: array for name, array in arrays_of(result).items() if not name.startswith(DATA)}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f" and array.ndim}


def projection(array: np.ndarray) -> tuple[float, float]:
    """The sum with weights from 1 to 2, all different, and that of the absolute terms."""
    values = np.where(np.isfinite(array), array, 1.0).ravel()
    terms = values * (1.0 + np.arange(values.size) / values.size)
    return float(terms.sum()), float(np.abs(terms).sum())


def kept_of(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(f"{projection(array)[0]:.14g}") for name, array in arrays.items()}


def disagreements(kept: Mapping[str, float], result: Any) -> dict[str, str]:
    """What is kept of a step, and isn't so here to 1e-9."""
    arrays, found = arrays_of(result), {}
    for name, value in kept.items():
        if name not in arrays:
            found[name] = "missing"
            continue
        sum_here, scale = projection(arrays[name])
        if not abs(sum_here - value) <= TOLERANCE * scale:
            found[name] = f"kept {value!r}, here {sum_here!r}"
    return found
