"""What EM by particles says at its solution: paths of H, the filter, and how likely the data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.inference.hmm.particle_expectations import Particles
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.results import Series
from nmf_zoo.results.groups import variable_dims
from nmf_zoo.structure import Array, BasisChainPrior


def report(
    particles: Particles,
    W: Array,
    values: Mapping[str, Array],
    repeats: int,
    draws: int,
    workers: Workers,
    key: np.uint64,
) -> tuple[Array, dict[str, Any]]:
    """(draws of H's paths (draws, K, T), what goes to ``fit``)"""
    structure = particles.structure
    paths = particles.paths(W, values, draws, child(key, 0))
    if isinstance(structure.H.prior, BasisChainPrior):
        paths = paths.astype(np.int8)
    filters = [particles.filter(W, values, moments=number == 0) for number in range(repeats)]
    keys = [child(key, 1, number) for number in range(repeats)]
    estimates = np.array(workers.map(particles.log_likelihood, filters, keys))
    name, (of_component, of_sample) = structure.H.name, variable_dims(structure, structure.H.name, 2)
    log_p, error = combine(estimates)
    said = {
        f"{name}_mean": paths.mean(axis=0),
        f"{name}_sd": paths.std(axis=0),
        f"{name}_filtered": np.ascontiguousarray(filters[0].track.means.T),
        f"{name}_filtered_sd": Series((of_component, of_sample), np.ascontiguousarray(filters[0].track.sds.T)),
        "ess": Series((of_sample,), filters[0].track.sizes),
        "resampled": Series((), np.array(share_resampled(filters[0]))),
        "log_likelihood": Series((), np.array(log_p)),
        "log_likelihood_error": Series((), np.array(error)),
    }
    return paths, said


def combine(estimates: Array) -> tuple[float, float]:
    """(log of the mean of e^estimates, its standard error): log p(X) from unbiased estimates of p(X); NaN for one."""
    n = len(estimates)
    log_p = float(logsumexp(estimates) - np.log(n))
    if n == 1:
        return log_p, np.nan
    ratios = np.exp(estimates - log_p)
    return log_p, float(np.std(ratios, ddof=1) / np.sqrt(n))


def share_resampled(filtering: ParticleFilter) -> float:
    """The share of the samples after the first at which the particles were resampled."""
    return float(filtering.track.resampled[1:].mean()) if filtering.n_times > 1 else 0.0
