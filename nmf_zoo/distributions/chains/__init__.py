"""Markov chains in time, the rows of H: distributions of a (component, obs) matrix whose last axis is time."""

from __future__ import annotations

from nmf_zoo.distributions.chains.basis import BasisChain, BasisChainRV
from nmf_zoo.distributions.chains.bgar import BGAR, BGARRV
from nmf_zoo.distributions.chains.chain import ChainDistribution, Recipe, RowLog, RowLogOdds
from nmf_zoo.distributions.chains.gamma_chain import GammaChain, GammaChainRV
from nmf_zoo.distributions.chains.log_normal import LogNormalAR, LogNormalARRV
from nmf_zoo.distributions.chains.unit import UnitChain, UnitChainRV

CHAINS: tuple[type[ChainDistribution], ...] = (BasisChain, UnitChain, LogNormalAR, GammaChain, BGAR)

__all__ = [
    "CHAINS",
    "BGAR",
    "BGARRV",
    "BasisChain",
    "BasisChainRV",
    "ChainDistribution",
    "GammaChain",
    "GammaChainRV",
    "LogNormalAR",
    "LogNormalARRV",
    "Recipe",
    "RowLog",
    "RowLogOdds",
    "UnitChain",
    "UnitChainRV",
]
