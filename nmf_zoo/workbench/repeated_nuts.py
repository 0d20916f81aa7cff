"""NUTS again and again, on data of one shape: nutpie compiles the density once and takes other data after that.

PyMC's own NUTS is part of ``pm.sample``, which compiles the density, the starting point and what it stores whenever it
is called, on both lines of PyMC.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import pymc as pm
from pytensor import shared

from nmf_zoo import _compat
from nmf_zoo.inference import nuts
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.structure import Array, Factorisation

DATA = "data of a simulation"


class RepeatedNUTS:
    """NUTS on a model whose X is not observed."""

    def __init__(self, model: pm.Model, structure: Factorisation, options: nuts.NUTS):
        self.model, self.structure, self.options = model, structure, options
        self.X = model[structure.likelihood.name]

    def draw(self, observed: Factorisation, X: Array, run: SampleRun, key: np.uint64) -> dict[str, Array]:
        """Draws of one chain from the posterior given X, every ``thin``-th, as (draws, *variable) by name."""
        if self.options.nuts_sampler == "nutpie":
            return self._draw_by_nutpie(X, run, key)
        groups, _ = nuts.sample(pm.observe(self.model, {self.X: X}), observed, self.options, run, key, [{}])
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
