"""The distributions PyMC lacks: sparse counts and real-valued counts."""

from __future__ import annotations

from nmf_zoo.distributions.cell_rates import CellRates, cell_rates
from nmf_zoo.distributions.counts import RealPoisson, RealPoissonRV, SparsePoisson, SparsePoissonRV

__all__ = ["CellRates", "RealPoisson", "RealPoissonRV", "SparsePoisson", "SparsePoissonRV", "cell_rates"]
