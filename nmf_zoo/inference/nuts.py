"""NUTS by PyMC (or nutpie): the same declaration handed to ``pm.sample``, the same groups handed back.

NUTS sees the density with W and H on the log scale and no sources; its ``lp`` is recomputed without the Jacobian so
that it can be compared with the other samplers'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pytensor import shared

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.joint import invariants_of_chains
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.start import FLOOR
from nmf_zoo.options import check_share, check_types, names_checked
from nmf_zoo.results.groups import stats_dataset
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.runtime.engine import Verdict, WholeSampler, has_data
from nmf_zoo.structure import (
    CHAINS,
    Array,
    BatchedPoisson,
    Exponential,
    Factorisation,
    NegativeBinomial,
    Normal,
    Poisson,
)

DATA = "data of a simulation"
IS_PYMC_5 = pm.__version__.startswith("5.")


@names_checked
@dataclass(frozen=True, kw_only=True)
class NUTS:
    """Options of NUTS.

    Attributes
    ----------
    target_accept : the acceptance rate that the step size is tuned to, between 0 and 1
    sampler : "pymc", "nutpie", or "auto": nutpie when it is installed and no ``initvals`` are given
    """

    target_accept: float = 0.8
    sampler: Literal["auto", "pymc", "nutpie"] = "auto"

    def __post_init__(self):
        check_types(self)
        check_share(self, "target_accept")

    @property
    def nuts_sampler(self) -> str:
        """The sampler that runs without ``initvals``."""
        if self.sampler != "auto":
            return self.sampler
        return "nutpie" if find_spec("nutpie") else "pymc"


def supports(structure: Factorisation, options: NUTS) -> Verdict:
    """Any model with a proper posterior over continuous variables."""
    if structure.H.is_chain and structure.H.prior.no_gradient:
        return Verdict(f"{structure.H.name} {structure.H.prior.no_gradient}")
    if structure.data is None:
        return has_data(structure)
    if structure.imputed is not None and structure.likelihood.is_discrete:
        return Verdict(
            f"{structure.imputed.name} is a discrete variable: declare missing cells with mask= or NaN instead"
        )
    for unknown in structure.likelihood.unknowns:
        if unknown.prior.is_flat:
            return Verdict(f"{unknown.name} is free: give it a proper prior to sample it")
    if IS_PYMC_5 and structure.likelihood.is_spectral and not np.any(structure.data.observed_values):
        return Verdict(f"all of {structure.likelihood.name} is 0, a density that PyMC 5 takes minutes to simplify")
    return is_proper(structure)


def sample(
    model: pm.Model,
    structure: Factorisation,
    options: NUTS,
    run: SampleRun,
    key: np.uint64,
    starts: Sequence[Mapping[str, Array]],
) -> tuple[dict[str, xr.Dataset], bool]:
    """Run ``pm.sample``. The posterior and sample_stats with ``lp`` and ``mean`` as ours; whether Ctrl-C stopped it."""
    idata = pm.sample(
        draws=run.draws,
        tune=run.tune,
        chains=len(starts),
        cores=min(run.cores, len(starts)),
        random_seed=int(key >> np.uint64(33)),  # PyMC takes 31 bits
        progressbar=run.progressbar,
        quiet=not run.progressbar,
        discard_tuned_samples=not run.keep_warmup,
        initvals=[_positive(start, structure) for start in starts] if any(starts) else None,
        nuts_sampler=_sampler(options, starts),
        target_accept=options.target_accept,
        compute_convergence_checks=False,
        model=model,
    )
    names = list(dict.fromkeys([v.name for v in model.free_RVs] + [*structure.W.shapes, *structure.H.shapes]))
    groups = {}
    for prefix in ("", "warmup_") if run.keep_warmup else ("",):  # nutpie always keeps the warm-up
        if f"{prefix}posterior" in _compat.group_names(idata):
            kept = _thinned(_compat.group(idata, f"{prefix}posterior")[names], run.thin)
            stats = _thinned(_compat.group(idata, f"{prefix}sample_stats"), run.thin)
            groups[f"{prefix}posterior"] = kept[list(run.var_names or names)].drop_attrs(deep=False)
            groups[f"{prefix}sample_stats"] = _plain(stats).merge(_invariants(structure, kept))
    seconds = _compat.group(idata, "posterior").attrs.get("sampling_time", np.nan)  # what came before is compilation
    groups["posterior"] = groups["posterior"].assign_attrs(sampling_time=float(seconds))
    return groups, groups["posterior"].sizes["draw"] < run.kept_draws


def _sampler(options: NUTS, starts: Sequence[Mapping[str, Array]]) -> str:
    """The sampler that runs: nutpie takes no starting values."""
    if not any(starts) or options.nuts_sampler == "pymc":
        return options.nuts_sampler
    if options.sampler == "nutpie":
        raise InputError("initvals", "values", "None with nutpie, which would ignore them", 'use NUTS(sampler="pymc")')
    return "pymc"


def _positive(start: Mapping[str, Array], structure: Factorisation) -> dict[str, Array]:
    """Starting values of free variables, without exact zeros, whose logarithm NUTS needs; signed ones as they are."""
    values = dict(start)
    for factor in (structure.W, structure.H):
        if factor.known is not None and set(factor.shapes) & set(start):
            values |= factor.variables(factor.value(start))
            values.pop(factor.name)
    signed = structure.signed
    return {name: value if name in signed else np.maximum(value, FLOOR * value.max()) for name, value in values.items()}


def _thinned(draws: xr.Dataset, thin: int) -> xr.Dataset:
    """Every ``thin``-th draw, chains and draws counted from 0 as the other engines do."""
    kept = draws.isel(draw=slice(None, None, thin))
    return kept.assign_coords(chain=np.arange(kept.sizes["chain"]), draw=np.arange(kept.sizes["draw"]))


def _plain(stats: xr.Dataset) -> xr.Dataset:
    """Statistics that files can hold (nutpie has messages, mostly None), without NUTS's own ``lp``."""
    plain = [name for name, variable in stats.data_vars.items() if variable.dtype.kind in "biuf" and name != "lp"]
    return stats[plain].drop_attrs(deep=False)


