"""The section on the run: engine, options, seed, time, versions."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from nmf_zoo import __version__
from nmf_zoo.run_attributes import GRAPH, MODEL
from nmf_zoo.workbench.report.page import facts, paragraph
from nmf_zoo.workbench.report.source import Source

PACKAGES = ("pymc", "arviz", "numba", "numpy", "xarray")
LIBRARY = ("inference_library", "inference_library_version")
SHOWN = {"engine", "options", "random_seed", "seconds", "status", *LIBRARY, MODEL, GRAPH}


def run_parts(source: Source) -> list[str]:
    attrs = source.attrs
    library = " ".join(str(attrs.get(name, "")) for name in LIBRARY).strip()
    pairs = [
        ("engine", str(attrs.get("engine", "not said"))),
        ("options", options_text(attrs.get("options"))),
        ("kept", source.draws_text if source.has("posterior") else f"mean and sd of {source.draws_text}"),
        ("seed", str(attrs.get("random_seed", "not said"))),
        ("time", f"{float(attrs['seconds']):.1f} s" if "seconds" in attrs else "not said"),
        ("status", str(attrs.get("status", "not said"))),
        ("made with", library or "not said"),
    ]
    pairs += [(name.replace("_", " "), str(value)) for name, value in sorted(attrs.items()) if name not in SHOWN]
    here = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return [facts(pairs), paragraph(f"This page was written by nmf_zoo {__version__} with {here}.")]


def options_text(options: Any) -> str:
    """``moves scale, shear; trajectories auto``"""
    try:
        given = json.loads(options)
    except (TypeError, ValueError):
        return str(options) if options else "not said"
    return "; ".join(f"{name} {_plain(value)}" for name, value in given.items()) or "none"


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
