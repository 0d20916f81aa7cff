"""How particles move on: by the chain's own law (the bootstrap filter), or with the sample in view.

Which, is the type of the population's ``ahead``: only what is used is compiled. Proposals that look at the sample are
in the chain's own file, `guided_basis`, `guided_unit` and `guided_log_normal`. They are more than half of the code of
all that filters, and called by their addresses: compiled once for a kind of chain, and their callers once for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.compile.apart import call_at
from nmf_zoo.kernels.hmm.particles import guided_basis, guided_log_normal, guided_unit
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, draw_first, move
from nmf_zoo.kernels.hmm.particles.proposal_scratch import Ahead, ahead_scratch

BOOTSTRAP, GUIDED, AUXILIARY = range(3)
GUIDES = {BASIS: guided_basis, UNIT: guided_unit, LOG_NORMAL: guided_log_normal}
BasisAhead = UnitAhead = LogNormalAhead = Ahead  # by these names streams were saved


class Blind(NamedTuple):
    """Nothing is seen of the next sample. ``seen`` : (0,)"""

    seen: Any


class Guide(NamedTuple):
    """Addresses of a chain's own ``look``, ``propose`` and ``propose_first``."""

    look: Any
    propose: Any
    propose_first: Any


def make_ahead(proposal: int, rank: int, n_particles: int) -> Any:
    """Scratch for what a proposal sees of a sample."""
    return Blind(np.zeros(0, np.int64)) if proposal == BOOTSTRAP else ahead_scratch(rank, n_particles)


@kernel
def look_nowhere(ahead, guide, population, target, t):
    population.look[:] = 0.0


@kernel
def step_blindly(ahead, guide, population, target, t, key):
    move(population.other, population.cloud, population.ancestors, target.law, key)
    population.increments[:] = 0.0


@kernel
def start_blindly(ahead, guide, population, target, t, key):
    draw_first(population.cloud, target.law, key)
    population.increments[:] = 0.0


@kernel
def look_guided(ahead, guide, population, target, t):
    call_at(guide.look, (ahead, population, target, t))


@kernel
def step_guided(ahead, guide, population, target, t, key):
    call_at(guide.propose, (ahead, population, target, t, key))


@kernel
def start_guided(ahead, guide, population, target, t, key):
    call_at(guide.propose_first, (ahead, population, target, t, key))


@chosen_by("ahead", {Blind: look_nowhere, Ahead: look_guided})
def look_ahead(ahead, guide, population, target, t):
    """Prepare the proposal for sample t; overwrite ``look`` with how well each particle explains it."""


@chosen_by("ahead", {Blind: step_blindly, Ahead: step_guided})
def propose(ahead, guide, population, target, t, key):
    """Move the particles from ``cloud`` to ``other``; overwrite ``increments`` with log f - log q."""


@chosen_by("ahead", {Blind: start_blindly, Ahead: start_guided})
def propose_first(ahead, guide, population, target, t, key):
    """Draw the particles of the first sample into ``cloud``; overwrite ``increments`` with log f - log q."""
