"""The likelihoods, one file each; ``base`` says what one is."""

from nmf_zoo.structure.likelihoods.base import Likelihood
from nmf_zoo.structure.likelihoods.batched import BatchedPoisson
from nmf_zoo.structure.likelihoods.exponential import Exponential
from nmf_zoo.structure.likelihoods.negative_binomial import NegativeBinomial
from nmf_zoo.structure.likelihoods.normal import Normal
from nmf_zoo.structure.likelihoods.poisson import Poisson, log_factorial

__all__ = ["BatchedPoisson", "Exponential", "Likelihood", "NegativeBinomial", "Normal", "Poisson", "log_factorial"]
