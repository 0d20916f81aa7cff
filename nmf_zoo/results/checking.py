"""Whether a file that could be read is a result: the groups that commands use, with their dims, and numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.results.groups import LEADING
from nmf_zoo.results.keeping import MEAN, MOMENTS

RESULT = "a result of nmf-zoo fit or nz.save"
NUMBERS = "biuf"
OF_FIT = {
    "objective": ("chain", "iteration"),
    "columns": ("chain",),
    **dict.fromkeys(("iterations", "residual"), ("chain",)),
}
WORDS_OF_FIT = ("status", "reason")
NUMERIC_ATTRS = ("seconds", "thin", "tune")


def check_result(name: str, idata: Any) -> None:
    """Refuse what commands could not go through; groups and attributes that they don't use may be anything."""
    names = _compat.group_names(idata)
    if not {"posterior", MOMENTS} & set(names):
        raise InputError(name, "a file without a posterior group", RESULT)
    if "posterior" not in names and "sample_stats" not in names:
        raise InputError(name, f"{MOMENTS} without sample_stats", RESULT)
    groups = {group: _compat.group(idata, group) for group in names}
    chains = {}
    for group, (dims, arrays) in {**_draws(groups), **_moments(groups), **_fit(groups)}.items():
        dataset = groups[group]
        missing = [dim for dim in dims if dim not in dataset.coords or not dataset.sizes[dim]]
        if missing:
            raise InputError(name, f"{group} without labels for {missing[0]!r}, or empty", RESULT)
        for array, wanted in arrays.items():
            _check_array(name, group, array, dataset, wanted)
        chains[group] = dataset.sizes["chain"]
    if len(set(chains.values())) > 1:
        raise InputError(name, f"{chains} chains", f"as many in every group, as in {RESULT}")
    _check_attributes(name, idata.attrs)


Wanted = Mapping[str, tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]]


def _draws(groups: Mapping[str, xr.Dataset]) -> Wanted:
    """posterior and sample_stats: what has draws, and of the second only what is summed up."""
    wanted = {"posterior": list(groups["posterior"].data_vars)} if "posterior" in groups else {}
    if "sample_stats" in groups:
        wanted["sample_stats"] = [found for found in ("lp", "mean") if found in groups["sample_stats"]]
    return {group: (LEADING, dict.fromkeys(map(str, arrays), LEADING)) for group, arrays in wanted.items()}


def _moments(groups: Mapping[str, xr.Dataset]) -> Wanted:
    if MOMENTS not in groups:
        return {}
    arrays = [str(found) for found in groups[MOMENTS].data_vars if str(found).endswith(MEAN)]
    return {MOMENTS: (("chain",), dict.fromkeys([*arrays, "draws"], ("chain",)))}


def _fit(groups: Mapping[str, xr.Dataset]) -> Wanted:
    """What an optimiser, or a stream, says of itself."""
    if "fit" not in groups:
        return {}
    series = "objective" if "objective" in groups["fit"] else "columns"
    names = (series, "iterations", "residual", *WORDS_OF_FIT) if series == "objective" else (series,)
    return {"fit": (("chain",), {found: OF_FIT.get(found, ("chain",)) for found in names})}


def _check_array(name: str, group: str, array: str, dataset: xr.Dataset, dims: Iterable[str]) -> None:
    if array not in dataset:
        raise InputError(name, f"{group} without {array!r}", RESULT)
    found = dataset[array]
    if not set(dims) <= set(found.dims):
        raise InputError(
            name, f"{group}/{array} of {', '.join(map(str, found.dims)) or 'no dims'}", f"{', '.join(dims)}, ..."
        )
    if array not in WORDS_OF_FIT and found.dtype.kind not in NUMBERS:
        raise InputError(name, f"{group}/{array} of type {found.dtype}", "real numbers")


def _check_attributes(name: str, attrs: Mapping[str, Any]) -> None:
    for key in NUMERIC_ATTRS:
        try:
            float(attrs.get(key, 0))
        except (TypeError, ValueError):
            raise InputError(name, f"the attribute {key} {attrs[key]!r}"[:80], "a number") from None
