"""What a particle that was not proposed weighs: log f - log q had it been, by the type of the population's ahead."""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from nmf_zoo.kernels.particles import guided_log_normal
from nmf_zoo.kernels.particles.guided_passes import fetch, set_increments
from nmf_zoo.kernels.particles.guided_sites import block_of, condition, take_apart
from nmf_zoo.kernels.particles.guided_unit import DOWN, UP, set_chances
from nmf_zoo.kernels.particles.proposals import Blind, LogNormalAhead, UnitAhead
from nmf_zoo.kernels.particles.truncated import is_even
from nmf_zoo.kernels.streams import kernel


def increment_given(ahead, population, law, t, i):
    """log f - log q of particle i of ``cloud`` from its ancestor in ``other``; at the first time from none."""
    raise NotImplementedError  # compiled code only


@overload(increment_given)
def _increment_given(ahead, population, law, t, i):
    if ahead.instance_class is Blind:
        return lambda ahead, population, law, t, i: 0.0
    if ahead.instance_class is LogNormalAhead:
        given = guided_log_normal.increment_given
        return lambda ahead, population, law, t, i: given(ahead, population.cloud, i, population.ancestors[i])
    if ahead.instance_class is UnitAhead:
        return lambda ahead, population, law, t, i: unit_increment(ahead, population, law, t, i)
    return None


@kernel
def unit_increment(ahead, population, law, t, i):
    """Of a unit chain, whose first time is a step from 1/2 with both ways as likely (see `guided_unit`)."""
    if ahead.seen[0] == 0:
        return 0.0
    rank, new = population.cloud.h.shape[0], population.cloud
    block, increment = block_of(rank), np.empty(1)
    fetch(block, ahead, population.other, population.ancestors[i : i + 1])
    if t == 0:
        block.old[:] = 0.5
    take_apart(block, ahead.shared[:rank], ahead.vectors[2])
    block.log_z[:] = 0.0
    for k in range(rank):
        condition(block, k, new.h, i)
        set_chances(block, k, 0.5 if t == 0 else law.parameters[0, k])
        add_log_ratio(block, k, new.h[k, i], new.aux[k, i])
    set_increments(increment, block)
    return increment[0]


@kernel
def add_log_ratio(block, k, h, aux):
    """Add log q - log f of component k at h, aux = 1 - h, in the first lane."""
    below, above = block.old[0, k, 0], block.old[1, k, 0]
    precision, shift = block.cavity[0, 0], block.cavity[1, 0]
    is_up = h > below if below <= above else aux < above
    low, width = (below, above) if is_up else (0.0, below)
    block.log_z[0] += block.moments[UP if is_up else DOWN, 0]
    if not is_even(low, width, precision, shift):
        block.log_z[0] += h * (shift - 0.5 * precision * h)