def _invariants(structure: Factorisation, posterior: xr.Dataset) -> xr.Dataset:
    """``lp`` and ``mean`` at every draw."""
    arrays = {str(name): variable.to_numpy() for name, variable in posterior.data_vars.items()}
    return stats_dataset(structure, invariants_of_chains(structure, arrays))


# -- again and again -------------------------------------------------------------------------------------------------


class RepeatedNUTS:
    """NUTS on a model whose X is not observed, given one X after the other.

    nutpie compiles the density once and takes other data after that. PyMC's own NUTS is part of ``pm.sample``, which
    compiles the density, the starting point and what it stores whenever it is called, on both lines of PyMC.
    """

    def __init__(self, model: pm.Model, structure: Factorisation, options: NUTS):
        self.model, self.structure, self.options = model, structure, options
        self.X = model[structure.likelihood.name]

    def __call__(self, observed: Factorisation, X: Array, run: SampleRun, key: np.uint64) -> dict[str, Array]:
        """Draws of one chain from the posterior given X, every ``thin``-th, as (draws, *variable) by name."""
        if self.options.nuts_sampler == "nutpie":
            return self._draw_by_nutpie(X, run, key)
        groups, _ = sample(pm.observe(self.model, {self.X: X}), observed, self.options, run, key, [{}])
        return {str(name): array.to_numpy()[0] for name, array in groups["posterior"].items()}

    def _draw_by_nutpie(self, X: Array, run: SampleRun, key: np.uint64) -> dict[str, Array]:
        trace = import_module("nutpie").sample(
            self._compiled.with_data(**{DATA: X.astype(self.X.dtype)}),
            draws=run.draws,
            tune=run.tune,
            chains=1,
            cores=1,
            seed=int(key >> np.uint64(33)),
            target_accept=self.options.target_accept,
            progress_bar=False,
        )
        posterior = _compat.group(trace, "posterior")
        names = [variable.name for variable in self.model.free_RVs if variable is not self.X]
        return {name: posterior[name].to_numpy()[0, :: run.thin] for name in names}

    @cached_property
    def _compiled(self) -> Any:
        data = shared(np.ones(self.structure.shape, dtype=self.X.dtype), name=DATA)
        return import_module("nutpie").compile_pymc_model(pm.observe(self.model, {self.X: data}))


SAMPLER: WholeSampler = WholeSampler(
    name="nuts",
    verb="sample",
    likelihoods=(Poisson, Normal, Exponential, NegativeBinomial, BatchedPoisson),
    chains=CHAINS,  # some of them refused in words of their own
    asks=(),
    takes_known=True,
    has_kernels=False,
    options=NUTS,
    supports=supports,
    sample=sample,
    repeat=RepeatedNUTS,
)
