"""Where a chain or a restart begins: the values given, else random factors at the scale of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.informed_starts import informed_start
from nmf_zoo.inference.layout import weigh
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factor, Factorisation, Fixed, GammaPrior, HyperPrior, InverseGammaPrior

STARTS = ("random", "nndsvd", "kmeans++")
SPREAD = 2.0  # gamma shape of the random start: chains start apart, but no cell starts near zero
FLOOR = 1e-10  # of a start, relative to its largest cell: an exact zero could never be left by an update


def start_factors(
    structure: Factorisation, key: np.uint64, start: Mapping[str, Array], method: str = "random"
) -> tuple[Array, Array]:
    """W (F, K) and Ht (N, K), newly made: fixed, given in ``start`` by variable name, or by ``method``.

    Where one factor is fixed or given, the other is random.
    """
    values = start_hyperparameters(structure, start)
    scale_w, scale_h = _scales(structure, values)
    known = any(factor.is_fixed or factor.name in start for factor in (structure.W, structure.H))
    if method != "random" and not known and structure.data is not None:
        W, Ht = informed_start(structure, key, method)
        balance = np.sqrt(scale_w / scale_h * Ht.mean() / W.mean())
        ratio = _ratio_to_data(structure, W, Ht)
        return W * (balance * np.sqrt(ratio)), Ht * (np.sqrt(ratio) / balance)
    W = _start_factor(structure.W, structure.W.shape, scale_w, child(key, 0), start)
    Ht = _start_factor(structure.H, structure.H.shape[::-1], scale_h, child(key, 1), start, turn=True)
    return W, Ht


def _start_factor(
    factor: Factor, shape, scale: float, key: np.uint64, start: Mapping[str, Array], turn: bool = False
) -> Array:
    given = factor.prior.value if isinstance(factor.prior, Fixed) else None
    if given is None and factor.name in start:
        given = factor.orient(np.asarray(start[factor.name], dtype=np.float64))
        given = np.maximum(given, FLOOR * given.max())
    if given is not None:
        return np.array(given.T if turn else given, dtype=np.float64, order="C")
    out = np.empty(shape)
    draw_factor(out, np.broadcast_to(SPREAD, shape), np.broadcast_to(SPREAD / scale, shape), 0, shape[0], key)
    return out


def _scales(structure: Factorisation, values: Mapping[str, Array]) -> tuple[float, float]:
    """Sizes of W's and H's cells with which W H has the mean of the data, in the proportion of their prior means."""
    W, H = structure.W, structure.H
    prior_w, prior_h = _prior_mean(W, values), _prior_mean(H, values)
    if structure.data is None:
        return prior_w, prior_h
    # with cells of the right proportion, the total mean is off by one factor, shared by what is not fixed
    Ht = H.prior.value.T if H.is_fixed else np.full(H.shape[::-1], prior_h)
    left = W.prior.value if W.is_fixed else np.full(W.shape, prior_w)
    ratio = _ratio_to_data(structure, left, Ht)
    share = ratio if W.is_fixed or H.is_fixed else np.sqrt(ratio)
    return prior_w * share, prior_h * share


def _ratio_to_data(structure: Factorisation, W: Array, Ht: Array) -> float:
    """The total of the data over that of their mean at these factors; 1 where no cell is observed or a factor is 0."""
    total, of_data = weigh(structure).total(W, Ht), float(structure.data.observed_values.sum())
    of_data = max(of_data, structure.likelihood.least_total) or 1.0
    return of_data / total if total > 0 else 1.0


def _prior_mean(factor: Factor, values: Mapping[str, Array]) -> float:
    """The typical size of a cell under its prior; 1 where there is none."""
    if isinstance(factor.prior, InverseGammaPrior):  # its mean may be infinite, and is far above most cells
        shape, scale = factor.prior.shape_and_scale(values)
        return float(np.exp(np.mean(np.log(scale / shape))))
    if not isinstance(factor.prior, GammaPrior):
        return 1.0
    shape, rate = factor.prior.shape_and_rate(values)
    return float(np.exp(np.mean(np.log(shape / rate))))


def check_start(method: str) -> None:
    """Refuse a way to start that does not exist."""
    if method not in STARTS:
        raise InputError("start", repr(method), f"one of {list(STARTS)}")


def start_hyperparameters(structure: Factorisation, start: Mapping[str, Array]) -> dict[str, Array]:
    """A value of every unknown hyperparameter: the one given, else the middle of its prior."""
    values = {}
    for name, unknown in structure.unknowns.items():
        middle = start[name] if name in start else _middle(unknown.prior)
        values[name] = np.array(np.broadcast_to(middle, unknown.variable_shape), dtype=np.float64)
        with np.errstate(all="ignore"):
            density = unknown.prior.log_density(values[name])
        if not np.all(np.isfinite(density)):
            got = f"values from {values[name].min()} to {values[name].max()}"
            raise InputError(f"initvals[{name!r}]", got, f"values inside its {unknown.prior.kind} prior")
    return values


def _middle(prior: HyperPrior) -> Array | float:
    """A point well inside a hyperprior."""
    return MIDDLES[prior.kind](*prior.args)


MIDDLES: dict[str, Callable[..., Array | float]] = {
    "flat": lambda: 1.0,
    "gamma": lambda shape, rate: shape / rate,
    "inverse_gamma": lambda shape, scale: scale / (shape + 1),
    "lognormal": lambda mu, sigma: np.exp(mu),
    "half_normal": lambda sigma: sigma,
    "uniform": lambda lower, upper: (lower + upper) / 2,
    "beta": lambda a, b: a / (a + b),
    "normal": lambda mu, sigma: mu,
}
