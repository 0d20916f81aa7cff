"""The zoo: one declaration per file. Each is a function ``name(X, rank, *, ...) -> pm.Model``."""

from __future__ import annotations

from nmf_zoo.models.batches import Batches
from nmf_zoo.models.gamma_nmf import gamma_nmf
from nmf_zoo.models.gap import gap
from nmf_zoo.models.hierarchies import ARD, HPF
from nmf_zoo.models.hmm_nmf import hmm_nmf
from nmf_zoo.models.hyperparameters import free
from nmf_zoo.models.is_nmf import is_nmf
from nmf_zoo.models.negative_binomial_nmf import negative_binomial_nmf
from nmf_zoo.models.normal_nmf import normal_nmf
from nmf_zoo.models.poisson_nmf import poisson_nmf

MODELS = {
    builder.__name__.replace("_", "-"): builder
    for builder in (poisson_nmf, normal_nmf, gamma_nmf, negative_binomial_nmf, gap, is_nmf, hmm_nmf)
}

__all__ = [
    "ARD",
    "HPF",
    "MODELS",
    "Batches",
    "free",
    "gamma_nmf",
    "gap",
    "hmm_nmf",
    "is_nmf",
    "negative_binomial_nmf",
    "normal_nmf",
    "poisson_nmf",
]
