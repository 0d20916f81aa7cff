"""The digests that are kept, and on which machine with which versions they hold."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from threadpoolctl import threadpool_info

from tests.golden import steps
from tests.golden.arrays import digest
from tests.golden.make import Outcome

FILE = Path(__file__).with_name("digests.json")
PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "pymc", "pytensor", "pandas", "xarray", "arviz")
LINE = f"{sys.version_info.major}.{sys.version_info.minor}"  # of Python


def environment() -> dict[str, str]:
    """What bits depend on beside the package."""
    features = json.dumps(llvmlite.binding.get_host_cpu_features(), sort_keys=True)
    blas = {str(pool.get("architecture")) for pool in threadpool_info() if pool["user_api"] == "blas"}
    return {
        "processor": f"{_processor()}, {llvmlite.binding.get_host_cpu_name()}",
        "features": hashlib.sha256(features.encode()).hexdigest()[:8],
        "compiler": str([numba.config.DISABLE_JIT, numba.config.CPU_NAME, numba.config.CPU_FEATURES]),
        "blas": ", ".join(sorted(blas)),
        "system": " ".join((platform.system(), *platform.libc_ver())),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    """The model as Linux names it, or what the standard library knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def load() -> dict[str, Any]:
    """``environments`` by line of Python, ``bits``: digests by case and line, ``steps``: numbers by case and array."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def holds_here(kept: Mapping[str, Any]) -> bool:
    """Whether bits were kept on such a machine with such versions."""
    return kept["environments"].get(LINE) == environment()


def digests_of(made: Mapping[str, Outcome]) -> dict[str, str]:
    return {name: digest(found) for name, found in made.items() if not isinstance(found, str)}


def compare_digests(kept: Mapping[str, Any], made: Mapping[str, Outcome]) -> dict[str, str]:
    """What isn't as kept among the cases that were made: "differs", "refused", "new"."""
    here, found = digests_of(made), {}
    for name in made:
        old = kept["bits"].get(name, {}).get(LINE)
        if old != here.get(name):
            found[name] = "new" if old is None else "differs" if name in here else f"refused: {made[name]}"
    return found


def keep(made: Mapping[str, Outcome]) -> None:
    """Write the digests of this machine for this line of Python, and the steps. The other lines' stay."""
    kept = load() if FILE.exists() else {"environments": {}, "bits": {}, "steps": {}}
    kept["environments"][LINE] = environment()
    kept["bits"] = _bits(kept["bits"], digests_of(made))
    kept["steps"] = _steps(kept["steps"])
    FILE.write_text(_text(kept), encoding="utf-8")


def _bits(old: Mapping[str, Mapping[str, str]], here: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The digests of this line in the place of those that it had."""
    found = {name: {line: one for line, one in lines.items() if line != LINE} for name, lines in old.items()}
    for name, one in here.items():
        found.setdefault(name, {})[LINE] = one
    return {name: lines for name, lines in found.items() if lines}


def _steps(old: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Every step that is decided; those that agree with what is kept keep their last digits."""
    found = {}
    for name, step in steps.steps():
        arrays = steps.decided_or_nothing(step)
        if arrays:
            new = steps.kept_of(arrays)
            is_old = set(new) == set(old.get(name, ())) and not steps.disagreements(old[name], arrays)
            found[name] = dict(old[name]) if is_old else new
    return found


def _text(kept: Mapping[str, Any]) -> str:
    """JSON with one case in a line."""
    parts = []
    for part, entries in kept.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(entries[name], sort_keys=True)}" for name in sorted(entries)]
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"
