"""The arrays that a model observes and holds as data, as PyMC itself would put them into InferenceData."""

from __future__ import annotations

import numpy as np
import pymc as pm

from nmf_zoo.structure import Array


def observed_data(model: pm.Model) -> dict[str, Array]:
    """Observed variables by name, with the shapes they have in the model."""
    return {rv.name: _value_of(model.rvs_to_values[rv]) for rv in model.observed_RVs}


def constant_data(model: pm.Model) -> dict[str, Array]:
    """``pm.Data`` variables by name, but not those that are observed."""
    observed = {id(model.rvs_to_values[rv]) for rv in model.observed_RVs}
    return {data.name: _value_of(data) for data in model.data_vars if id(data) not in observed}


def _value_of(variable) -> Array:
    """The value, without a copy; read-only, since it is the model's own."""
    if hasattr(variable, "get_value"):
        value = variable.get_value(borrow=True)
    else:
        value = variable.data if hasattr(variable, "data") else variable.eval()
    shared = np.asarray(value).view()
    shared.flags.writeable = False
    return shared
