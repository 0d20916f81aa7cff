"""The engines by name. NUTS, which hands the model to PyMC, is in :mod:`nmf_zoo.nuts`."""

from nmf_zoo.inference import em, gibbs, mcem, vb
from nmf_zoo.inference.engine import Engine

ENGINES: dict[str, Engine] = {module.ENGINE.name: module.ENGINE for module in (em, vb, mcem, gibbs)}
