"""Draws of the slopes of covariates, given the activations or given the counts of each component.

The cells of a component are h_n ~ Gamma(a, r exp(-eta_n)) with eta = D s of its slopes s, whose prior is normal. Given
its activations the log density of s is::

    sum_n (-a eta_n - r h_n exp(-eta_n)) + log p(s)

and given the counts c_n of its sources, with the activations integrated out and v_n the sum of the weights that a
sample sees::

    sum_n (-a eta_n - (a + c_n) log(r exp(-eta_n) + v_n)) + log p(s)

Both are concave, and cost O(N J) for a component. A draw is a slice step along each of J directions, all components at
once: the columns of the inverse root of sum_n a D_n D_n' + 1 / sigma^2, which is the mean curvature given H, so that
neither the units of covariates nor their correlations matter. The second makes H and s one block where H is drawn next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nmf_zoo.inference.shared.slice_sampling import slice_draw
from nmf_zoo.structure import Array, Covariates, Factorisation, LogLinearGammaPrior

LogDensity = Callable[[Array], Array]  # of eta (K, N), summed over samples: (K,)


def has_covariates(structure: Factorisation) -> bool:
    """Whether the prior of H depends on covariates of the samples."""
    return isinstance(structure.H.prior, LogLinearGammaPrior)


def draw_slopes(structure: Factorisation, H: Array, values: dict[str, Array], generator: np.random.Generator) -> None:
    """Draw the slopes given the activations (K, N), in place of their entry in ``values``."""
    prior, cells = structure.H.prior, H if structure.H.known is None else structure.H.known.part(H)
    shape, rate = (np.broadcast_to(own, cells.shape) for own in prior.base.shape_and_rate(values))
    scaled = rate * cells

    def log_density(eta: Array) -> Array:
        return -np.sum(shape * eta + scaled * np.exp(-eta), axis=1)

    _draw(prior.covariates, shape, log_density, values, generator)


def draw_slopes_of_sources(
    structure: Factorisation, counts: Array, weights: Array, values: dict[str, Array], generator: np.random.Generator
) -> None:
    """The same given the counts of components (N, K), and the weights (N or 1, K) that their samples see."""
    prior, known = structure.H.prior, structure.H.known
    counts, weights = (own.T if known is None else known.part(own.T) for own in (counts, weights))
    shape, rate = (np.broadcast_to(own, counts.shape) for own in prior.base.shape_and_rate(values))
    total = shape + counts

    def log_density(eta: Array) -> Array:
        return -np.sum(shape * eta + total * np.log(rate * np.exp(-eta) + weights), axis=1)

    _draw(prior.covariates, shape, log_density, values, generator)


def _draw(
    covariates: Covariates,
    shape: Array,
    log_density: LogDensity,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> None:
    design, (mu, sigma) = covariates.design, covariates.prior()
    slopes = covariates.by_component(values[covariates.variable.name])
    for steps in _directions(shape, design, sigma):
        eta, along = slopes @ design.T, steps @ design.T

        def log_density_along(t: Array, start=slopes, steps=steps, eta=eta, along=along) -> Array:
            z = (start + t[:, None] * steps - mu) / sigma
            return log_density(eta + t[:, None] * along) - 0.5 * np.sum(np.square(z), axis=1)

        moved = slice_draw(log_density_along, np.zeros(len(slopes)), generator)
        slopes = slopes + moved[:, None] * steps
    values[covariates.variable.name] = covariates.as_variable(slopes)


def _directions(shape: Array, design: Array, sigma: Array) -> Array:
    """(J, K, J): of each component, steps along which the density is about as wide as a standard normal one."""
    precision = np.einsum("kn,ni,nj->kij", shape, design, design)
    precision += np.square(1.0 / sigma)[:, :, None] * np.eye(design.shape[1])
    return np.moveaxis(np.linalg.inv(np.linalg.cholesky(precision)), 1, 0)


def at_base(structure: Factorisation) -> Factorisation:
    """The model that H has, divided by the effects of covariates: what hyperparameters see."""
    return replace(structure, H=replace(structure.H, prior=structure.H.prior.base))


def effects_of(structure: Factorisation, values: dict[str, Array]) -> Array:
    """(N, K), by which covariates multiply H: 1 where components are known."""
    H, out = structure.H, np.ones(structure.H.shape)
    (out if H.known is None else H.known.part(out))[...] = H.prior.covariates.effects(values)
    return np.ascontiguousarray(out.T)
