"""Monte-Carlo EM: maximum marginal likelihood of GaP, and of the hyperparameters of gamma NMF."""

from nmf_zoo.inference.mcem.engine import ENGINE
from nmf_zoo.inference.mcem.options import MCEM

__all__ = ["ENGINE", "MCEM"]
