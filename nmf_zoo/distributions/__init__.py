"""The distributions PyMC lacks: sparse counts, real-valued counts, and Markov chains in time."""

from __future__ import annotations

from nmf_zoo.distributions.batched_counts import SparseBatchedPoisson, SparseBatchedPoissonRV
from nmf_zoo.distributions.cell_rates import CellRates, cell_rates
from nmf_zoo.distributions.chains import (
    BGAR,
    BGARRV,
    BasisChain,
    BasisChainRV,
    GammaChain,
    GammaChainRV,
    LogNormalAR,
    LogNormalARRV,
    UnitChain,
    UnitChainRV,
)
from nmf_zoo.distributions.counts import RealPoisson, RealPoissonRV, SparsePoisson, SparsePoissonRV
from nmf_zoo.distributions.overdispersed_counts import SparseNegativeBinomial, SparseNegativeBinomialRV

__all__ = [
    "BGAR",
    "BGARRV",
    "BasisChain",
    "BasisChainRV",
    "CellRates",
    "GammaChain",
    "GammaChainRV",
    "LogNormalAR",
    "LogNormalARRV",
    "RealPoisson",
    "RealPoissonRV",
    "SparseBatchedPoisson",
    "SparseBatchedPoissonRV",
    "SparseNegativeBinomial",
    "SparseNegativeBinomialRV",
    "SparsePoisson",
    "SparsePoissonRV",
    "UnitChain",
    "UnitChainRV",
    "cell_rates",
]
