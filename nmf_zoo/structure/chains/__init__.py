"""Priors of activations that are Markov chains in time, each row of H one chain: one file for each, asked for all."""

from nmf_zoo.structure.chains.base import POSITIVE, PROBABILITY, REAL, SYMMETRIC, ChainPrior, Support, supports_of
from nmf_zoo.structure.chains.basis import BasisChainPrior
from nmf_zoo.structure.chains.bgar import BGARPrior
from nmf_zoo.structure.chains.gamma_chain import GammaChainPrior
from nmf_zoo.structure.chains.log_normal import LogNormalARPrior
from nmf_zoo.structure.chains.unit import UnitChainPrior

CHAINS: tuple[type[ChainPrior], ...] = (BasisChainPrior, UnitChainPrior, LogNormalARPrior, GammaChainPrior, BGARPrior)

__all__ = [
    "CHAINS",
    "POSITIVE",
    "PROBABILITY",
    "REAL",
    "SYMMETRIC",
    "BGARPrior",
    "BasisChainPrior",
    "ChainPrior",
    "GammaChainPrior",
    "LogNormalARPrior",
    "Support",
    "UnitChainPrior",
    "supports_of",
]
