"""What a run leaves behind: groups of InferenceData, draws on disk, moments, checkpoints.

``groups`` makes the groups of PyMC from arrays, and everything may use it; its names are here. The other files stand
above the engines: ``keeping`` chooses where draws go, ``stores`` takes them to Zarr, ``means`` reads moments,
``checkpoints`` opens and closes a saved run.
"""

from nmf_zoo.results.groups import (
    CHECKED_CELLS,
    LEADING,
    Series,
    as_dataset,
    checked_cells,
    data_groups,
    fit_dataset,
    pack,
    pad_rows,
    plain_attrs,
    solution_groups,
    stats_dataset,
    variable_dims,
)

__all__ = [
    "CHECKED_CELLS",
    "LEADING",
    "Series",
    "as_dataset",
    "checked_cells",
    "data_groups",
    "fit_dataset",
    "pack",
    "pad_rows",
    "plain_attrs",
    "solution_groups",
    "stats_dataset",
    "variable_dims",
]
