"""Priors of priors that shrink: rates of rows and columns (HPF), and a relevance for each component (ARD).

Both are plain PyMC statements, which one can write out and change; engines read them like any other declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.models.hyperparameters import ACTIVATIONS
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.known import LEFT, CheckedComponents, declare_weights, is_refit
from nmf_zoo.models.offsets import OuterProduct, PerCell
from nmf_zoo.options import check_types, names_checked

Array = np.ndarray
OF_DATA = 1.0  # the mean of X where there are no data


@names_checked
@dataclass(frozen=True, kw_only=True)
class HPF:
    """Hierarchical Poisson factorisation: every row of W and every column of H has a rate with a gamma prior.

    Features and samples may be as popular and as active as they are: what is common to a row or a column is in its
    rate, and components tell the rest. The model of hpfrec and scHPF.

    Attributes
    ----------
    shape, mean : of the rates, ``beta_w`` (feature) and ``beta_h`` (obs), a priori

    References
    ----------
    P. Gopalan, J. M. Hofman, D. M. Blei (2015), Scalable recommendation with hierarchical Poisson factorization, UAI.
    H. M. Levitin et al. (2019), De novo gene signature identification from single-cell RNA-seq with hierarchical
    Poisson factorization, Molecular Systems Biology 15, e8557.
    """

    shape: float = 0.3
    mean: float = 1.0

    def __post_init__(self):
        check_types(self)
        check_positive(self, "shape", "mean")

    alpha = 0.3  # of the cells, where none is given: no field, hence no annotation
    is_mean, is_half_normal = False, False

    def declare(self, inputs: Inputs) -> tuple[TensorVariable, TensorVariable]:
        """Rates of W (F, 1) and of H (1, N)."""
        return self._rates("beta_w", "feature")[:, None], self.declare_h()

    def declare_h(self) -> TensorVariable:
        """Rates of H (1, N) alone, where all of W is known."""
        return self._rates("beta_h", "obs")[None, :]

    def _rates(self, name: str, dim: str) -> TensorVariable:
        return pm.Gamma(name, np.float64(self.shape), np.float64(self.shape / self.mean), dims=dim)


@names_checked
@dataclass(frozen=True, kw_only=True)
class ARD:
    """Automatic relevance determination: one relevance for each component, the mean of its cells in both W and H.

    A component that the data don't need keeps a small relevance. Of exponential cells, Tan and Fevotte's l1-ARD, it is
    the mean (``alpha_w`` and ``alpha_h`` are 1 unless given), and the variable is ``relevance``. Of half-normal ones,
    their l2-ARD, it is the variance, ``relevance_variance``. Known components have none: the prior mean of their
    activations is such that each has an equal part of the mean of X.

    Attributes
    ----------
    shape : of the inverse-gamma prior of the relevance (component), above 2, or above 1 with half-normal cells
    scale : of that prior; None: so that the prior mean of X is that of the data, at shapes of 1
    cells : of W and H: "exponential" (gamma with other shapes), or "half-normal"
    law : "inverse-gamma" of the relevance, or "gamma" of one over it, ``relevance_rate`` or ``relevance_precision``
        (component), with the same shape and, as its rate, the same scale. It is the same model in another variable, so
        that the mode of the density is another point (EM), and nothing else changes

    References
    ----------
    V. Y. F. Tan, C. Fevotte (2013), Automatic relevance determination in nonnegative matrix factorization with the
    beta-divergence, IEEE Trans. Pattern Analysis and Machine Intelligence 35(7).
    """

    shape: float = 5.0
    scale: float | None = None
    cells: Literal["exponential", "half-normal"] = "exponential"
    law: Literal["inverse-gamma", "gamma"] = "inverse-gamma"

    def __post_init__(self):
        check_types(self)
        check_positive(self, "shape", *(["scale"] if self.scale is not None else []))
        least = 1 if self.is_half_normal else 2
        if not self.shape > least:
            raise InputError("shape", repr(self.shape), f"a number > {least}: below, X has no mean a priori")

    alpha = 1.0

    @property
    def is_mean(self) -> bool:
        """Whether what is declared are means, not rates (variances, not precisions)."""
        return self.law == "inverse-gamma"

    @property
    def is_half_normal(self) -> bool:
        return self.cells == "half-normal"

    @property
    def name(self) -> str:
        """Of the variable: by what it is to the cells."""
        if self.is_half_normal:
            return "relevance_variance" if self.is_mean else "relevance_precision"
        return "relevance" if self.is_mean else "relevance_rate"

    def declare(self, inputs: Inputs) -> tuple[TensorVariable, TensorVariable]:
        """Means or rates, variances or precisions, of W (1, K) and of H (K, 1)."""
        relevance = self._relevances(inputs, "component")
        return relevance[None, :], relevance[:, None]

    def declare_beside(self, inputs: Inputs, known: Array) -> tuple[TensorVariable, TensorVariable]:
        """Those of new components, of W (1, new) and of H beside those of known ones (F, known), (K, 1)."""
        relevance = self._relevances(inputs, LEFT.new)
        of_known = pt.constant(self._of_known(inputs, known))
        return relevance[None, :], pt.concatenate([of_known, relevance])[:, None]

    def declare_h(self, inputs: Inputs, known: Array) -> TensorVariable:
        """Those of H (K, 1) alone, where all of W is known."""
        return pt.constant(self._of_known(inputs, known)[:, None])

    def _relevances(self, inputs: Inputs, dim: str) -> TensorVariable:
        own = np.float64(self.shape), np.float64(self._scale(inputs) if self.scale is None else self.scale)
        return (pm.InverseGamma if self.is_mean else pm.Gamma)(self.name, *own, dims=dim)

    def _of_known(self, inputs: Inputs, known: Array) -> Array:
        """(known,) of activations with which a known component has, a priori, its part of the mean of X at any rank."""
        mean = mean_of_data(inputs) / inputs.rank / known.mean(axis=0)
        with np.errstate(all="ignore"):
            found = np.square(mean) * np.pi / 2 if self.is_half_normal else mean
            found = found if self.is_mean else 1.0 / found
        if not np.all((np.finfo(float).tiny <= found) & (found < np.inf)):
            got = f"components whose activations would have {self.name}s from {found.min():g} to {found.max():g}"
            raise InputError("known", got, "numbers from 1e-307 to 1e308", "change their unit")
        return found

    def _scale(self, inputs: Inputs) -> float:
        """With the relevances' moments E[W H] = K E[r^2], or K (2 / pi) E[r] of half-normal cells with variance r."""
        mean = mean_of_data(inputs) / inputs.rank
        if self.is_half_normal:
            scale = (self.shape - 1) * mean * np.pi / 2
        else:
            scale = np.sqrt((self.shape - 1) * (self.shape - 2) * mean)
        if not np.finfo(float).tiny <= scale < np.inf:  # its reciprocal, which the prior takes, would be no number
            do = "change their unit, or give nz.ARD(scale=...)"
            raise InputError("X", f"data for which the prior's scale is {scale:g}", "one from 1e-307 to 1e308", do)
        return scale

    def half_normal(self, relevance: TensorVariable) -> dict[str, TensorVariable]:
        """The parameter of ``pm.HalfNormal``, of what `declare` gives."""
        return {"sigma": pm.math.sqrt(relevance)} if self.is_mean else {"tau": relevance}


