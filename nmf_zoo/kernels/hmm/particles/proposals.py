"""How particles move on: by the chain's own law (the bootstrap filter), or with the sample in view.

Which, is the type of the population's ``ahead``: only what is used is compiled. Proposals that look at the sample are
in the chain's own file, `guided_basis`, `guided_unit` and `guided_log_normal`.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from nmf_zoo.kernels.hmm.particles import guided_basis, guided_log_normal, guided_unit
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, draw_first, move
from nmf_zoo.kernels.hmm.particles.proposal_scratch import Ahead, ahead_room

BOOTSTRAP, GUIDED, AUXILIARY = range(3)


class Blind(NamedTuple):
    """Nothing is seen of the next sample. ``seen`` : (0,)"""

    seen: Any


BasisAhead = namedtuple("BasisAhead", Ahead._fields)
UnitAhead = namedtuple("UnitAhead", Ahead._fields)
LogNormalAhead = namedtuple("LogNormalAhead", Ahead._fields)
GUIDES = {BasisAhead: guided_basis, UnitAhead: guided_unit, LogNormalAhead: guided_log_normal}
OF_KIND = {BASIS: BasisAhead, UNIT: UnitAhead, LOG_NORMAL: LogNormalAhead}


def make_ahead(proposal: int, kind: int, rank: int, n_particles: int) -> Any:
    """Room for what a proposal sees of a sample, for chains of this kind."""
    if proposal == BOOTSTRAP:
        return Blind(np.zeros(0, np.int64))
    return OF_KIND[kind](*ahead_room(rank, n_particles))


def look_ahead(ahead, population, target, t):
    """Prepare the proposal for sample t; overwrite ``look`` with how well each particle explains it."""
    _look_of(type(ahead))(ahead, population, target, t)


def propose(ahead, population, target, t, key):
    """Move the particles from ``cloud`` to ``other``; overwrite ``increments`` with log f - log q."""
    _step_of(type(ahead))(ahead, population, target, t, key)


def propose_first(ahead, population, target, t, key):
    """Draw the particles of the first sample into ``cloud``; overwrite ``increments`` with log f - log q."""
    _first_of(type(ahead))(ahead, population, target, t, key)


def _look_of(kind):
    def blind(ahead, population, target, t):
        population.look[:] = 0.0

    if kind is Blind:
        return blind
    look = GUIDES[kind].look
    return lambda ahead, population, target, t: look(ahead, population, target, t)


def _step_of(kind):
    def blind(ahead, population, target, t, key):
        move(population.other, population.cloud, population.ancestors, target.law, key)
        population.increments[:] = 0.0

    if kind is Blind:
        return blind
    step = GUIDES[kind].propose
    return lambda ahead, population, target, t, key: step(ahead, population, target, t, key)


def _first_of(kind):
    def blind(ahead, population, target, t, key):
        draw_first(population.cloud, target.law, key)
        population.increments[:] = 0.0

    if kind is Blind:
        return blind
    step = GUIDES[kind].propose_first
    return lambda ahead, population, target, t, key: step(ahead, population, target, t, key)


@overload(look_ahead)
def _compiled_look_ahead(ahead, population, target, t):
    return _look_of(ahead.instance_class)


@overload(propose)
def _compiled_propose(ahead, population, target, t, key):
    return _step_of(ahead.instance_class)


@overload(propose_first)
def _compiled_propose_first(ahead, population, target, t, key):
    return _first_of(ahead.instance_class)
