"""Posteriors that do not exist are refused before the start; starts outside a prior too."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.errors import InputError
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.structure import Cells
from tests.structures import gamma, model, unknown

X = np.ones((3, 8))
RATINGS = np.zeros((3, 8), dtype=bool)
RATINGS[[0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 3]] = True


def test_gamma_priors_are_always_proper():
    assert is_proper(model(X, 2, gamma(0.01, 1.0), gamma(0.01, 1.0), mask=RATINGS))


@pytest.mark.parametrize("side", ["W", "H"])
@pytest.mark.parametrize(("shape", "proper"), [(0.38, True), (0.37, False)])
def test_complete_data_need_more_shape_than_rows(side, shape, proper):
    """alpha N > F: 8 alpha > 3."""
    structure = model(X, 2, None, gamma(shape, 1.0)) if side == "W" else model(X.T, 2, gamma(shape, 1.0), None)
    verdict = is_proper(structure)
    assert bool(verdict) is proper
    assert proper or "sum to more than 3 in each component; the least sum is 2.96" in verdict.reason


def test_the_poorest_component_counts():
    assert not is_proper(model(X, 2, None, gamma([[5.0], [0.3]], 1.0)))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("shape", "proper"), [(2.1, True), (1.9, False)])
def test_missing_cells_need_more(shape, proper, listed):
    """Row 0 sees only column 0, which it shares with row 1: alpha / 2 > 1."""
    rows, cols = np.nonzero(RATINGS)
    data = Cells(rows=rows, cols=cols, values=np.ones(6), shape=X.shape, is_complete=False) if listed else None
    structure = model(X, 2, None, gamma(shape, 1.0), mask=None if listed else RATINGS, data=data)
    verdict = is_proper(structure)
    assert bool(verdict) is proper
    assert proper or "cells are missing" in verdict.reason


def test_a_row_seen_once_with_a_small_shape_is_refused():
    """The integral over its weight diverges like that of (r + w)^-0.5, although the shapes sum to more than F."""
    mask = np.array([[True] + [False] * 5, [False] + [True] * 5])
    assert not is_proper(model(np.ones((2, 6)), 1, None, gamma(0.5, 1.0), mask=mask))


def test_a_full_mask_is_complete_data():
    mask = np.ones(X.shape, dtype=bool)
    assert is_proper(model(X, 2, None, gamma(0.38, 1.0), mask=mask))
    assert not is_proper(model(X, 2, None, gamma(0.37, 1.0), mask=mask))


def test_rows_without_observed_cells_are_refused():
    mask = np.ones(X.shape, dtype=bool)
    mask[1] = False
    assert "no observed cell" in is_proper(model(X, 2, None, gamma(5.0, 1.0), mask=mask)).reason


@pytest.mark.parametrize("side", ["W", "H"])
def test_a_known_factor_must_show_every_cell(side):
    known = np.array([[1.0] * 8, [0.0] * 8])
    for value, proper in ((known, False), (known + 0.1, True)):
        structure = model(X, 2, None, value) if side == "W" else model(X.T, 2, value.T, None)
        assert bool(is_proper(structure)) is proper


def test_two_flat_factors_and_free_hyperparameters_are_refused():
    assert "no prior" in is_proper(model(X, 2, None, None)).reason
    assert "free" in is_proper(model(X, 2, gamma(unknown("a", "flat"), 1.0), gamma(1.0, 1.0))).reason
    assert "unknown" in is_proper(model(X, 2, None, gamma(unknown("a", "gamma", 1.0, 1.0), 1.0))).reason


def test_gibbs_asks():
    assert not gibbs.supports(model(X, 2, None, None), gibbs.Gibbs())


@pytest.mark.parametrize("value", [5.0, 0.1, np.nan])
def test_a_start_outside_a_hyperprior_is_refused(value):
    structure = model(X, 2, gamma(unknown("u", "uniform", 0.5, 2.0), 1.0), gamma(1.0, 1.0))
    with pytest.raises(InputError, match=r"initvals\['u'\]: got .*; expected values inside its uniform prior"):
        start_hyperparameters(structure, {"u": np.array(value)})


@pytest.mark.parametrize(
    "prior",
    [
        ("gamma", 2.0, 1.0),
        ("inverse_gamma", 2.0, 1.0),
        ("lognormal", 0.0, 1.0),
        ("half_normal", 1.0),
        ("uniform", 0.0, 1.0),
    ],
)
def test_the_middle_is_inside(prior):
    structure = model(X, 2, gamma(unknown("u", *prior), 1.0), gamma(1.0, 1.0))
    assert start_hyperparameters(structure, {})["u"] > 0
