"""The demo: handwritten digits as counts of ink, factorised by Gibbs sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import nmf_zoo as nz
from nmf_zoo import _compat

RANK = 10
FITS = 16  # of VB, before the chains start
KEPT_OF = 20  # every 20th draw of the factors is stored


def digits() -> pd.DataFrame:
    """Pixels in rows, labelled by row and column; images in columns; ink from 0 to 16 in the cells."""
    from sklearn.datasets import load_digits

    counts = load_digits().data.astype(np.int64).T
    return pd.DataFrame(counts, index=[f"{row},{column}" for row in range(8) for column in range(8)])


def run_digits(X: pd.DataFrame, random_seed: int, **run: Any) -> Any:
    """Posterior of gamma-nmf by Gibbs, in the best mode of a short search; ``run`` goes to :func:`nmf_zoo.sample`.

    The posterior has many modes, and chains from random starts end in different ones.
    """
    model = nz.gamma_nmf(X, RANK, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, beta_h=0.5)
    length: dict[str, Any] = {"draws": 1400, "tune": 300, "thin": 2, "extend": 1, "start": nz.Search(fits=FITS)}
    return nz.sample(**length | run, random_seed=random_seed, model=model)


def thin_factors(idata: Any) -> Any:
    """The result with fewer draws of the factors and all of the statistics: H of every draw would fill the disk."""
    posterior = _compat.group(idata, "posterior")
    return _compat.with_groups(idata, {"posterior": posterior.isel(draw=slice(None, None, KEPT_OF // 2))})
