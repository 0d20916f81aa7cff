"""A case of the campaign: an engine, and the lines of a program that hands it some data, a model and options."""

from __future__ import annotations

from dataclasses import dataclass

from tests.property.everything.models import SUITED_TO_ALL, models
from tests.property.everything.picks import Picks
from tests.property.everything.runs import ALL, DECLARATIONS, ENGINES, STREAM_OPTIONS, SUITED, afterwards, options, runs

IMPORTS = """\
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from tests.property.everything import check
"""
WEIGHTS = {"em": 25, "vb": 16, "gibbs": 18, "mcem": 8, "hmm_exact": 6, "particle_em": 5, "particle_gibbs": 6, "nuts": 1}
WEIGHTS |= {"smc": 3, "OnlineEM": 5, "SimulatedOnlineEM": 4, "ChainOnlineEM": 3, "ParticleOnlineEM": 3}
assert set(WEIGHTS) == set(ENGINES), "an engine without cases, or cases without an engine"
PLACES = ("table", "rank", "hyperparameter", "offset", "known", "keyword", "options", "run")


@dataclass(frozen=True)
class Case:
    """``lines`` : the program without its imports. ``illegal`` : what in it must be refused, or "" """

    engine: str
    lines: tuple[str, ...]
    illegal: str = ""

    @property
    def source(self) -> str:
        """The program, as it can be run from the checkout."""
        return "\n".join([IMPORTS, *self.lines, ""])


def case_of(pick: Picks, engines=ENGINES) -> Case:
    """A program; one in eight has something illegal in it."""
    name = pick([engine for engine in engines for _ in range(WEIGHTS[engine])])
    place = pick(PLACES) if pick.once_in(8) else ""
    is_suited = not pick.once_in(12)
    names, suited = (DECLARATIONS[name], SUITED[name]) if is_suited else (ALL, SUITED_TO_ALL)
    needs_data = name not in STREAM_OPTIONS and not pick.once_in(40)
    model = models(pick, names, suited, place, needs_data)
    engine = options(pick, name, model.kind, place == "options")
    lines = [f"rng = np.random.default_rng({pick(range(1000))})", *model.lines]
    run, wrong = runs(pick, name, model, engine, place == "run")
    lines += run
    lines.append("check.result(idata, model)")
    after = afterwards(pick, name, model)
    lines += after.split("; ") if after else []
    if any("folder" in line for line in lines):
        lines.insert(0, "folder = Path(tempfile.mkdtemp())")
    return Case(name, tuple(lines), model.illegal or wrong)
