"""Planted errors: the pieces of the package that tests replace by wrong ones, by name, and where each stands.

A test of a planted error puts a wrong piece into an engine and asks that a check sees it. Paths are written here alone,
so that a piece that moves, or is called otherwise, is one line (``tests/unit/test_planted.py`` finds it).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from typing import Any

import pytest

# Of each piece "module:attribute", or several where one error has to be in all of them.
PLACES: dict[str, str | tuple[str, ...]] = {
    # declarations
    "sparse counts: total of exposed means": "nmf_zoo.distributions.counts:exposed_total",
    "sparse counts: gradients of means": (
        "nmf_zoo.distributions.cell_rates:CellRates.pullback",
        "nmf_zoo.distributions.cell_rates:CellRates.L_op",
    ),
    "ARD: activations of known components": "nmf_zoo.models.hierarchies:ARD._of_known",
    # EM
    "EM: updates": "nmf_zoo.inference.counts.em:update",
    "EM: weights of cells": "nmf_zoo.inference.counts.em_losses:weigh",
    "EM: columns that sum to one": "nmf_zoo.inference.counts.em:update_with_held",
    "EM: modes of hyperparameters": "nmf_zoo.inference.counts.em:at_modes",
    "EM: slopes": "nmf_zoo.inference.counts.em:climb_slopes",
    "EM: lengths of Newton's steps": "nmf_zoo.inference.counts.newton:_lengths",
    "EM: size of a component that is off": "nmf_zoo.inference.counts.newton:OFF",
    "EM: looks at squared errors": "nmf_zoo.inference.counts.em_losses:NormalLoss.look",
    "EM: duality gap of counts": "nmf_zoo.inference.counts.em_losses:poisson_gap",
    "EM: least of a cell in the dual": "nmf_zoo.inference.counts.duality:_least",
    "EM by slopes: updates": "nmf_zoo.inference.general.em:update",
    "MCEM: sources by exposure": "nmf_zoo.inference.counts.mcem:divide_by_exposure",
    # VB
    "VB: weights of cells": "nmf_zoo.inference.counts.vb:weigh",
    "VB: divergence from the prior": "nmf_zoo.inference.counts.vb:divergence",
    "VB: bound of hyperparameters": "nmf_zoo.inference.counts.vb:conjugate_bound",
    "VB: updates of hyperparameters": "nmf_zoo.inference.counts.vb:update_conjugates",
    "minibatches: sums of all samples": "nmf_zoo.inference.counts.vb_minibatches:of_all_samples",
    "minibatches: steps": "nmf_zoo.inference.counts.vb_minibatches:SumsOfW.toward",
    "minibatches: scales": "nmf_zoo.inference.counts.vb_minibatches:best_scales",
    "minibatches: bound of W": "nmf_zoo.inference.counts.vb_minibatches:bound_of_W",
    # Gibbs
    "Gibbs: priors of cells": "nmf_zoo.inference.counts.gibbs:prior_cells",
    "Gibbs: weights of cells": "nmf_zoo.inference.counts.gibbs:weigh",
    "Gibbs: layout of the counts": "nmf_zoo.inference.counts.gibbs:compress",
    "Gibbs: components that move": "nmf_zoo.inference.counts.gibbs:movable",
    "Gibbs: shears": "nmf_zoo.inference.counts.gibbs:move_shears",
    "Gibbs: scales": "nmf_zoo.inference.counts.gibbs:draw_scales",
    "Gibbs: precisions of half-normal cells": "nmf_zoo.inference.counts.gibbs:_curve",
    "Gibbs: half-normal cells": "nmf_zoo.inference.counts.gibbs:draw_half_normal_factor",
    "Gibbs: hyperparameters": "nmf_zoo.inference.counts.gibbs:draw_hyperparameters",
    "Gibbs: priors of trajectories": "nmf_zoo.inference.counts.gibbs:with_priors",
    "Gibbs over blocks: sums of blocks": "nmf_zoo.inference.counts.gibbs_blocks:GibbsBlockSums.plus",
    "Gibbs over blocks: priors of cells": "nmf_zoo.inference.counts.gibbs_blocks:prior_cells",
    "passes over blocks: blocks as they are read": "nmf_zoo.inference.shared.sample_blocks:sample_blocks",
    "conjugate steps: priors at a point": "nmf_zoo.interfaces.step_methods:_gammas",
    # hyperparameters, which samplers share
    "hyperparameters: sums of groups": "nmf_zoo.inference.shared.hyperparameter_draws:sum_groups",
    "hyperparameters: sums of groups from those of H": "nmf_zoo.inference.shared.hyperparameter_draws:sum_groups_over",
    "hyperparameters: draws of entries": "nmf_zoo.inference.shared.hyperparameter_draws:draw_entries",
    "hyperparameters: density along a scale": "nmf_zoo.inference.shared.hyperparameter_draws:along_scales",
    "half-normal cells: density along a scale": "nmf_zoo.inference.shared.slice_sampling:log_prior_scaled",
    "hyperparameters: entries beside known ones": "nmf_zoo.structure:PartlyKnown.entries",
    # covariates
    "covariates: prior of slopes": "nmf_zoo.structure:Covariates.prior",
    "Gibbs: slopes": "nmf_zoo.inference.counts.gibbs:draw_slopes",
    "Gibbs: effects of covariates": "nmf_zoo.inference.counts.gibbs:effects_of",
    # counts in batches
    "batches: sums over features": "nmf_zoo.inference.shared.multiplied:BatchWeights.over_features",
    "batches: sums over samples": "nmf_zoo.inference.shared.multiplied:BatchWeights.over_samples",
    "batches: whether scales leave the mean": "nmf_zoo.inference.shared.multiplied:BatchData.leaves_scales",
    "batches: mean of shared scales": "nmf_zoo.inference.batches.scales:SharedScales.log_mean",
    "EM of batches: best multipliers": "nmf_zoo.inference.batches.em:_best_multipliers",
    "VB of batches: divergence of multipliers": "nmf_zoo.inference.batches.vb:gamma_divergence",
    "Gibbs of batches: scales": "nmf_zoo.inference.batches.gibbs:draw_scales_of",
    "Gibbs of batches: the model given multipliers": "nmf_zoo.inference.batches.gibbs:BatchedGibbsProblem.given",
    "Gibbs of batches: multipliers of trajectories": "nmf_zoo.inference.batches.gibbs:with_multipliers",
    # negative binomial counts
    "Gibbs of overdispersed counts: multipliers and sources": "nmf_zoo.inference.overdispersed.gibbs:draw_sums",
    "Gibbs of overdispersed counts: rows": "nmf_zoo.inference.overdispersed.gibbs:cells_of_rows",
    "Gibbs of overdispersed counts: slices": "nmf_zoo.inference.overdispersed.gibbs:slice_draw",
    "Gibbs of overdispersed counts: tables of trajectories": "nmf_zoo.inference.overdispersed.trajectories:read_table",
    "Gibbs of overdispersed counts: trajectories given the dispersion": "nmf_zoo.inference.overdispersed.gibbs:given",
    "Gibbs of overdispersed counts: components that move": "nmf_zoo.inference.overdispersed.gibbs:movable",
    "Gibbs of overdispersed counts: priors of cells": "nmf_zoo.inference.overdispersed.gibbs:prior_cells",
    "EM of overdispersed counts: expectations": "nmf_zoo.inference.overdispersed.em:expected",
    "EM of overdispersed counts: steps of the dispersion": "nmf_zoo.inference.overdispersed.em:climb",
    "VB of overdispersed counts: expectations": "nmf_zoo.inference.overdispersed.vb:expected",
    "VB of overdispersed counts: moments": "nmf_zoo.inference.overdispersed.vb:moments_at",
    "VB of overdispersed counts: nodes of the dispersion": "nmf_zoo.inference.overdispersed.vb:nodes_of",
    # normal data
    "normal data: precisions": "nmf_zoo.inference.normal.squares:MeasuredCells.precisions",
    "EM of normal data: errors taken into the data": "nmf_zoo.inference.counts.em_losses:whitened",
    "VB of normal data: updates": "nmf_zoo.inference.normal.vb:_update",
    "VB of normal data: constants of the priors": "nmf_zoo.inference.normal.vb:_log_prior_at_zero",
    "Gibbs of normal data: priors of cells": "nmf_zoo.inference.normal.gibbs:cell_terms",
    "Gibbs of normal data: shears": "nmf_zoo.inference.normal.gibbs:move_shears",
    "Gibbs of normal data: whether components may move": "nmf_zoo.inference.normal.gibbs:NormalGibbsProblem.is_free",
    "Gibbs of normal data: slices": "nmf_zoo.inference.normal.gibbs:slice_draw",
    # powers
    "EM of powers: steps": "nmf_zoo.inference.powers.em:take_step",
    "EM of powers: known components": "nmf_zoo.inference.powers.em:_beside",
    "VB of powers: updates": "nmf_zoo.inference.powers.vb:update",
    "VB of powers: sums over frames": "nmf_zoo.inference.powers.vb:look_at_frames",
    "VB of powers: a factor's part of the bound": "nmf_zoo.inference.powers.vb:own_part",
    "Gibbs of powers: conditionals": "nmf_zoo.inference.powers.gibbs:given_powers",
    "Gibbs of powers: scaling of the factors": "nmf_zoo.inference.powers.gibbs:apply_scales",
    "Gibbs of powers: moves of components of which nothing is known": "nmf_zoo.inference.powers.gibbs:move_free",
    "Gibbs of powers: shears": "nmf_zoo.inference.powers.gibbs:move_inverse_shears",
    # streams
    "stream of counts: expectations": "nmf_zoo.inference.counts.online_em:expect",
    "stream of counts: steps": "nmf_zoo.inference.counts.online_em:take_step",
    "stream of counts: sums without exposures": "nmf_zoo.inference.counts.online_em:with_exposures",
    "stream of powers: expectations": "nmf_zoo.inference.powers.online_em:expect_frames",
    # gamma chains and BGAR
    "gamma chain: auxiliaries": "nmf_zoo.inference.smooth.gamma_chain:AugmentedGammaChain.draw_auxiliary",
    "gamma chain: activations": "nmf_zoo.inference.smooth.gamma_chain:AugmentedGammaChain.draw_activations",
    "gamma chain: law of a scale": "nmf_zoo.inference.smooth.gamma_chain:AugmentedGammaChain.law_of_scale",
    "BGAR: auxiliaries": "nmf_zoo.inference.smooth.bgar:AugmentedBGAR.draw_auxiliary",
    "BGAR: activations": "nmf_zoo.inference.smooth.bgar:AugmentedBGAR.draw_activations",
    "BGAR: law of a scale": "nmf_zoo.inference.smooth.bgar:AugmentedBGAR.law_of_scale",
    "BGAR: slices": "nmf_zoo.inference.smooth.bgar:slice_draw",
    "Gibbs of smooth chains: terms of the data": "nmf_zoo.inference.smooth.gibbs:DataTerms",
    "Gibbs of smooth powers: terms of the data": "nmf_zoo.inference.smooth.power_gibbs:DataTerms",
    "EM of smooth chains: law of auxiliaries": "nmf_zoo.inference.smooth.em:law_of_auxiliary",
    "EM of smooth chains: law of activations": "nmf_zoo.inference.smooth.em:law_of_activations",
    "VB of smooth chains: law of auxiliaries": "nmf_zoo.inference.smooth.vb:law_of_auxiliary",
    # parameters of chains, and particles
    "chains: slices": "nmf_zoo.inference.hmm.gibbs_chain:slice_draw",
    "chains: coordinates of parameters": "nmf_zoo.inference.hmm.gibbs_chain:COORDINATES",
    "log-normal chain: slope of a level": "nmf_zoo.inference.hmm.chains.log_normal:slope_of_level",
    "log-normal chain: means": "nmf_zoo.inference.hmm.chains.log_normal:draw_mean",
    "EM of chains: updates": "nmf_zoo.inference.hmm.exact:update",
    "particle EM: updates": "nmf_zoo.inference.hmm.particle_em:update",
    "particle Gibbs: weights": "nmf_zoo.inference.hmm.particle_gibbs:draw_weights",
    "particle Gibbs: rows of H": "nmf_zoo.inference.hmm.particle_gibbs:draw_rows",
    "conditional filter: resampling": "nmf_zoo.kernels.hmm.particles.conditional_filter:resample_given",
    "conditional filter: ancestors": "nmf_zoo.kernels.hmm.particles.conditional_filter:draw_ancestor",
    "conditional filter: keys": "nmf_zoo.kernels.hmm.particles.conditional_filter:fold",
    "naive smoothing: origins as they are": "tests.naive.hmm.particles.smoothing_sums:np.eye",
    # evidence
    "SMC: targets": "nmf_zoo.inference.evidence.smc:target_at",
    "SMC: resampling": "nmf_zoo.inference.evidence.smc:resample",
    "SMC: hyperparameters": "nmf_zoo.inference.evidence.smc:draw_given_cells",
    "SMC: rates of particles": "nmf_zoo.inference.evidence.smc:with_rates",
    "replicas: targets": "nmf_zoo.inference.evidence.replicas:target_at",
    "replicas: probability of an exchange": "nmf_zoo.inference.evidence.replicas:exchange_probability",
    "replicas: draws of the prior": "nmf_zoo.inference.evidence.replicas:draw_from_prior",
    "Chib's bridges: exchanges of components": "nmf_zoo.inference.evidence.chib_bridge:log_exchanges",
    "Chib's bridges: normal at the mode": "nmf_zoo.inference.evidence.chib_bridge:at_mode",
    "Chib by sources: components that exchange": "nmf_zoo.inference.evidence.chib:exchangeable",
    "enumeration: means of known components": (
        "nmf_zoo.inference.shared.layout:Weights.over_features",
        "nmf_zoo.inference.shared.layout:Weights.over_samples",
    ),
    # around the engines
    "check: samples of a block": "nmf_zoo.verbs.check:structure_of_samples",
    "registry": "nmf_zoo.inference.registry:REGISTRY",
    "alignment: components in order": "nmf_zoo.diagnostics.align:reordered",
    "convergence: components": "nmf_zoo.diagnostics.convergence:judge_components",
}


def plant(monkeypatch: pytest.MonkeyPatch, place: str, wrong: Callable[[Any], Any]) -> None:
    """Put ``wrong(right)`` in the place of the right piece."""
    for path in paths_of(place):
        owner, name = owner_of(path)
        monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))


def put(monkeypatch: pytest.MonkeyPatch, place: str, piece: Any) -> None:
    """Plant what is not made of the right piece: a number, a table, a function of its own."""
    plant(monkeypatch, place, lambda right: piece)


def check_seen(check: Callable[[int], None], most: int, match: str = "gate 2", least: int = 1) -> None:
    """Require that ``check(n)`` fails with an n of up to ``most``: an eighth of it first, then twice as many.

    A large error is seen early. ``match`` : what the check says then; ``python -m tests.power`` tabulates how many
    draws it took, ``least`` at the fewest.
    """
    n = max(most // 8, least)
    while True:
        try:
            check(n)
        except AssertionError as error:
            if re.search(match, str(error)):
                return
            if n == most:
                raise
        if n == most:
            pytest.fail(f"got a check that passed with {most:,}; expected it to fail: {match}")
        n = min(2 * n, most)


def paths_of(place: str) -> tuple[str, ...]:
    """Where a piece stands."""
    if place not in PLACES:
        near = get_close_matches(place, PLACES, n=5, cutoff=0.5)
        raise LookupError(f"place: got {place!r}; expected a name in PLACES, such as {near}; add a new one there")
    paths = PLACES[place]
    return (paths,) if isinstance(paths, str) else paths


def owner_of(path: str) -> tuple[Any, str]:
    """The module or class that has the piece, and its name there."""
    module, _, attribute = path.partition(":")
    *classes, name = attribute.split(".")
    return reduce(getattr, classes, import_module(module)), name
