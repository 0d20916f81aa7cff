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


def test_all_chains_once_they_are_aligned(result):
    aligned = nz.align(result)
    shares = component_shares(aligned, None)
    assert shares.sizes["draw"] == 40
    for chain in (0, 1):
        own = component_shares(aligned, chain)
        np.testing.assert_array_equal(shares[20 * chain : 20 * chain + 20], own)
    assert "all chains" in nz.plot_components(aligned, chain=None, shape=(2, 2)).get_suptitle()
    with pytest.raises(nz.InputError, match="chain: got None with chains that are not aligned"):
        nz.plot_components(result, chain=None)


def test_notebooks_show_traces(result):
    assert nz.plot_trace(result)._repr_png_().startswith(b"\x89PNG")


def test_a_wrong_image_shape_is_refused(result):
    with pytest.raises(nz.InputError, match="shape: got 3x3; expected 4 pixels"):
        nz.plot_components(result, shape=(3, 3))
