"""The slopes of covariates given the activations: draws of them, and their mode.

The cells of a component are h_n ~ Gamma(a, r exp(-D_n . s)) with the design D (N, J) and its slopes s, whose prior is
normal. Given its activations their log density is concave, and costs O(N J)::

    sum_n (-a D_n . s - r h_n exp(-D_n . s)) + log p(s)

So it has one mode, to which Newton steps lead that are halved until no component loses.

A draw is a slice step along each of J directions, all components at once: the columns of the inverse root of
sum_n a D_n D_n' + 1 / sigma^2, which is the mean curvature, so that neither the units of covariates nor their
correlations matter. Hyperparameters of the rest of the prior see h_n exp(-D_n . s), which has the prior of a sample
whose covariates are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nmf_zoo.inference.shared.slice_sampling import slice_draw
from nmf_zoo.structure import Array, Factorisation, LogLinearGammaPrior

NEWTON_STEPS, HALVINGS, NEAR = 20, 40, 1e-10


def has_covariates(structure: Factorisation) -> bool:
    """Whether the prior of H depends on covariates of the samples."""
    return isinstance(structure.H.prior, LogLinearGammaPrior)


def draw_slopes(structure: Factorisation, H: Array, values: dict[str, Array], generator: np.random.Generator) -> None:
    """Draw the slopes given the activations (K, N), in place of their entry in ``values``."""
    prior, cells = structure.H.prior, H if structure.H.known is None else structure.H.known.part(H)
    covariates, (shape, rate) = prior.covariates, prior.base.shape_and_rate(values)
    design, (mu, sigma) = covariates.design, covariates.prior()
    slopes, shape = covariates.by_component(values[covariates.variable.name]), np.broadcast_to(shape, cells.shape)
    expected = rate * cells * np.exp(-slopes @ design.T)
    for steps in directions(shape, design, sigma):
        along = steps @ design.T
        slope = -np.sum(shape * along, axis=1) - np.sum((slopes - mu) * steps / sigma**2, axis=1)
        curve = np.sum((steps / sigma) ** 2, axis=1)

        def log_density(t: Array, expected=expected, along=along, slope=slope, curve=curve) -> Array:
            return t * (slope - t * curve / 2) - np.sum(expected * np.exp(-t[:, None] * along), axis=1)

        moved = slice_draw(log_density, np.zeros(len(slopes)), generator)[:, None]
        slopes, expected = slopes + moved * steps, expected * np.exp(-moved * along)
    values[covariates.variable.name] = covariates.as_variable(slopes)


def climb_slopes(structure: Factorisation, H: Array, values: Mapping[str, Array]) -> dict[str, Array]:
    """The values with the slopes at their mode given the activations (K, N) and all else, or on the way to it."""
    prior, cells = structure.H.prior, H if structure.H.known is None else structure.H.known.part(H)
    covariates, (shape, rate) = prior.covariates, prior.base.shape_and_rate(values)
    design, (mu, sigma) = covariates.design, covariates.prior()
    slopes, of_design = (
        covariates.by_component(values[covariates.variable.name]),
        np.broadcast_to(shape, cells.shape) @ design,
    )

    def expected(at: Array) -> Array:
        return rate * cells * np.exp(-at @ design.T)

    def log_density(at: Array) -> Array:
        of_prior = np.sum(np.square((at - mu) / sigma), axis=1) / 2
        return -np.sum(of_design * at, axis=1) - np.sum(expected(at), axis=1) - of_prior

    with np.errstate(over="ignore", invalid="ignore"):  # a step may lead beyond all numbers, which is no gain
        for _ in range(NEWTON_STEPS):
            here, now = expected(slopes), log_density(slopes)
            slope = here @ design - of_design - (slopes - mu) / sigma**2
            step = np.linalg.solve(curvature(here, design, sigma), slope[:, :, None])[:, :, 0]
            for _ in range(HALVINGS):
                is_loss = ~(log_density(slopes + step) >= now)
                step = np.where(is_loss[:, None], step / 2.0, step)
                if not is_loss.any():
                    break
            slopes = slopes + np.where(is_loss[:, None], 0.0, step)
            if np.all(np.abs(step) <= NEAR * (sigma + np.abs(slopes))):
                break
    return {**values, covariates.variable.name: covariates.as_variable(slopes)}


def log_prior_of_slopes(structure: Factorisation, values: Mapping[str, Array]) -> float:
    """0 where there are none."""
    if not has_covariates(structure):
        return 0.0
    variable = structure.H.prior.covariates.variable
    return float(np.sum(variable.prior.log_density(values[variable.name])))


def curvature(weights: Array, design: Array, sigma: Array) -> Array:
    """(K, J, J): sum_n weights_kn D_n D_n' + 1 / sigma^2"""
    precision = np.einsum("kn,ni,nj->kij", weights, design, design)
    return precision + np.square(1.0 / sigma)[:, :, None] * np.eye(design.shape[1])


def directions(shape: Array, design: Array, sigma: Array) -> Array:
    """(J, K, J): of each component, steps along which the density is about as wide as a standard normal one."""
    return np.moveaxis(np.linalg.inv(np.linalg.cholesky(curvature(shape, design, sigma))), 1, 0)


def at_base(structure: Factorisation) -> Factorisation:
    """The model that holds of H over the effects of covariates, where it has some."""
    if not has_covariates(structure):
        return structure
    return replace(structure, H=replace(structure.H, prior=structure.H.prior.base))


def effects_of(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """(N, K), by which covariates multiply H: 1 where components are known."""
    H, out = structure.H, np.ones(structure.H.shape)
    (out if H.known is None else H.known.part(out))[...] = H.prior.covariates.effects(values)
    return np.ascontiguousarray(out.T)
