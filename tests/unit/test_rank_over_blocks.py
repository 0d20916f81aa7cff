"""Ranks judged over blocks: the scores that the same splits have in memory, and the bounds of the same fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.evidence.contract import EvidenceRun
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.structure import Cells
from nmf_zoo.verbs.block_source import CutArray, as_data
from nmf_zoo.workbench import holdout
from nmf_zoo.workbench.rank_blocks import TrainingBlocks
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N = 12, 60
X = RNG.poisson(RNG.gamma(0.7, 3.0, (F, 2)) @ RNG.gamma(0.7, 3.0, (2, N))).astype(float)
X[0] += 1.0
X[:, 0] += 1.0
EXPOSURE = RNG.gamma(5.0, 0.2, N)
MASK = RNG.random((F, N)) < 0.8
PAIR = tuple(np.random.default_rng(2).gamma(2.0, 0.5, shape) for shape in ((F, 1), (1, N)))
TABLE = PAIR[0] * PAIR[1]
EM = nz.EM(accelerate="momentum")
QUIET = {"random_seed": 1, "quiet": True, "cores": 1}
SHARE = 0.2


def declared(rank, X=None, **more):
    more |= {"shape": (F, 1)} if X is None else {}
    return nz.gamma_nmf(X, rank, alpha_w=1.2, alpha_h=1.2, **more)


def judged(data, ranks, method, declare=declared, **more):
    return nz.select_rank(declare, ranks, method=method, data=data, **QUIET | more)


def whole_split(kept, n_blocks, bounds, structure):
    """The splits of all blocks as one, of the model of all samples."""
    splits = [kept.split(number) for number in range(n_blocks)]
    rows, values = (np.concatenate([getattr(split, name) for split in splits]) for name in ("rows", "values"))
    cols = np.concatenate([split.cols + first for split, first in zip(splits, bounds[:-1], strict=True)])
    order = np.lexsort((cols, rows))
    parts = [split.training.data for split in splits]
    if isinstance(parts[0], Cells):
        at = [part.cols + first for part, first in zip(parts, bounds[:-1], strict=True)]
        X = sp.csc_array(
            (np.concatenate([p.values for p in parts]), (np.concatenate([p.rows for p in parts]), np.concatenate(at))),
            shape=(F, N),
        )
    else:
        X = np.where(
            np.concatenate([part.mask for part in parts], axis=1),
            np.concatenate([part.values for part in parts], axis=1),
            np.nan,
        )
    data = as_data(CutArray(X, N), 0)[0]
    training = replace(structure, data=data, cells=None)
    tested = replace(structure, data=None, cells=None)
    if splits[0].is_thinned:
        training, tested = holdout.dimmed(training, 1.0 - SHARE), holdout.dimmed(tested, SHARE)
    return holdout.Split(training, tested, rows[order], cols[order], values[order], splits[0].is_thinned)


CASES = {
    "dense": (X, {}, {}),
    "sparse": (sp.csc_array(X), {}, {}),
    "dense, exposure": (X, {"exposure": EXPOSURE}, {"exposure": EXPOSURE[None]}),
    "sparse, exposure": (sp.csc_array(X), {"exposure": EXPOSURE}, {"exposure": EXPOSURE[None]}),
    "mask": (X, {"mask": MASK}, {"mask": MASK}),
    "dense, background": (X, {"background": TABLE}, {"background": TABLE}),
    "sparse, exposure, background": (
        sp.csc_array(X),
        {"exposure": EXPOSURE, "background": PAIR},
        {"exposure": EXPOSURE[None], "background": PAIR},
    ),
    "sparse, background": (sp.csc_array(X), {"background": PAIR}, {"background": PAIR}),
}


@pytest.mark.parametrize("size", [N, 17])
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_same_split_in_memory(name, size):
    table, of_blocks, of_model = CASES[name]
    source = CutSamples(table, size, **of_blocks)
    options = nz.Holdout(share=SHARE, engine=EM, max_iter=30, tol=0)
    found = judged(source, [2], options, restarts=2)
    structure = nz.read(declared(2, table, **of_model))
    for restart in range(2):
        key = child(seed_key(1), restart)
        kept = TrainingBlocks(nz.read(declared(2)), source, SHARE, child(key, holdout.SPLIT))
        split = whole_split(kept, len(source.bounds) - 1, source.bounds, structure)

        def score(job, key=key, split=split):
            draws = holdout.fitted_draws(split.training, options, None, replace(job, key=key))
            of = holdout.thinned_scores if split.is_thinned else holdout.cell_scores
            return of(split, draws)

        (expected,) = EvidenceRun(chains=1, key=key).each(score, total=1)
        assert float(found["estimate"][0, restart]) == pytest.approx(expected.sum(), rel=1e-8)
        error = np.sqrt(len(expected)) * np.std(expected, ddof=1)
        assert float(found["standard_error"][0, restart]) == pytest.approx(error, rel=1e-6)


def test_draws_of_q_are_averaged_as_in_memory():
    """The estimate of the same fit from other draws: near, and nearer than the point is."""
    source, key = CutArray(X, 17), child(seed_key(1), 0)
    options = nz.Holdout(share=SHARE, engine=nz.VB(accelerate=None), max_iter=60, tol=0, draws=400)
    found = float(judged(source, [2], options, restarts=1)["estimate"][0, 0])
    split = whole_split(
        TrainingBlocks(nz.read(declared(2)), source, SHARE, child(key, holdout.SPLIT)),
        4,
        source.bounds,
        nz.read(declared(2, X)),
    )

    def score(job):
        return holdout.cell_scores(split, holdout.fitted_draws(split.training, options, None, replace(job, key=key)))

    (expected,) = EvidenceRun(chains=1, key=key).each(score, total=1)
    assert found == pytest.approx(expected.sum(), abs=1.5)
    point = judged(source, [2], replace(options, draws=1), restarts=1)["estimate"]
    assert found > float(point[0, 0]) + 5.0


@pytest.mark.parametrize("form", [np.asarray, sp.csc_array], ids=["dense", "sparse"])
def test_what_is_kept_and_held_out_is_the_table(form):
    source = CutArray(form(X), 17)
    kept, other = (TrainingBlocks(nz.read(declared(rank)), source, SHARE, seed_key(3)) for rank in (2, 3))
    held = 0.0
    for number in range(4):
        at, split = slice(source.bounds[number], source.bounds[number + 1]), kept.split(number)
        part = np.zeros((F, at.stop - at.start))
        part[split.rows, split.cols] = split.values
        left = kept.read(number)
        table = left.X.toarray() if sp.issparse(left.X) else left.X
        np.testing.assert_array_equal(table + part, X[:, at])
        if not sp.issparse(left.X):
            assert not left.mask[split.rows, split.cols].any()
        np.testing.assert_array_equal(other.split(number).values, split.values)
        held += split.values.size if not split.is_thinned else split.values.sum()
    assert held == pytest.approx(SHARE * (X.sum() if sp.issparse(source.X) else X.size), rel=0.1)
    assert not np.array_equal(
        kept.split(0).rows, TrainingBlocks(nz.read(declared(2)), source, SHARE, seed_key(4)).split(0).rows
    )


def test_bounds_are_those_of_the_same_fits_in_memory():
    method = nz.RankBound(vb=nz.VB(accelerate=None), max_iter=60, tol=0, corrected=False)
    expected = nz.select_rank(lambda rank: declared(rank, X), [1, 2], method=method, restarts=2, search=None, **QUIET)
    for size in (N, 17):
        found = judged(CutArray(X, size), [1, 2], method, restarts=2)
        np.testing.assert_allclose(found["bound"], expected["bound"], rtol=1e-9)
        np.testing.assert_array_equal(found["status"], expected["status"])


@pytest.mark.parametrize("method", ["bound", nz.Holdout(engine="em", max_iter=100)], ids=["bound", "holdout"])
def test_the_rank_that_made_the_table_is_found(method):
    found = judged(CutArray(sp.csc_array(X), 17), [1, 2, 4], method, restarts=3)
    assert found.attrs["best"] == 2


REFUSED = {
    "method": ({"method": "chib"}, InputError, "method: got 'chib' with data="),
    "search": ({"search": nz.Search(fits=4)}, InputError, "search: got"),
    "checkpoint": ({"checkpoint": "x"}, InputError, "checkpoint: got a value with data="),
    "path": ({"data": "x.zarr"}, InputError, "nz.open_blocks"),
    "features": ({"data": X[:5]}, InputError, "got 5 features; expected 12"),
    "data twice": ({"declare": lambda rank: declared(rank, X)}, InputError, "data beside those of X"),
    "engine": ({"method": nz.Holdout(engine="gibbs")}, UnsupportedModel, "data= is for"),
    "real": ({"method": "holdout", "data": sp.csc_array(X / 3)}, InputError, "counts, which are split"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    changed, kind, words = REFUSED[name]
    given = {"declare": declared, "data": CutArray(X, 17), "ranks": [1, 2], "method": "bound"} | changed
    with pytest.raises(kind) as caught:
        judged(**given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ctrl_c_leaves_the_ranks_that_are_done():
    class Stops(CutArray):
        reads = 0

        def read(self, number):
            self.reads += 1
            if self.reads > 60:
                raise KeyboardInterrupt
            return super().read(number)

    method = nz.RankBound(max_iter=10, tol=0, corrected=False)
    found = judged(Stops(X, 17), [1, 2], method, restarts=1)
    assert np.isfinite(found["estimate"][0, 0])
    assert found["status"].to_numpy().tolist() == [["max_iter"], ["interrupted"]]
