"""Sequential Monte Carlo: particles go from the prior to the posterior, of which each mode gets its share.

The runs are those of the evidence by the same method (:mod:`nmf_zoo.inference.evidence.smc`), with the same streams:
one seed gives the same log p(X) by :func:`nmf_zoo.sample` as by :func:`nmf_zoo.evidence`. A chain of the result is an
independent run, and its draws are the particles that the run ends with, which have been resampled by their weights and
moved at the temperature 1, so that all weigh the same.

A Markov chain stays in the mode of the posterior that it has found, and lp does not say what that mode weighs. The
particles spread over all modes while the likelihood is nearly flat, and from stage to stage the weights share them out.
So chains that agree say that the shares are right within their spread, and what disagrees asks for more particles.

Draws are the particles in their order, where relatives are neighbours: ancestors are drawn in rising order, and each
one's chain stands together. What is computed from neighbouring draws (effective sample sizes, R-hat) thus sees how
related they are. Of more particles than draws every so manieth is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import EvidenceRun
from nmf_zoo.inference.evidence.smc import SMC
from nmf_zoo.inference.shared.factor_view import impute_counts
from nmf_zoo.inference.shared.joint import invariants_of_chains
from nmf_zoo.kernels.random.keyed_rng import child, children
from nmf_zoo.results.groups import LEADING, as_dataset, stats_dataset
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.runtime.engine import Verdict, WholeSampler
from nmf_zoo.structure import Array, Factorisation, Flat, NegativeBinomial, Poisson

IMPUTED = smc.STAGES + 1  # child of a run's stream


def supports(structure: Factorisation, options: SMC) -> Verdict:
    """What has an evidence: there must be a prior to begin with."""
    flat = [factor.name for factor in (structure.W, structure.H) if isinstance(factor.prior, Flat)]
    if structure.data is not None and flat:
        verb = "has" if len(flat) == 1 else "have"
        return Verdict(f"{' and '.join(flat)} {verb} no prior, and its particles begin as draws of the prior")
    return smc.supports(structure, options)


def sample(
    model: Any,
    structure: Factorisation,
    options: SMC,
    run: SampleRun,
    key: np.uint64,
    starts: Sequence[Mapping[str, Array]],
) -> tuple[dict[str, Any], bool]:
    """One run for each chain. The posterior and its statistics; whether Ctrl-C cut runs short, which are left out."""
    _refuse(options, run)
    how: dict[str, Any] = {"cores": run.cores, "progressbar": run.progressbar, "executor": run.executor}
    runs = EvidenceRun(chains=len(starts), key=key, **how)
    found = smc.estimate(replace(structure, imputed=None), replace(options, draws=run.draws), runs)
    values = dict(found.draws or {})
    if structure.imputed is not None:
        values[structure.imputed.name] = _imputed(structure, values, key)
    kept = {name: values[name] for name in run.var_names or values}
    stats = stats_dataset(structure, invariants_of_chains(structure, values)).assign(found.sample_stats)
    return {"posterior": as_dataset(structure, kept, LEADING), "sample_stats": stats}, runs.stopped


def _refuse(options: SMC, run: SampleRun) -> None:
    """What a chain of sweeps has a use for, and particles have not."""
    if options.draws is not None:
        raise InputError("draws", f"SMC(draws={options.draws})", "None there: it is an argument of nz.sample()")
    if run.draws > options.particles:
        enough = -(-run.draws // options.length) * options.length
        expected = f"{options.particles} at the most, the particles of a run"
        raise InputError("draws", f"{run.draws} with smc", expected, f"e.g. engine=nz.SMC(particles={enough})")
    if run.thin != 1:
        raise InputError("thin", f"{run.thin} with smc", "1: draws are particles, not sweeps", "ask for fewer draws")
    if run.keep_warmup:
        raise InputError("discard_tuned_samples", "False with smc", "True: it has no warm-up", "leave it out")


def _imputed(structure: Factorisation, values: Mapping[str, Array], key: np.uint64) -> Array:
    """Missing cells that are variables of the model, (chain, draw, cell), each drawn from a stream of its own."""
    lead = next(iter(values.values())).shape[:2]
    W, H = (factor.value(values) for factor in (structure.W, structure.H))
    Ws, Hs = (np.broadcast_to(factor, (*lead, *factor.shape[-2:])) for factor in (W, H))
    keys = [children(child(key, chain, IMPUTED), lead[1]) for chain in range(lead[0])]
    if structure.likelihood.parameters:
        return _draws_of_cells(structure, Ws, Hs, values, keys)
    chains = zip(Ws, np.swapaxes(Hs, -1, -2), keys, strict=True)
    return np.stack([impute_counts(structure, W, Ht, own) for W, Ht, own in chains])


def _draws_of_cells(
    structure: Factorisation, Ws: Array, Hs: Array, values: Mapping[str, Array], keys: list[Array]
) -> Array:
    """Of a law with parameters of its own."""
    assert structure.imputed is not None
    places = structure.imputed.rows, structure.imputed.cols
    law, out = structure.likelihood_at(*places), np.empty((*Ws.shape[:2], len(places[0])), np.int64)
    for at in np.ndindex(*Ws.shape[:2]):
        mean, own = structure.mean_at(Ws[at], Hs[at], *places), {name: value[at] for name, value in values.items()}
        law.require_drawable(mean)
        law.draw_cells(out[at], mean, own, *places, np.uint64(keys[at[0]][at[1]]))
    return out


SAMPLER: WholeSampler = WholeSampler(
    name="smc",
    verb="sample",
    likelihoods=(Poisson, NegativeBinomial),
    takes_known=True,
    options=SMC,
    supports=supports,
    sample=sample,
    has_starts=False,
    has_particles=True,
)
