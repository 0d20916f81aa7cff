"""What the sections of a report are made from: a result, its model where that is given, and the chain that is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics.align import align
from nmf_zoo.diagnostics.coverage import Coverage, coverage_of
from nmf_zoo.inference.registry import named
from nmf_zoo.inference.shared.joint import log_joints
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.prediction.misfit import coverage_attribute
from nmf_zoo.results.block_store import BLOCKS
from nmf_zoo.results.component_order import REPORT, as_they_are, draws_in_order, relative_sizes
from nmf_zoo.results.components import joined
from nmf_zoo.results.factor_draws import FactorDims, factor_dims, log_sizes, weights_of
from nmf_zoo.results.posterior import best_chain, check_labels, draws_or_means, spaced, variable_of, with_known_weights
from nmf_zoo.results.trace_storage import MOMENTS
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.structure import Factorisation

MOST_BYTES = 1 << 30  # of draws of W and H that are aligned
MOST_DRAWS = 500  # of a chain that pictures are made of
MOST_COMPONENTS = 24  # that are drawn
LONGEST_LABEL = 24  # letters of a label in a picture


@dataclass(frozen=True)
class Source:
    """A result and what is known of it.

    Attributes
    ----------
    idata : the result
    model, structure : its declaration, or None
    weights, activations : names of the factors
    image_shape : of a feature vector that is an image, or None
    """

    idata: Any
    model: pm.Model | None
    structure: Factorisation | None
    weights: str
    activations: str
    image_shape: tuple[int, int] | None

    def has(self, name: str) -> bool:
        return name in _compat.group_names(self.idata)

    def group(self, name: str) -> xr.Dataset:
        return _compat.group(self.idata, name)

    @property
    def attrs(self) -> dict[str, Any]:
        return {str(name): value for name, value in self.idata.attrs.items()}

    @cached_property
    def unknown(self) -> xr.Dataset:
        """Draws, or one draw of each chain that is the mean."""
        return draws_or_means(self.idata)

    @cached_property
    def posterior(self) -> xr.Dataset:
        """The same, and known weights beside them."""
        return with_known_weights(self.idata, self.unknown, self.weights)

    @property
    def names(self) -> dict[str, Any]:
        return {"weights": self.weights, "activations": self.activations}

    @property
    def is_fit(self) -> bool:
        return self.has("fit")

    @property
    def is_stream(self) -> bool:
        return self.is_fit and "objective" not in self.group("fit")

    @property
    def came_in_blocks(self) -> bool:
        """Whether the data of the run were ``data=``, of which the result says what they were and holds none."""
        return BLOCKS in self.attrs

    @property
    def is_sampled(self) -> bool:
        """Whether there are draws of a sampler, whose convergence is in question."""
        return self.has("posterior") and not self.is_fit

    @property
    def draws_text(self) -> str:
        """``4 chains x 1000 draws``"""
        kept = next((name for name in ("posterior", "sample_stats") if self.has(name)), None)
        group = self.posterior if kept is None else self.group(kept)
        one = "restart" if self.is_fit and not self.is_stream else "chain"
        words = ((one, group.sizes["chain"]), ("draw", group.sizes["draw"]))
        return " x ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in words)

    @property
    def shape(self) -> tuple[int | None, int | None, int | None]:
        """Features, samples and components; None where neither the model nor the result tells."""
        if self.structure is not None:
            return (*self.structure.shape, self.structure.rank)
        features = samples = rank = None
        if self.weights in self.posterior:
            W, component = weights_of(self.posterior, self.weights, self.activations)
            rank = W.sizes[component]
            features = int(np.prod([W.sizes[dim] for dim in W.dims if dim not in {"chain", "draw", component}]))
        if self.activations in self.posterior:
            sizes = self.posterior[self.activations].transpose("chain", "draw", ...).shape[2:]
            rank = sizes[0] if rank is None else rank
            samples = sizes[1] if sizes[0] == rank else sizes[0]
        return features, samples, rank

    def check_model(self) -> None:
        """Refuse a model whose factors have another shape, or labels in another order, than the draws."""
        if self.structure is None:
            return
        for factor in (self.structure.W, self.structure.H):
            if factor.name in self.unknown:
                variable_of(self.unknown, self.structure, factor.name, factor.variable_shape)
                check_labels(self.unknown, self.structure, [factor.name])

    @cached_property
    def log_joints(self) -> tuple[float, float] | None:
        """lp of the last draw as the result has it and as the model does, where one of our engines wrote it."""
        found = named(str(self.attrs.get("engine")))
        ours = any(isinstance(entry, Engine) for entry in found) and self.has("posterior") and self.has("sample_stats")
        if self.structure is None or self.structure.data is None or not ours:
            return None
        factors = [factor.name for factor in (self.structure.W, self.structure.H) if not factor.is_fixed]
        names = [*factors, *self.structure.unknowns]
        if self.structure.imputed is not None or not set(names) <= set(self.posterior.data_vars):
            return None
        last = {name: self.posterior[name].transpose("chain", "draw", ...)[0, -1:].to_numpy() for name in names}
        stored = self.group("sample_stats")["lp"].transpose("chain", "draw")[0, -1]
        return float(stored), float(log_joints(self.structure, last)[0])

    @cached_property
    def coverage(self) -> Coverage | None:
        """What is known of predictive intervals: from the run, or of anyone's draws from the model."""
        told = coverage_of(self.attrs)
        if told is not None or self.structure is None or not self.has("posterior"):
            return told
        draws = self.posterior.isel(chain=[0]) if self.is_fit else self.posterior
        return coverage_of(coverage_attribute(draws, self.structure, seed_key(0)))

    @cached_property
    def why_unaligned(self) -> str:
        """Why the components are shown as they were drawn; empty where they are aligned."""
        if self.is_fit:
            return "restarts are shown one by one"
        if not self.has("posterior"):
            return "means and variances were kept, and alignment needs draws"
        missing = [name for name in (self.weights, self.activations) if name not in self.posterior]
        if not missing and self.weights not in self.unknown:
            return f"{self.weights} is known, and its components are in one order in every chain"
        if missing:
            return f"the result holds no {' and no '.join(missing)}"
        return (
            "" if self.size <= MOST_BYTES else f"{self.size / (1 << 30):.1f} GB of draws are more than a report aligns"
        )

    @cached_property
    def aligned(self) -> Any:
        """The result with its components aligned, the largest first unless it was aligned; None where they can't be."""
        if REPORT in _compat.group_names(self.idata):
            return self.idata
        return None if self.why_unaligned else align(self.idata, **self.names)

    @cached_property
    def chain(self) -> int:
        """The chain that is shown where one is: the best one, of a fit the best restart."""
        return int(self.posterior["chain"][best_chain(self.idata)])

    @cached_property
    def whole(self) -> Any:
        """The chains that are shown as one, components in order, not more draws than a picture can use."""
        return self._result(self._joined([str(name) for name in self.posterior.data_vars]))

    def _joined(self, names: list[str]) -> xr.Dataset:
        """Of these variables."""
        chains = list(draws_in_order(self.idata, self.shown_chain, **self.names, names=names))
        few = -(-MOST_DRAWS // len(chains))
        thin = [one if one.sizes["draw"] <= few else one.isel(draw=spaced(one.sizes["draw"], few)) for one in chains]
        return joined(one.load() for one in thin)

    def _result(self, group: xr.Dataset) -> Any:
        return _compat.inference_data(as_they_are(group, self.weights, self.activations), self.attrs)

    @property
    def shown_chain(self) -> int | None:
        """The one chain that is shown where there are too many draws for all of them."""
        return self.chain if self.size > MOST_BYTES else None

    @property
    def size(self) -> int:
        """Bytes of the draws of the factors."""
        return sum(self.unknown[name].nbytes for name in self.names.values() if name in self.unknown)

    @cached_property
    def complete_data(self) -> np.ndarray | None:
        """X where the result holds all of it, as a matrix that fits W and H."""
        if not self.has("observed_data"):
            return None
        for array in self.group("observed_data").data_vars.values():
            values = array.to_numpy()
            if values.shape == self.shape[:2] and np.isfinite(values).all():
                return values
        return None

    @cached_property
    def shown(self) -> Any:
        """The same with no more components than a picture has room for, the largest ones, in order."""
        group = _compat.group(self.whole, "posterior")
        if self.weights not in group:
            return self.whole
        return self._result(_components_at(self._largest, group, factor_dims(group, **self.names)))

    @cached_property
    def shown_weights(self) -> Any:
        """The weights of these: draws also where there are but means of activations, as of runs over blocks."""
        if not (self.has(MOMENTS) and self.has("posterior") and self.weights in self.group("posterior")):
            return self.shown
        dims = factor_dims(self.posterior, **self.names)
        draws = self._joined([self.weights]).transpose(..., dims.feature, dims.component)
        return self._result(_components_at(self._largest, draws, dims))

    @cached_property
    def _largest(self) -> np.ndarray:
        """Places of the components that add most to W H, in the order that they have."""
        group = _compat.group(self.whole, "posterior")
        sizes = relative_sizes(log_sizes(group, factor_dims(group, **self.names))).mean(axis=(0, 1))
        return np.sort(np.argsort(-sizes, kind="stable")[:MOST_COMPONENTS])

    def drawable(self, result: Any) -> Any:
        """The same with labels that pictures have room for."""
        group = _compat.group(result, "posterior")
        texts = {name: coord for name, coord in group.coords.items() if coord.dtype.kind in "UO"}
        short = {name: (coord.dims, [_short(str(text)) for text in coord.values]) for name, coord in texts.items()}
        return self._result(group.assign_coords(short))


def _short(label: str) -> str:
    """Its beginning, and dollar signs that don't begin a formula."""
    cut = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
    return cut.replace("$", r"\$")


def _components_at(places: np.ndarray, group: xr.Dataset, dims: FactorDims) -> xr.Dataset:
    """These components alone."""
    return group.isel({dim: places for dim in {dims.component, dims.own} if dim in group.dims})
