"""A step of smoothing, put together: what an online learner or a pass over all samples calls beside the filter's step.

Once a sample, after the filter's step (``begin`` at the first sample, ``advance`` later)::

    first sample    begin_sums(carried, population, law, gain)
    later           carry(carried, smoother, population, law, decay, gain, key)
    every           add_sample(carried, population, target, weights, gain, t)      weights (R,) of the sample
    when wanted     total_sums(sums, carried, population.weights)                  sums (R,), rows as carried.rows says

``law`` is that which the step was taken under, ``target.W`` that which the sample's sources are expected under, and
``key`` that of the filter's step, of which child SMOOTH is used here. decay = gain = 1: sums. decay = 1 - g_t, gain =
g_t: the averages of online EM (gain g_1 at the first sample). ``population.weights`` and ``log_weights`` must be the
filter's normalised ones, as they are after its step, and ``population.other`` the cloud that particles moved from.

:func:`nmf_zoo.inference.hmm.particle_sums.make_carried` makes room.
"""

from __future__ import annotations

from typing import NamedTuple

from numba.extending import overload

from nmf_zoo.kernels.particles.backward_sums import carry_backward
from nmf_zoo.kernels.particles.forward_sums import carry_forward
from nmf_zoo.kernels.particles.path_sums import carry_along_paths
from nmf_zoo.kernels.particles.statistics import fade
from nmf_zoo.kernels.streams import child, fold

SMOOTH = 2  # child of a step's key, beside the filter's


class Smoother(NamedTuple):
    """Which particles of the sample before a particle may come from. Its type says how they are found: only that is
    compiled.

    Attributes
    ----------
    draws : M >= 2 of a Backward one, the ancestor among them
    steps : of Metropolis from one drawn particle to the next, >= 1
    """

    draws: int = 2
    steps: int = 1


class Paths(Smoother):
    """A particle comes from its ancestor, O(N)."""


class Forward(Smoother):
    """It may come from any, O(N^2)."""


class Backward(Smoother):
    """From some that are drawn, O(N)."""


def carry(carried, smoother, population, law, decay, gain, key):
    """Take the statistics to the next sample's particles, times ``decay``; add ``gain`` times those of the step."""
    fade(carried, decay)
    if isinstance(smoother, Paths):
        carry_along_paths(carried, population, law, gain)
    elif isinstance(smoother, Forward):
        carry_forward(carried, population, law, gain)
    else:
        carry_backward(carried, population, law, gain, smoother, child(key, SMOOTH))


@overload(carry)
def _compiled_carry(carried, smoother, population, law, decay, gain, key):
    def along_paths(carried, smoother, population, law, decay, gain, key):
        fade(carried, decay)
        carry_along_paths(carried, population, law, gain)

    def forward(carried, smoother, population, law, decay, gain, key):
        fade(carried, decay)
        carry_forward(carried, population, law, gain)

    def backward(carried, smoother, population, law, decay, gain, key):
        fade(carried, decay)
        carry_backward(carried, population, law, gain, smoother, fold(key, SMOOTH))

    return {Paths: along_paths, Forward: forward, Backward: backward}[smoother.instance_class]
