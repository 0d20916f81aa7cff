"""The optima that a search has found: which fits came to the same one, how often, and what found it first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import number_of
from nmf_zoo.search.components import SearchComponents, likeness, paired
from nmf_zoo.search.options import Search
from nmf_zoo.structure import Array

Point = Mapping[str, Array]  # values by variable name, as ``initvals``

SAME = 1e-5  # relative difference of two objectives at one optimum: fits stop short of it
KEPT = 32  # optima whose components are kept
NEAR = 5.0  # nats by which a bound may be lower for its mode to hold a part of the posterior that counts
ALIKE = 0.98  # likeness of all paired components of two fits at one optimum


@dataclass
class Optimum:
    """One of them.

    Attributes
    ----------
    objective : the best of the fits that came here
    point, components : of that fit: values by variable name, and its components; None far below the best
    way, number : how the fit that came here first began, and its number
    found : how many fits came here
    fitted, source : what the best of them gave, and its number; None where it is not near the best
    """

    objective: float
    point: Point | None
    components: SearchComponents | None
    way: str
    number: int
    found: int = 1
    fitted: Any = None
    source: int = 0


@dataclass
class Optima:
    """All that were found, the best first.

    Attributes
    ----------
    maximise : whether a higher objective is better: it is a bound
    fits, iterations : the work done
    left : fits that fell behind others and did not go on to an optimum
    replay : the search that does the same work; None where none can
    """

    maximise: bool
    found: list[Optimum] = field(default_factory=list)
    fits: int = 0
    iterations: int = 0
    left: int = 0
    replay: Search | None = None

    def add(self, new: Optimum, fitted: Any, iterations: int) -> None:
        """Count a fit."""
        self.fits += 1
        self.iterations += iterations
        new.fitted, new.source = fitted, new.number
        known = next((one for one in self.found if are_same(one, new)), None)
        if known is None:
            self.found.append(new)
        else:
            known.found += 1
            if self._goodness(new) > self._goodness(known):
                known.objective, known.point, known.components = new.objective, new.point, new.components
                known.fitted, known.source = new.fitted, new.source
        self.found.sort(key=self._goodness, reverse=True)
        for one in self.found[KEPT:]:
            one.point = one.components = None
        for one in self.found[1:]:
            if not self._is_near(one):
                one.fitted = None

    def leave(self, iterations: int) -> None:
        """Count a fit that fell behind the others."""
        self.fits += 1
        self.left += 1
        self.iterations += iterations

    def go_on(self, fitted: Any, iterations: int, point: Point, components: SearchComponents) -> None:
        """The best fit has gone on for so many iterations, to where these are."""
        best = self.best
        best.objective, best.fitted, best.point, best.components = fitted.objective[-1], fitted, point, components
        self.iterations += iterations

    def found_all(self, enough: int | None) -> bool:
        """Whether ``enough`` fits came to the best optimum, and more than one to every other; None is never enough."""
        return enough is not None and self.best.found >= enough and all(one.found > 1 for one in self.found)

    def _is_near(self, optimum: Optimum) -> bool:
        return self.maximise and self.best.objective - optimum.objective <= NEAR

    def near(self) -> list[Optimum]:
        """The best, and those that hold a part of the posterior that counts, as far as a bound can tell."""
        return [one for one in self.found if one is self.best or self._is_near(one)]

    def _goodness(self, optimum: Optimum) -> float:
        return optimum.objective if self.maximise else -optimum.objective

    @property
    def best(self) -> Optimum:
        """The best one."""
        return self.found[0]

    def table(self) -> dict[str, list]:
        """By optimum its objective, how often and by what it was found, and how near the best."""
        return {
            "objective": [float(one.objective) for one in self.found],
            "found": [one.found for one in self.found],
            "way": [one.way for one in self.found],
            "first": [one.number for one in self.found],
            "likeness": [closeness(self.best.components, one.components) for one in self.found],
        }

    @property
    def work(self) -> dict[str, Any]:
        """What was done, and the search that does it again."""
        replay = "" if self.replay is None else f"nz.{self.replay}"
        return {"fits": self.fits, "left": self.left, "iterations": self.iterations, "replay": replay}

    def note(self) -> str:
        """For the progress bar."""
        if not self.found:
            return ""
        times = number_of(self.fits - self.left, "time")
        return f"best {self.best.objective:.8g} ({self.best.way}), found {self.best.found} of {times}"


def dataset_of(table: Mapping[str, list], **attrs: Any) -> xr.Dataset:
    """The group ``search`` of a result, of :meth:`Optima.table`."""
    dataset = xr.Dataset({name: ("optimum", np.array(values)) for name, values in table.items()})
    return dataset.assign_coords(optimum=np.arange(dataset.sizes["optimum"])).assign_attrs(attrs)


def are_same(one: Optimum, other: Optimum) -> bool:
    """Whether two fits came to one optimum, short of it by their tolerance."""
    near = abs(one.objective - other.objective) <= SAME * max(abs(one.objective), abs(other.objective))
    if not near or one.components is None or other.components is None:
        return near
    return bool(np.min(_of_pairs(one.components, other.components)) >= ALIKE)


def closeness(one: SearchComponents | None, other: SearchComponents | None) -> float:
    """The mean likeness of paired components, weighted by their sizes; NaN where they were not kept."""
    if one is None or other is None:
        return np.nan
    return float(np.average(_of_pairs(one, other), weights=np.maximum(one.sizes, 1e-300)))


def _of_pairs(one: SearchComponents, other: SearchComponents) -> Array:
    return np.diag(likeness(one, paired(one, other)))
