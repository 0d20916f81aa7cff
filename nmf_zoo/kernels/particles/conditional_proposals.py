"""What a particle that was not proposed weighs: log f - log q had it been, by the type of the population's ahead."""

from __future__ import annotations

from numba.extending import overload

from nmf_zoo.kernels.particles import guided_log_normal
from nmf_zoo.kernels.particles.proposals import Blind, LogNormalAhead


def increment_given(ahead, population, law, i):
    """log f - log q of particle i of ``cloud`` from its ancestor in ``other``."""
    raise NotImplementedError  # compiled code only


@overload(increment_given)
def _increment_given(ahead, population, law, i):
    if ahead.instance_class is Blind:
        return lambda ahead, population, law, i: 0.0
    if ahead.instance_class is LogNormalAhead:
        given = guided_log_normal.increment_given
        return lambda ahead, population, law, i: given(ahead, population.cloud, i, population.ancestors[i])
    return None