Hierarchy = HPF | ARD
NAMED: dict[str, type[HPF] | type[ARD]] = {"hpf": HPF, "ard": ARD}


def check_hierarchy(prior: Any, others: Mapping[str, Any], shapes: Mapping[str, Any]) -> Hierarchy | None:
    """``prior=``: a name or a recipe, beside which the arguments that it stands for are left out.

    ``others`` are rates and means, ``shapes`` those of gamma cells.
    """
    if prior is None:
        return None
    if isinstance(prior, str) and prior in NAMED:
        prior = NAMED[prior]()
    if not isinstance(prior, Hierarchy):
        raise not_one_of("prior", prior, NAMED, ", nz.HPF(...) or nz.ARD(...)")
    given = [name for name, value in others.items() if value is not None]
    if given:
        expected = f"{given[0]} to be left out beside prior=, which declares the rates or means"
        raise InputError(given[0], "a value", expected, "drop one of them")
    given = [name for name, value in shapes.items() if value is not None]
    if given and prior.is_half_normal:
        raise InputError(given[0], "a value", f"{given[0]} to be left out: half-normal cells have no shape")
    return prior


def declare_hierarchy(
    hierarchy: Hierarchy, inputs: Inputs, known: CheckedComponents | None
) -> tuple[TensorVariable | None, TensorVariable]:
    """What it is to W, None where all of W is known, and what to H."""
    if known is None or (isinstance(hierarchy, HPF) and not is_refit(inputs)):
        return hierarchy.declare(inputs)
    if isinstance(hierarchy, HPF):
        return None, hierarchy.declare_h()
    if is_refit(inputs):
        return None, hierarchy.declare_h(inputs, known.values)
    return hierarchy.declare_beside(inputs, known.values)


def declare_half_normals(
    prior: ARD, inputs: Inputs, known: CheckedComponents | None
) -> tuple[TensorVariable, TensorVariable]:
    """W and H with half-normal cells."""
    of_w, of_h = declare_hierarchy(prior, inputs, known)

    def of_new(name: str, dims: tuple[str, str]) -> TensorVariable:
        assert of_w is not None, "all components are known"
        return pm.HalfNormal(name, **prior.half_normal(of_w), dims=dims)

    return declare_weights(known, of_new), pm.HalfNormal("H", **prior.half_normal(of_h), dims=ACTIVATIONS)


def check_beside_known(prior: Any, hierarchy: Hierarchy | None, strength: float | None) -> None:
    """Beside a hierarchy known components are fixed."""
    if hierarchy is not None and strength is not None:
        raise InputError("prior", repr(prior), "None beside known_strength=", "give alpha_w and beta_w")


def check_positive(recipe: Any, *names: str) -> None:
    for name in names:
        if not 0 < getattr(recipe, name) < np.inf:
            raise InputError(name, repr(getattr(recipe, name)), "a finite number > 0")


def mean_of_data(inputs: Inputs) -> float:
    """The mean of the observed cells in units of the exposure; of nothing, or of zeros, `OF_DATA`."""
    seen, exposure = inputs.observed, inputs.exposure
    if seen is None or not seen.values.any():
        return OF_DATA
    n_cells = inputs.shape[0] * inputs.shape[1] if seen.is_complete and seen.is_sparse else seen.values.size
    if isinstance(exposure, OuterProduct):
        unit = np.mean(exposure.of_features) * np.mean(exposure.of_samples)
    else:
        unit = np.mean(exposure.values if isinstance(exposure, PerCell) else 1.0 if exposure is None else exposure)
    return float(np.sum(seen.values) / n_cells / unit)
