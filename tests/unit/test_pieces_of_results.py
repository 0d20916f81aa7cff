"""As tests/oracle/test_pieces.py: what is read, written and reported a part at a time."""

from __future__ import annotations

import struct
import warnings
import zlib
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.audio import learning, parts, pictures, recordings
from nmf_zoo.audio import sound as sounds
from nmf_zoo.audio.recordings import open_recording, survey
from nmf_zoo.audio.samples import FORMATS, decode
from nmf_zoo.audio.sinks import Files, Memory
from nmf_zoo.audio.sound import listen
from nmf_zoo.audio.spectra import Framing, Synthesis, transform
from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.plots import activations as drawn_activations
from nmf_zoo.reading import read
from nmf_zoo.results import posterior, stores
from nmf_zoo.results.components import mean_over_draws
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.structure import Cells
from nmf_zoo.workbench import holdout
from tests.pieces import EXACT, Place, inputs, of_places
from tests.results import random_idata
from tests.structures import model

RATE = 8000


def samples_of(length: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(length).integers(-30000, 30000, (length, channels)).astype(np.int16)


# -- recordings --------------------------------------------------------------------------------------------------------


def blocks_of_a_file(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Written in pieces and read in pieces, against the bytes of the format."""
    whole = samples_of(length)[:, 0]
    for name in ("int16", "int24", "uint8", "float32"):
        form = FORMATS[name]
        values = whole.astype(float) if form.kind == "f" else np.round(whole / 2**15 * (form.steps - 1))
        (folder / name).mkdir()
        with Files(folder / name, 1, RATE, length, form) as files:
            for first in range(0, length, 4):
                files.write(values[None, first : first + 4] / form.steps)
        content = (folder / name / "0.wav").read_bytes()
        assert len(content) % 2 == 0
        assert struct.unpack("<I", content[4:8])[0] == len(content) - 8
        assert struct.unpack("<I", content[content.index(b"data") + 4 :][:4])[0] == length * form.width
        raw = content[content.index(b"data") + 8 :][: length * form.width]
        expected = (values / form.steps)[:, None]
        np.testing.assert_allclose(decode(raw, form, 1), expected, rtol=1e-6, atol=1e-12)
        blocks = list(open_recording(folder / name / "0.wav").read(4))
        assert all(len(block) == 4 for block in blocks[:-1])
        np.testing.assert_array_equal(np.concatenate(blocks), decode(raw, form, 1))


def blocks_of_samples(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    held = samples_of(length + 2, 2)
    recording = open_recording(held, RATE)
    np.testing.assert_array_equal(np.concatenate(list(recording.read(4))), held / 2.0**15)
    np.testing.assert_allclose(np.concatenate(list(recording.mono(4))), held.mean(axis=1) / 2.0**15, **EXACT)


def blocks_of_a_survey(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Counts, powers and what is clipped, which is seen at two samples side by side."""
    monkeypatch.setattr(recordings, "BLOCK", 4)
    samples = np.full(length + 1, 2**15 - 1, np.int16)
    with pytest.warns(NmfZooWarning, match=rf"the samples \({length:,}\) are clipped"):
        found = survey(open_recording(samples, RATE))
    assert found.n_samples == length + 1
    assert found.power == pytest.approx((1 - 2.0**-15) ** 2)
    bad = np.ones(length)
    bad[-1] = np.nan
    with pytest.raises(nz.errors.InputError, match=rf"nan at {(length - 1) / RATE:.3f} s"):
        survey(open_recording(bad, RATE))


def frames_of_a_spectrum(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """``length`` frames of samples that come in blocks of 5, against the transform written out, and back."""
    framing = Framing(RATE, 8, 3)
    n_samples = max(1, length * framing.hop - framing.lead)
    x = np.random.default_rng(length).normal(size=n_samples)
    spectra = list(transform(np.split(x, range(5, n_samples, 5)), framing, 4))
    n_frames = framing.n_frames(n_samples)
    padded = np.concatenate([np.zeros(framing.lead), x, np.zeros(framing.length)])
    expected = [np.fft.rfft(padded[n * 3 : n * 3 + 8] * framing.window) for n in range(n_frames)]
    assert all(len(block) == 4 for block in spectra[:-1])
    np.testing.assert_allclose(np.concatenate(spectra), expected, **EXACT)
    synthesis = Synthesis(framing, n_samples)
    back = [synthesis.add(block) for block in spectra]
    np.testing.assert_allclose(np.concatenate(back), x, **EXACT)


def sound_of(n_frames: int, silent: bool = True):
    """A recording of so many frames of 16 samples with a hop of 8, the third silent where there are so many."""
    x = np.random.default_rng(n_frames).normal(size=8 * n_frames - 8)
    if silent:
        x[8:24] = 0.0
    return listen(open_recording(x, RATE), Framing(RATE, 16, 8)), x


def frames_of_a_sound(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    monkeypatch.setattr(sounds, "BLOCK", 4)
    monkeypatch.setattr(learning, "BLOCK", 4)
    n_frames = length + 6
    sound, x = sound_of(n_frames)
    padded = np.concatenate([np.zeros(8), x, np.zeros(8)])
    spectra = np.array([np.fft.rfft(padded[8 * n : 8 * n + 16] * sound.framing.window) for n in range(n_frames)])
    power = np.abs(spectra[:, 1:]) ** 2
    silent = np.arange(n_frames) == 2
    assert (sound.n_frames, sound.n_sounding) == (n_frames, n_frames - 1)
    assert sound.unit == pytest.approx(power.mean())
    blocks = list(sound.frames(4))
    assert [block.first for block in blocks] == list(range(0, n_frames, 4))
    np.testing.assert_allclose(np.concatenate([block.power for block in blocks]), power / sound.unit, **EXACT)
    np.testing.assert_array_equal(np.concatenate([block.silent for block in blocks]), silent)
    sounding = list(sound.sounding(4))
    assert all(len(block) == 4 for block in sounding[:-1])
    np.testing.assert_allclose(np.concatenate(sounding), power[~silent] / sound.unit, **EXACT)
    chosen = learning.spread_frames(sound, np.random.default_rng(1))
    np.testing.assert_allclose(chosen, power[~silent] / sound.unit, **EXACT)
    monkeypatch.setattr(learning, "SAMPLE", 3)
    few = learning.spread_frames(sound, np.random.default_rng(1))
    at = [int(np.flatnonzero(np.all(np.isclose(power[~silent] / sound.unit, row), axis=1))[0]) for row in few]
    ends = np.arange(4) * (n_frames - 1) / 3
    assert all(int(first) <= place < last for first, place, last in zip(ends, at, ends[1:], strict=False))


def rows_that_are_shuffled(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    rows = np.arange(float(length))[:, None]
    for capacity in (1, 4, 7, 8, 100):
        blocks = (rows[first : first + 4] for first in range(0, length, 4))
        found = list(learning.shuffled(blocks, capacity, np.random.default_rng(1)))
        assert [len(block) for block in found[:-1]] == [min(4, length)] * (len(found) - 1)
        np.testing.assert_array_equal(np.sort(np.concatenate(found), axis=0), rows)


class Known:
    """A stream whose activations are sums of the powers."""

    def __init__(self, n_lines: int):
        self.W = xr.DataArray(np.random.default_rng(1).gamma(1.0, size=(n_lines, 2)))

    def activations(self, power: np.ndarray, first: int) -> xr.Dataset:
        mean = np.stack([power.sum(axis=0), first + np.arange(power.shape[1]) + 1.0])
        return xr.Dataset({"H_mean": (("k", "n"), mean), "H_sd": (("k", "n"), 0.5 * mean)})


def frames_of_a_separation(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """The second pass: sounds that sum to the recording, and activations averaged over neighbours."""
    n_frames = length + 1
    for most_times in (4, 100):
        monkeypatch.setattr(parts, "BLOCK", 4)
        monkeypatch.setattr(parts, "MOST_TIMES", most_times)
        sound, x = sound_of(n_frames, silent=False) if n_frames > 2 else sound_of(3, silent=False)
        sink, saved = Memory(), parts.SavedActivations(None)
        found = parts.separate_frames(sound, Known(len(sound.lines)), sink, saved, quiet=True)
        np.testing.assert_allclose(sink.samples.sum(axis=0), x, **EXACT)
        stride = -(-sound.n_frames // most_times)
        power = np.concatenate([block.power for block in sound.frames(1000)])
        mean = np.stack([power.sum(axis=1), np.arange(sound.n_frames) + 1.0])
        groups = np.split(np.arange(sound.n_frames), range(stride, sound.n_frames, stride))
        np.testing.assert_array_equal(found.counts, [len(group) for group in groups])
        np.testing.assert_allclose(found.middles, [group.mean() for group in groups])
        for k in range(2):
            np.testing.assert_allclose(found.mean[k], [mean[k, group].mean() for group in groups], **EXACT)
            variances = [np.mean((0.5 * mean[k, group]) ** 2) for group in groups]
            np.testing.assert_allclose(found.variance[k], variances, **EXACT)
        np.testing.assert_allclose(found.energy.sum(), power.sum(), rtol=1e-9)


# -- pictures ----------------------------------------------------------------------------------------------------------


def points_of_a_line(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Means over stretches of equal length, the last may be shorter."""
    monkeypatch.setattr(pictures, "MOST_POINTS", 4)
    monkeypatch.setattr(drawn_activations, "MOST_POINTS", 4)
    values, stride = np.random.default_rng(length).gamma(1.0, size=(6, 1, length)), -(-length // 4)
    groups = np.split(np.arange(length), range(stride, length, stride))
    line = xr.Dataset(
        {"H": (("k", "time"), values[0]), "H_sd": (("k", "time"), values[1])}, {"time": np.arange(length)}
    )
    times, mean, sd = pictures.thinned(line, 0)
    assert len(times) == len(groups) <= 4
    np.testing.assert_allclose(mean, [values[0, 0, group].mean() for group in groups], **EXACT)
    np.testing.assert_allclose(sd**2, [np.mean(values[1, 0, group] ** 2) for group in groups], **EXACT)
    sizes = xr.DataArray(values, dims=("draw", "component", "obs"), coords={"obs": np.arange(length)})
    totals = np.array([[1.0], [2.0], [0.5], [1.0], [3.0], [1.0]])  # of W, by draw
    drawn = drawn_activations._summary(sizes / totals[:, :, None], totals)
    at, (mean, low, high) = drawn_activations._stretches(np.arange(length), drawn)
    np.testing.assert_array_equal(at, [group[0] for group in groups])
    np.testing.assert_allclose(mean[0], [values[:, 0, group].mean() for group in groups], **EXACT)
    assert np.all(low <= mean)
    assert np.all(mean <= high)


# -- stores ------------------------------------------------------------------------------------------------------------


class Held:
    """A Zarr array as a column sees it."""

    path = "x"

    def __init__(self, length: int, per_chunk: int):
        self.shape, self.chunks, self.dtype = (2, length, 2), (1, per_chunk, 2), np.dtype(float)
        self.data = np.full(self.shape, np.nan)

    def __setitem__(self, at, value):
        self.data[at] = value

    def __getitem__(self, at):
        return self.data[at].copy()


def draws_of_a_column(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Draws that come one by one, in pieces or at once, are written all; a column goes on after any of them."""
    draws = np.random.default_rng(length).random((length + 2, 2))
    for step in (1, 3, 4, 5, length):
        array = Held(length + 2, 4)
        column = stores.Column(array, 1)
        for first in range(0, length, step):
            column.append(draws[first : min(first + step, length)])
        column.flush()
        np.testing.assert_array_equal(array.data[1], np.where(np.arange(length + 2)[:, None] < length, draws, np.nan))
        expected = [zlib.crc32(np.ascontiguousarray(draws[n : min(n + 4, length)]).data) for n in range(0, length, 4)]
        assert column.checksums() == expected
        later = stores.Column(array, 1)
        later.restore(length, column.checksums())
        assert later.checksums() == expected
        later.append(draws[length:])
        later.flush()
        np.testing.assert_array_equal(array.data[1], draws)
        assert np.all(np.isnan(array.data[0]))
        with pytest.raises(Damaged):
            stores.Column(array, 1).restore(length, [*expected[:-1], expected[-1] ^ 1])
        with pytest.raises(Damaged):
            stores.Column(array, 1).restore(length, expected[:-1])


def draws_of_a_store(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """A chain that moves to another's place, and draws that are cut off."""
    pytest.importorskip("zarr")
    monkeypatch.setattr(stores, "CHUNK_BYTES", 4 * 2 * 8)
    store, draws = stores.Store(folder / "x.zarr", None, 3), np.random.default_rng(1)
    values = draws.random((3, length + 3, 2))
    skeleton = xr.Dataset({"W": (("chain", "draw", "k"), values)}, {"chain": range(3), "draw": range(length + 3)})
    array = store.array("posterior", "W", skeleton)
    assert array.chunks == (1, min(4, length + 3), 2)
    for chain in range(3):
        column = stores.Column(array, chain)
        column.append(values[chain])
        column.flush()
    store.cut("posterior", [0, 2], length)
    found = store.read("posterior")
    np.testing.assert_array_equal(found["W"].to_numpy(), values[[0, 2], :length])
    np.testing.assert_array_equal(found["draw"].to_numpy(), np.arange(length))


def bytes_of_a_chunk(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """As many draws as fit, or rows of a draw: as much as may be, never more."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 4 * 8)
    assert stores.chunk_shape((2, length), 8) == (1, min(length, 4))
    assert stores.chunk_shape((2, 5, length), 8) == (1, max(1, min(5, 4 // length)), min(length, 4))
    assert stores.chunk_shape((2, length, 2), 8) == (1, min(length, 2), 2)


# -- posteriors --------------------------------------------------------------------------------------------------------


def draws_that_are_read(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Four draws at a time, against all at once."""
    nmf = nz.gamma_nmf([[1, 0, 4], [2, 3, 0]], rank=2)
    idata = random_idata(nmf, np.random.default_rng(length), draws=length)
    group = posterior.posterior_group(idata)
    monkeypatch.setattr(posterior, "BLOCK", 4 * 8 * (2 * 2 + 2 * 3))
    draws = list(posterior.open_posterior(idata, read(nmf)))
    for name, shape in (("W", (2, length, 2, 2)), ("H", (2, length, 2, 3))):
        np.testing.assert_array_equal(np.reshape([getattr(draw, name) for draw in draws], shape), group[name])
    assert [draw.at for draw in draws] == [(chain, n) for chain in range(2) for n in range(length)]
    some = max(1, length - 1)
    kept = posterior.spaced(length, some)
    found = [draw.W for draw in posterior.open_posterior(idata, read(nmf), some)]
    np.testing.assert_array_equal(np.reshape(found, (2, some, 2, 2)), group["W"].isel(draw=kept))
    monkeypatch.setattr(posterior, "BLOCK", 4 * 2 * 8 * 4)  # four draws of W of both chains
    np.testing.assert_allclose(mean_over_draws(group["W"]), group["W"].mean("draw"), **EXACT)
    monkeypatch.setattr(posterior, "BLOCK", 4 * 8 * 4)  # of one
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deviation of one draw
        spread = group["W"].std("draw", ddof=1)
        found = nz.moments(idata)
    np.testing.assert_allclose(found["W_mean"], group["W"].mean("draw"), **EXACT)
    np.testing.assert_allclose(found["W_sd"], spread, **EXACT)


def columns_that_are_predicted(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """All samples at once, in parts of our own, and as a user asks for them: the same draws."""
    x, _, _ = inputs(1, length)
    nmf = nz.poisson_nmf(x, rank=1)
    idata = random_idata(nmf, np.random.default_rng(length))
    whole = nz.predict(idata, nmf, random_seed=1)
    monkeypatch.setattr(posterior, "CHUNK", 1)
    assert len(list(posterior.column_parts(1, length))) == -(-length // 4)
    xr.testing.assert_identical(nz.predict(idata, nmf, random_seed=1), whole)
    blocks = list(nz.predict_blocks(idata, nmf, width=4, random_seed=1))
    assert all(block.sizes["obs"] == 4 for block in blocks[:-1])
    xr.testing.assert_identical(xr.concat(blocks, "obs"), whole)
    group = posterior.posterior_group(idata)
    mean = np.einsum("cdfk,cdkn->cdfn", group["W"], group["H"])
    found = _compat.group(nz.log_likelihood(idata, nmf, per="cell"), "log_likelihood")["X"]
    np.testing.assert_allclose(found, stats.poisson.logpmf(x, mean), **EXACT)


def cells_held_out(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """Every cell, or count, is in one part of a split, and none in both."""
    x, _, _ = inputs(2, length)
    whole = model(x, 2, None, None)
    split = holdout.hold_out(whole, 0.25, np.uint64(3))
    kept = split.training.data
    assert len(split.values) == max(round(0.5 * length), 0)
    both = kept.values.copy()
    both[split.rows, split.cols] += split.values
    np.testing.assert_array_equal(both, x)
    assert not kept.mask[split.rows, split.cols].any()
    assert kept.mask.sum() + len(split.values) == x.size
    rows, cols = np.nonzero(x)
    for is_complete in (True, False):
        cells = Cells(rows=rows, cols=cols, values=x[rows, cols], shape=x.shape, is_complete=is_complete)
        split = holdout.hold_out(model(x, 2, None, None, data=cells), 0.25, np.uint64(3))
        both, kept = np.zeros(x.shape), split.training.data
        np.add.at(both, (split.rows, split.cols), split.values)
        np.add.at(both, (kept.rows, kept.cols), kept.values)
        np.testing.assert_array_equal(both, x)


def columns_of_a_stream(length: int, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    """A block given at once is cut into the mini-batches that a user would give one by one."""
    x, W, _ = inputs(3, length)
    nmf = nz.gap(None, 2, shape=(3, 1))
    found = []
    for cuts in ([0, length], [*range(0, length, 4), length]):
        stream = nz.stream(nmf, engine=nz.OnlineEM(batch=4), random_seed=1, initvals={"W": W})
        for first, last in pairwise(cuts):
            stream.update(x[:, first:last])
        assert stream.columns_seen == length
        found.append(stream.W.to_numpy())
    np.testing.assert_array_equal(*found)


PLACES = {
    "a sound file: samples of a block": Place(4, blocks_of_a_file),
    "samples in memory: of a block": Place(4, blocks_of_samples),
    "a first look: samples of a block": Place(4, blocks_of_a_survey),
    "spectra: frames of a block": Place(4, frames_of_a_spectrum),
    "a sound: frames of a block": Place(4, frames_of_a_sound),
    "frames in random order": Place(4, rows_that_are_shuffled),
    "a separation: frames of a block": Place(4, frames_of_a_separation),
    "pictures: points of a line": Place(4, points_of_a_line),
    "stores: draws of a chunk": Place(4, draws_of_a_column),
    "stores: draws that are moved": Place(4, draws_of_a_store),
    "stores: bytes of a chunk": Place(4, bytes_of_a_chunk),
    "posteriors: draws that are read": Place(4, draws_that_are_read),
    "predictions: columns of a part": Place(4, columns_that_are_predicted),
    "held-out cells": Place(4, cells_held_out),
    "streams: columns of a mini-batch": Place(4, columns_of_a_stream),
}


@of_places(PLACES)
def test_no_piece_is_left_out(place, length, monkeypatch, tmp_path):
    PLACES[place].check(length, monkeypatch, tmp_path)
