"""What EM by particles says of parameters: how likely they make the data, the filter there, and paths of H."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.inference.hmm.particle_expectations import Particles
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.results import Series
from nmf_zoo.results.groups import variable_dims
from nmf_zoo.structure import Array, BasisChainPrior


class Judged(NamedTuple):
    """Parameters, and what filters say of them.

    W : (F, K); values : of the chain's unknowns, by name
    log_p : an estimate of log p(X | W, values); error : its standard error; filtering : the first filter, with moments
    """

    W: Array
    values: dict[str, Array]
    log_p: float
    error: float
    filtering: ParticleFilter


def judge(
    particles: Particles, W: Array, values: dict[str, Array], repeats: int, workers: Workers, key: np.uint64
) -> Judged:
    """Run ``repeats`` filters."""
    filters = [particles.filter(W, values, moments=number == 0) for number in range(repeats)]
    keys = [child(key, number) for number in range(repeats)]
    estimates = np.array(workers.map(particles.log_likelihood, filters, keys))
    return Judged(W, values, *combine(estimates), filters[0])


def report(particles: Particles, judged: Judged, draws: int, key: np.uint64) -> tuple[Array, dict[str, Any]]:
    """(draws of H's paths (draws, K, T), what goes to ``fit``)"""
    structure, filtering = particles.structure, judged.filtering
    paths = particles.paths(judged.W, judged.values, draws, key)
    if isinstance(structure.H.prior, BasisChainPrior):
        paths = paths.astype(np.int8)
    name, (of_component, of_sample) = structure.H.name, variable_dims(structure, structure.H.name, 2)
    said = {
        f"{name}_mean": paths.mean(axis=0),
        f"{name}_sd": paths.std(axis=0),
        f"{name}_filtered": np.ascontiguousarray(filtering.track.means.T),
        f"{name}_filtered_sd": Series((of_component, of_sample), np.ascontiguousarray(filtering.track.sds.T)),
        "ess": Series((of_sample,), filtering.track.sizes),
        "resampled": Series((), np.array(share_resampled(filtering))),
        "log_likelihood": Series((), np.array(judged.log_p)),
        "log_likelihood_error": Series((), np.array(judged.error)),
    }
    return paths, said


def combine(estimates: Array) -> tuple[float, float]:
    """(log of the mean of e^estimates, its standard error): log p(X) from unbiased estimates of p(X); NaN for one.

    Relative to their mean, n estimates spread by sqrt(n) at most, however noisy; their logarithms tell then.
    """
    n = len(estimates)
    log_p = float(logsumexp(estimates) - np.log(n))
    if n == 1:
        return log_p, np.nan
    ratios = np.exp(estimates - log_p)
    return log_p, float(max(np.std(ratios, ddof=1), np.std(estimates, ddof=1)) / np.sqrt(n))


def share_resampled(filtering: ParticleFilter) -> float:
    """The share of the samples after the first at which the particles were resampled."""
    return float(filtering.track.resampled[1:].mean()) if filtering.n_times > 1 else 0.0
