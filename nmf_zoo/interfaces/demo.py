"""The demo: handwritten digits as counts of ink, factorised by Gibbs sampling.

PyMC is imported where it is needed first, while kernels are compiled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pandas as pd

import nmf_zoo as nz

RANK = 10
PRIORS: dict[str, Any] = {"alpha_w": 0.5, "beta_w": 0.5, "alpha_h": 0.5, "beta_h": 0.5}
FITS = 16  # of VB, before the chains start
KEPT_OF = 14  # every 14th draw of the factors is stored: 100 of a chain, the fewest that components are judged by


def digits() -> pd.DataFrame:
    """Pixels in rows, labelled by row and column; images in columns; ink from 0 to 16 in the cells."""
    from sklearn.datasets import load_digits

    counts = load_digits().data.astype(np.int64).T
    return pd.DataFrame(counts, index=[f"{row},{column}" for row in range(8) for column in range(8)])


def run_digits(X: pd.DataFrame, random_seed: int, **run: Any) -> Any:
    """Posterior of gamma-nmf by Gibbs, in the best mode of a short search; ``run`` goes to :func:`nmf_zoo.sample`.

    The posterior has many modes, and chains from random starts end in different ones.
    """
    model = nz.gamma_nmf(X, RANK, **PRIORS)
    length: dict[str, Any] = {"draws": 1400, "tune": 300, "thin": 2, "extend": 1, "start": nz.Search(fits=FITS)}
    return nz.sample(**length | run, random_seed=random_seed, model=model)


def compiled_for(X: pd.DataFrame) -> AbstractContextManager[None]:
    """A context in which the kernels of :func:`run_digits` are being compiled, from before PyMC is imported."""
    from nmf_zoo.inference.counts.gibbs import ENGINE, Gibbs
    from nmf_zoo.runtime.compile_ahead import compiled_ahead
    from nmf_zoo.runtime.driver import available_cores

    return compiled_ahead(ENGINE, as_read(X), Gibbs(), available_cores())


def as_read(X: pd.DataFrame) -> Any:
    """What :func:`nmf_zoo.read` tells of the model, but for labels."""
    from nmf_zoo.structure import Dense, Factor, Factorisation, GammaPrior, Known, Poisson

    known = {name: Known(value=np.asarray(value)) for name, value in PRIORS.items()}
    return Factorisation(
        likelihood=Poisson(name="X"),
        W=Factor(name="W", shape=(len(X), RANK), prior=GammaPrior(shape=known["alpha_w"], rate=known["beta_w"])),
        H=Factor(name="H", shape=(RANK, X.shape[1]), prior=GammaPrior(shape=known["alpha_h"], rate=known["beta_h"])),
        data=Dense(values=X.to_numpy(np.float64)),
    )


def thin_factors(idata: Any) -> Any:
    """The result with fewer draws of the factors and all of the statistics: H of every draw would fill the disk."""
    from nmf_zoo import _compat
    from nmf_zoo.results.component_order import GROUP

    of_factors = ("posterior", GROUP)
    kept = {name: _compat.group(idata, name).isel(draw=slice(None, None, KEPT_OF // 2)) for name in of_factors}
    return _compat.with_groups(idata, kept)
