"""A case of the campaign: an engine, and the lines of a program that hands it some data, a model and options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tests.property.everything.models import SUITED_TO_ALL, models
from tests.property.everything.picks import Picks
from tests.property.everything.runs import (
    ALL,
    COUNT_MODELS,
    DECLARATIONS,
    ENGINES,
    MEASURED,
    OVERDISPERSED,
    SELDOM,
    STREAM_OPTIONS,
    SUITED,
    SUITED_TO_MEASURED,
    SUITED_TO_OVERDISPERSED,
    after_blocks,
    afterwards,
    fits_of_blocks,
    options,
    runs,
)

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


# What a case is of. Earlier models are a family of their own: their seeds draw what they drew before there were others.
FAMILIES = ("earlier", "overdispersed", "errors", "blocks", "powers_in_blocks")
EARLIER, NEWER = FAMILIES[:1], FAMILIES[1:]
ABLE = {  # engine -> names of models, and what they are suited to
    "overdispersed": (dict.fromkeys(("em", "vb", "gibbs", "nuts"), OVERDISPERSED), SUITED_TO_OVERDISPERSED),
    "errors": (dict.fromkeys(("em", "vb", "gibbs", "nuts"), MEASURED), SUITED_TO_MEASURED),
    "blocks": ({"em": COUNT_MODELS, "vb": ("gamma_nmf",)}, SUITED),
    "powers_in_blocks": (dict.fromkeys(("em", "vb"), ("is_nmf",)), SUITED),
}
OF_BLOCKS = ("blocks", "powers_in_blocks")


def case_of(pick: Picks, engines=ENGINES, families=EARLIER) -> Case:
    """A program; one in eight has something illegal in it."""
    family = pick(families) if len(families) > 1 else families[0]
    if family != "earlier":
        return newer_case(pick, engines, family)
    name = pick([engine for engine in engines for _ in range(WEIGHTS[engine])])
    place = pick(PLACES) if pick.once_in(8) else ""
    is_suited = not pick.once_in(12)
    names, suited = (DECLARATIONS[name], SUITED[name]) if is_suited else (ALL, SUITED_TO_ALL)
    needs_data = name not in STREAM_OPTIONS and not pick.once_in(40)
    model = models(pick, names, suited, place, "always" if needs_data else "mostly")
    engine = options(pick, name, model.kind, place == "options")
    run = partial(runs, pick, name, model, engine, place == "run")
    return program(pick, name, model, run, partial(afterwards, pick, name, model))


def newer_case(pick: Picks, engines, family) -> Case:
    """The same of another family; one in twelve is of an engine that is not for it."""
    able, suited = ABLE[family]
    chosen = [engine for engine in able if engine in engines]
    if not chosen or (family not in OF_BLOCKS and pick.once_in(12)):
        chosen = [engine for engine in engines if engine not in STREAM_OPTIONS] or chosen
    name = pick([engine for engine in chosen for _ in range(WEIGHTS[engine])])
    names = able.get(name) or next(iter(able.values()))
    place = pick(PLACES) if pick.once_in(8) else ""
    is_of_blocks = family in OF_BLOCKS
    if is_of_blocks and place == "table":
        place = ""
    model = models(pick, names, suited[name], place, "never" if is_of_blocks else "always")
    engine = options(pick, name, model.kind, place == "options", SELDOM[family])
    if is_of_blocks:
        run = partial(fits_of_blocks, pick, model, engine, place == "run")
        return program(pick, name, model, run, partial(after_blocks, pick, model))
    run = partial(runs, pick, name, model, engine, place == "run")
    return program(pick, name, model, run, partial(afterwards, pick, name, model))


def program(pick, name, model, run, afterwards) -> Case:
    """The lines of the declaration, of the run and of what follows, the last two drawn in this order."""
    lines = [f"rng = np.random.default_rng({pick(range(1000))})", *model.lines]
    of_run, wrong = run()
    lines += of_run
    if not any("check.of_blocks" in line for line in lines):
        lines.append("check.result(idata, model)")
    after = afterwards()
    lines += after.split("; ") if after else []
    if any("folder" in line for line in lines):
        lines.insert(0, "folder = Path(tempfile.mkdtemp())")
    return Case(name, tuple(lines), model.illegal or wrong)
