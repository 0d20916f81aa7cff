"""Pictures of results, with their uncertainty. Each returns a matplotlib Figure that shows itself in notebooks."""

from __future__ import annotations

from nmf_zoo.plots.activations import plot_activations
from nmf_zoo.plots.calibration import plot_calibration
from nmf_zoo.plots.comparison import plot_comparison
from nmf_zoo.plots.components import plot_components
from nmf_zoo.plots.filter import plot_filter
from nmf_zoo.plots.matching import plot_match
from nmf_zoo.plots.modes import plot_modes
from nmf_zoo.plots.objective import plot_objective
from nmf_zoo.plots.rank import plot_rank
from nmf_zoo.plots.reconstruction import plot_reconstruction
from nmf_zoo.plots.stability import plot_stability
from nmf_zoo.plots.trace import plot_trace

__all__ = [
    "plot_activations",
    "plot_calibration",
    "plot_comparison",
    "plot_components",
    "plot_filter",
    "plot_match",
    "plot_modes",
    "plot_objective",
    "plot_rank",
    "plot_reconstruction",
    "plot_stability",
    "plot_trace",
]
