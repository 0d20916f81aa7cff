"""Reading: ``pm.Model`` -> :class:`~nmf_zoo.structure.Factorisation`, from the graph as declared.

Recognisers (``as_*``) return None when unsure; only :func:`read` raises, as :class:`~nmf_zoo.errors.UnreadableModel`.
"""

from __future__ import annotations

from nmf_zoo.reading.check import check
from nmf_zoo.reading.describe import describe
from nmf_zoo.reading.observed import constant_data, observed_data
from nmf_zoo.reading.read import model_here, read

__all__ = ["check", "constant_data", "describe", "model_here", "observed_data", "read"]
