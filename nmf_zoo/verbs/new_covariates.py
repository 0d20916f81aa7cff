"""New samples whose activations have a prior mean that depends on covariates of theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import are_counted
from nmf_zoo.models.covariates import as_frame, read_design
from nmf_zoo.structure import Array, Factorisation, LogLinearGammaPrior


def with_new_design(structure: Factorisation, prior: LogLinearGammaPrior, given: Any, samples: Array) -> Factorisation:
    """The model with the covariates of the new samples, labelled ``samples``, in the place of its own."""
    names = covariate_labels(structure, prior)
    expected = f"the covariates {', '.join(map(str, names[:8]))}{' and others' * (len(names) > 8)} of the new samples"
    if given is None:
        raise InputError("design", "None", expected, "give design=")
    frame = as_frame(given)
    given_names = frame.columns.tolist()
    if set(names) <= set(given_names):
        frame = frame[names]
    elif not are_counted(names) and not are_counted(given_names):
        raise InputError("design", f"columns named {', '.join(map(str, given_names[:8]))}", expected, "rename them")
    if frame.shape[1] != len(names):
        raise InputError("design", number_of(frame.shape[1], "column"), expected)
    values = read_design(frame, samples).to_numpy(np.float64, na_value=np.nan)
    if not np.all(np.isfinite(values)):
        raise InputError("design", "values that are NaN or infinite", "finite numbers")
    covariates = replace(prior.covariates, design=values)
    return replace(structure, H=replace(structure.H, prior=replace(prior, covariates=covariates)))


def covariate_labels(structure: Factorisation, prior: LogLinearGammaPrior) -> list[Any]:
    """The model's, or 0, 1, 2, ..."""
    covariates, numbered = prior.covariates, np.arange(prior.covariates.design.shape[1])
    dims = structure.dims.get(covariates.variable.name, ())
    dim = dims[0 if covariates.transposed else 1] if len(dims) == 2 else ""
    return list(np.asarray(structure.coords.get(dim, numbered)).tolist())
