"""Signal-to-noise ratio and sparseness against their definitions; what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError


def test_snr_is_in_decibels_over_the_cells_that_both_have():
    truth, estimate = np.array([3.0, 4.0, np.nan, 7.0]), np.array([3.0, 3.0, 1.0, np.nan])
    assert nz.snr(truth, estimate) == pytest.approx(10 * np.log10(25 / 1))
    assert nz.snr([1.0, 2.0], [1.0, 2.0]) == np.inf
    assert nz.snr([1.0], [0.0]) == pytest.approx(0.0)


def test_sparseness_goes_from_equal_entries_to_a_single_one():
    assert nz.sparseness(np.full((3, 4), 2.5)) == pytest.approx(0.0)
    assert nz.sparseness(np.eye(1, 12)) == pytest.approx(1.0)
    entries = np.array([1.0, 2.0, 0.0])
    assert nz.sparseness(entries) == pytest.approx((3**0.5 - 3 / 5**0.5) / (3**0.5 - 1))
    assert nz.sparseness(1e-200 * entries) == pytest.approx(nz.sparseness(entries))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nz.snr([1, 2], [1]), r"estimate: got shape \(1,\); expected \(2,\)"),
        (lambda: nz.snr([0.0], [1.0]), "truth: got no cell other than 0"),
        (lambda: nz.sparseness([0.0, 0.0]), "matrix: got 2 entries; expected two finite ones or more, not all 0"),
        (lambda: nz.sparseness([1.0]), "matrix: got 1 entries"),
        (lambda: nz.sparseness("W"), "matrix: got str; expected an array of numbers"),
        (lambda: nz.summarise(np.ones(3)), "idata: got ndarray; expected the result of nz.sample"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_snr_goes_by_place_and_refuses_labels_that_say_otherwise():
    truth = pd.DataFrame([[1.0, 2.0], [3.0, 5.0]], index=["a", "b"], columns=["x", "y"])
    for wrong, axis in ((truth.iloc[::-1], 0), (truth[["y", "x"]], 1), (truth.to_xarray().to_dataarray().T[::-1], 0)):
        with pytest.raises(InputError, match=f"estimate: got labels along axis {axis} that differ from the truth's"):
            nz.snr(truth, wrong)
    assert nz.snr(truth, truth.to_numpy()) == np.inf
    assert nz.snr(truth.reset_index(drop=True), truth) == np.inf
    array = xr.DataArray(truth, dims=("feature", "obs"))
    assert nz.snr(array, array.transpose()) == np.inf
