"""The laws that a cloud of particles can move by, and the functions of each, by kind.

A particle is a column of activations, component by component. Beside each activation stands what its chain needs to
stay exact: the distance to 1 of a unit chain, the logarithm of a log-normal one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmm.particles import basis, log_normal, unit

BASIS, UNIT, LOG_NORMAL = range(3)


class Cloud(NamedTuple):
    """Particles, (K, N) each.

    Attributes
    ----------
    h : activations
    aux : h of a basis chain, 1 - h of a unit chain, log h of a log-normal one: exact where h has rounded
    """

    h: Any
    aux: Any


class Law(NamedTuple):
    """The law of K independent chains of one kind.

    Attributes
    ----------
    kind : BASIS, UNIT or LOG_NORMAL
    parameters : (3, K): p and q; alpha; mean, persistence and scale of log h
    initial : (2, K): P(on); nothing; mean and standard deviation of log h at the first time
    """

    kind: int
    parameters: Any
    initial: Any


@kernel
def draw_first(new, law, key):
    """Overwrite the cloud with draws of the first time."""
    if law.kind == BASIS:
        basis.draw_first(new, law, key)
    elif law.kind == UNIT:
        unit.draw_first(new, key)
    else:
        log_normal.draw_first(new, law, key)


@kernel
def move(new, old, ancestors, law, key):
    """Overwrite particle i of ``new`` with a draw of the step from particle ancestors[i] of ``old``."""
    if law.kind == BASIS:
        basis.move(new, old, ancestors, law, key)
    elif law.kind == UNIT:
        unit.move(new, old, ancestors, law, key)
    else:
        log_normal.move(new, old, ancestors, law, key)


@kernel
def log_step(law, new, i, old, j):
    """Log-density of the step from particle j of ``old`` to particle i of ``new``, of log h if that is log-normal."""
    if law.kind == BASIS:
        return basis.log_step(law, new, i, old, j)
    if law.kind == UNIT:
        return unit.log_step(law, new, i, old, j)
    return log_normal.log_step(law, new, i, old, j)


@kernel
def log_first(law, new, i):
    """Log-density of particle i at the first time, of log h if that is log-normal."""
    if law.kind == BASIS:
        return basis.log_first(law, new, i)
    if law.kind == UNIT:
        return 0.0
    return log_normal.log_first(law, new, i)
