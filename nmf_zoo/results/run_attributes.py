"""What every result says of the run that made it, and of the model that it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nmf_zoo import __version__
from nmf_zoo.structure import Factorisation

MODEL = "model"
GRAPH = "model_graph"
DISCARDED = "discarded"  # sweeps between the warm-up and the draws, of chains that were still on their way
GATHERED = "gathered"  # sweeps between the warm-up and where chains, or those they began at, last followed others
MOST_TEXT = 8000  # characters of an attribute on the model: files hold attributes of up to 64 kB
EXPOSURE, MULTIPLIERS = "the exposure", "the multipliers of batches"
BESIDE_FACTORS = {EXPOSURE: "exposure * (", MULTIPLIERS: ", multipliers="}  # by name, what the declaration says of it


def run_attributes(engine: str, options: Any, entropy: Any, seconds: float, status: str) -> dict[str, Any]:
    """Attributes of a result."""
    return {
        "inference_library": "nmf_zoo",
        "inference_library_version": __version__,
        "engine": engine,
        "options": json.dumps(asdict(options), default=_as_number),
        "random_seed": str(entropy),
        "seconds": seconds,
        "status": status,
    }


def model_attributes(structure: Factorisation) -> dict[str, str]:
    """The declaration as :func:`~nmf_zoo.describe` tells it, and its graph as JSON; none that is very long."""
    # Reading imports PyMC; who asks a result what it says of itself needs none.
    from nmf_zoo.reading import describe
    from nmf_zoo.reading.drawing import graph_to_text, make_graph

    texts = {MODEL: describe(structure), GRAPH: graph_to_text(make_graph(structure))}
    return {name: text for name, text in texts.items() if len(text) <= MOST_TEXT}


def beside_factors(attrs: Mapping[Any, Any]) -> list[str]:
    """What multiplies W H in the model that a result says it is of: W H is in units of the data where it is 1."""
    return [name for name, words in BESIDE_FACTORS.items() if words in str(attrs.get(MODEL))]


def where_they_are_one(names: list[str]) -> str:
    """``where the exposure and the multipliers of batches are 1``; nothing of none."""
    return f"where {' and '.join(names)} {'are' if names != [EXPOSURE] else 'is'} 1" if names else ""


def _as_number(value: Any) -> Any:
    """NumPy's numbers as Python's, which are all that JSON knows."""
    return value.item()
