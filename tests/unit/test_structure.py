"""What a structure computes by itself, against dense formulas."""

import dataclasses

import numba
import numpy as np
import pytest

from nmf_zoo.results.groups import as_dataset
from nmf_zoo.structure import Cells, broadcast
from tests.structures import model

RNG = np.random.default_rng(0)
F, N, K = 7, 5, 2
SHAPES = [None, (), (1, 1), (F, 1), (1, N), (N,), (F, N)]
COUNTS = RNG.poisson(1.0, (F, N)).astype(float)


def as_cells(structure):
    rows, cols = np.nonzero(COUNTS)
    cells = Cells(rows=rows, cols=cols, values=COUNTS[rows, cols], shape=(F, N), is_complete=True)
    return dataclasses.replace(structure, data=cells)


@pytest.mark.parametrize("of_exposure", SHAPES)
@pytest.mark.parametrize("of_background", SHAPES)
def test_sparse_data_equal_dense_whatever_the_exposure_and_background(of_exposure, of_background):
    exposure = None if of_exposure is None else np.asarray(RNG.random(of_exposure) + 0.5)
    background = None if of_background is None else np.asarray(RNG.random(of_background))
    W, H = RNG.random((F, K)), RNG.random((K, N))
    dense = model(COUNTS, K, None, None, exposure=exposure, background=background)
    mean = (1.0 if exposure is None else exposure) * (W @ H) + (0.0 if background is None else background)
    np.testing.assert_allclose(as_cells(dense).total_mean(W, H), mean.sum(), rtol=1e-12)
    np.testing.assert_allclose(dense.mean_of(W, H, slice(1, 3)), np.broadcast_to(mean, (F, N))[:, 1:3], rtol=1e-14)
    np.testing.assert_allclose(as_cells(dense).log_likelihood(W, H, {}), dense.log_likelihood(W, H, {}), rtol=1e-11)


@pytest.mark.parametrize("given", [np.float64(2.5), *(RNG.random(own) for own in [(), 1, (1, 1), (F, 1), N, (F, N)])])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_broadcast_as_numpy_does_it(given, order):
    """Kernels are compiled for the same kind of array, too."""
    given = given if isinstance(given, np.float64) else np.array(given, order=order)
    found, expected = broadcast(given, (F, N)), np.broadcast_to(given, (F, N))
    np.testing.assert_array_equal(found, expected)
    assert numba.typeof(found) == numba.typeof(expected)
    assert not found.flags.writeable


@pytest.mark.parametrize(("given", "shape"), [((F, 1), (N, F)), ((1, 1), (N,)), ((2,), (3,))])
def test_what_does_not_fit_is_not_broadcast(given, shape):
    with pytest.raises(ValueError, match=r"broadcast|dimensions"):
        broadcast(np.ones(given), shape)


def test_labels_of_cells_share_their_text():
    dims, labels = {"W": ("feature", "component"), "H": ("component", "obs")}, np.array(["x" * 50] * F)
    structure = dataclasses.replace(
        as_cells(model(COUNTS, K, None, None)), cells=np.nonzero(COUNTS), dims=dims, coords={"feature": labels}
    )
    found = structure.cell_labels
    assert set(found) == {"feature"}
    assert found["feature"].nbytes == 8 * np.count_nonzero(COUNTS)


def test_a_hyperparameter_without_dims_does_not_take_those_of_the_factor_in_its_name():
    dims = {"W": ("feature", "component")}
    structure = dataclasses.replace(model(COUNTS, K, None, None), dims=dims)
    arrays = {"W": np.ones((1, F, K)), "W_rate": np.ones((1, 1, K))}
    assert as_dataset(structure, arrays, ("chain",))["W_rate"].dims == ("chain", "W_rate_dim_0", "W_rate_dim_1")
