"""The laws that a cloud of particles can move by: the one place that looks at their kind.

A law is a file with its draws, its densities, and what smoothing sums over its steps; its look-ahead is another one
(`proposals`). A new one is such a file, a number here, and an arm in each function below.

A particle is a column of activations, component by component. Beside each activation stands what its chain needs to
stay exact: the distance to 1 of a unit chain, the logarithm of a log-normal one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmm.chain_updates import update_regression, update_shares
from nmf_zoo.kernels.hmm.particles import basis, log_normal, unit

BASIS, UNIT, LOG_NORMAL = range(3)
# Of a component: how many statistics smoothing sums over steps, and of the first time.
PAIRS = basis.N_PAIRS, unit.N_PAIRS, log_normal.N_PAIRS
FIRSTS = basis.N_FIRSTS, unit.N_FIRSTS, log_normal.N_FIRSTS


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
        unit.draw_first(new, law, key)
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
        return unit.log_first(law, new, i)
    return log_normal.log_first(law, new, i)


# -- what smoothing sums, of one component ---------------------------------------------------------------------------


@kernel
def add_first(rows, cloud, k, gain, law):
    """Add the statistics of the first time to rows (D, N)."""
    if law.kind == BASIS:
        basis.add_first(rows, cloud, k, gain)
    elif law.kind == UNIT:
        unit.add_first(rows, cloud, k, gain)
    else:
        log_normal.add_first(rows, cloud, k, gain)


@kernel
def add_step(rows, new, old, k, origins, share, workspace, law):
    """Add the statistics of the step to rows (P, N), the mean over the particles origins[:, i] that i may come from."""
    if law.kind == BASIS:
        basis.add_step(rows, new, old, k, origins, share, workspace)
    elif law.kind == UNIT:
        unit.add_step(rows, new, old, k, origins, share, workspace)
    else:
        log_normal.add_step(rows, new, old, k, origins, share, workspace)


@kernel
def expect_step(column, new, i, old, k, shares, gain, law):
    """Add them to column (P,) of particle i of ``new``, expected over where it comes from."""
    if law.kind == BASIS:
        basis.expect_step(column, new, i, old, k, shares, gain)
    elif law.kind == UNIT:
        unit.expect_step(column, new, i, old, k, shares, gain)
    else:
        log_normal.expect_step(column, new, i, old, k, shares, gain)


@kernel
def update_parameters(law, pairs, rules, transitions, prior_weight, nothing):
    """Overwrite the parameters with those that the sums over the steps (K, P) say; one sweep of regressions."""
    if law.kind == LOG_NORMAL:
        update_regression(law.parameters, pairs, transitions, nothing, rules, prior_weight, 1)
    else:
        update_shares(law.parameters, pairs, rules, prior_weight)


# -- densities of many steps, up to a term that depends on h_t alone -------------------------------------------------
#
# What depends on h_{t-1} alone is made ready once a step, (2 K, N), so that a pair of particles costs no logarithm:
#
#     binary        log f = sum_k ready[2 k + h_kt]                 log P(off | h_{t-1}), log P(on | h_{t-1})
#     unit          log f = sum_k ready[2 k + (is h_kt above)]      log of the densities below and above h_{t-1}
#     log-normal    log f = -1/2 sum_k (log h_kt / scale - ready[2 k])^2


@kernel
def prepare_steps(ready, old, law):
    """Overwrite ready (2 K, N) with what steps from the particles of ``old`` need."""
    for k in range(old.h.shape[0]):
        own = ready[2 * k : 2 * k + 2]
        if law.kind == BASIS:
            basis.prepare_steps(own, old, k, law)
        elif law.kind == UNIT:
            unit.prepare_steps(own, old, k, law)
        else:
            log_normal.prepare_steps(own, old, k, law)


@kernel
def steps_to(out, ready, new, i, old, law):
    """Overwrite out (N,) with log f of the steps from all particles of ``old`` to particle i of ``new``."""
    out[:] = 0.0
    for k in range(new.h.shape[0]):
        own = ready[2 * k : 2 * k + 2]
        if law.kind == BASIS:
            basis.add_steps_to(out, own, new, i, old, k, law)
        elif law.kind == UNIT:
            unit.add_steps_to(out, own, new, i, old, k, law)
        else:
            log_normal.add_steps_to(out, own, new, i, old, k, law)


@kernel
def steps_between(out, ready, new, old, origins, law):
    """Overwrite out (n,) with log f of the steps from particle origins[i] of ``old`` to particle i of ``new``."""
    out[:] = 0.0
    for k in range(new.h.shape[0]):
        own = ready[2 * k : 2 * k + 2]
        if law.kind == BASIS:
            basis.add_steps_between(out, own, new, old, k, origins, law)
        elif law.kind == UNIT:
            unit.add_steps_between(out, own, new, old, k, origins, law)
        else:
            log_normal.add_steps_between(out, own, new, old, k, origins, law)
