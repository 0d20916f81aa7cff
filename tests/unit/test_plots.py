"""Figures of a result, as notebooks show them."""

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.results.components import component_shares

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result():
    model = nz.gamma_nmf(np.arange(24).reshape(4, 6) + 1, 2)
    return nz.sample(20, tune=20, chains=2, random_seed=1, quiet=True, model=model)


@pytest.mark.parametrize("how", [{}, {"shape": (2, 2)}, {"chain": 1}])
def test_notebooks_show_components(result, how):
    assert nz.plot_components(result, **how)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("is_aligned", [False, True])
def test_all_chains_of_one_mode_are_shown(is_aligned):
    model = nz.gamma_nmf(np.kron(np.eye(2, dtype=int), np.full((2, 3), 50)) + 1, 2)
    result = nz.sample(20, tune=50, chains=2, random_seed=1, quiet=True, model=model)
    result = nz.align(result) if is_aligned else result
    shares = component_shares(result)
    assert shares.sizes["draw"] == 40
    for chain in (0, 1):
        np.testing.assert_array_equal(shares[20 * chain : 20 * chain + 20], component_shares(result, chain))
    assert "all 2 chains" in nz.plot_components(result, shape=(2, 2)).get_suptitle()
    assert "chain 1" in nz.plot_components(result, chain=1, shape=(2, 2)).get_suptitle()


def test_notebooks_show_traces(result):
    assert nz.plot_trace(result)._repr_png_().startswith(b"\x89PNG")


def test_a_wrong_image_shape_is_refused(result):
    with pytest.raises(nz.InputError, match="shape: got 3x3; expected 4 pixels"):
        nz.plot_components(result, shape=(3, 3))
