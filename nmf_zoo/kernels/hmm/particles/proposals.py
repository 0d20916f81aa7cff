"""How particles move on: by the chain's own law (the bootstrap filter), or with the sample in view.

Which, is the type of the population's ``ahead``: only what is used is compiled. Proposals that look at the sample are
in the chain's own file, `guided_basis`, `guided_unit` and `guided_log_normal`.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.hmm.particles import guided_basis, guided_log_normal, guided_unit
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, draw_first, move
from nmf_zoo.kernels.hmm.particles.proposal_scratch import Ahead, ahead_scratch

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
    """Scratch for what a proposal sees of a sample, for chains of this kind."""
    if proposal == BOOTSTRAP:
        return Blind(np.zeros(0, np.int64))
    return OF_KIND[kind](*ahead_scratch(rank, n_particles))


@kernel
def look_nowhere(ahead, population, target, t):
    population.look[:] = 0.0


@kernel
def step_blindly(ahead, population, target, t, key):
    move(population.other, population.cloud, population.ancestors, target.law, key)
    population.increments[:] = 0.0


@kernel
def start_blindly(ahead, population, target, t, key):
    draw_first(population.cloud, target.law, key)
    population.increments[:] = 0.0


LOOKS = {Blind: look_nowhere} | {kind: guide.look for kind, guide in GUIDES.items()}
STEPS = {Blind: step_blindly} | {kind: guide.propose for kind, guide in GUIDES.items()}
STARTS = {Blind: start_blindly} | {kind: guide.propose_first for kind, guide in GUIDES.items()}


@chosen_by("ahead", LOOKS)
def look_ahead(ahead, population, target, t):
    """Prepare the proposal for sample t; overwrite ``look`` with how well each particle explains it."""


@chosen_by("ahead", STEPS)
def propose(ahead, population, target, t, key):
    """Move the particles from ``cloud`` to ``other``; overwrite ``increments`` with log f - log q."""


@chosen_by("ahead", STARTS)
def propose_first(ahead, population, target, t, key):
    """Draw the particles of the first sample into ``cloud``; overwrite ``increments`` with log f - log q."""
