"""``nmf-zoo separate`` and ``nz.separate``: components that sum to the recording, files, bad input, and going on."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.io import wavfile
from scipy.signal import resample_poly

import nmf_zoo as nz
from nmf_zoo.audio import learning, parts
from nmf_zoo.audio.learning import shuffled, spread_frames
from nmf_zoo.audio.recordings import open_recording
from nmf_zoo.audio.sound import listen
from nmf_zoo.audio.spectra import make_framing
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.interfaces.cli import main
from nmf_zoo.runtime import checkpoint as checkpoints
from nmf_zoo.streaming.stream import Stream
from tests.forked import Forked
from tests.sounds import RATE, distortion, three_sources
from tests.unit.test_audio import read_all, write

pytest.importorskip("h5netcdf")
FEW = {"random_seed": 1, "quiet": True, "cores": 1}
QUICK = {**FEW, "engine": nz.SimulatedOnlineEM(sweeps=4, keep=2), "passes": 1}
WORDS = ("--random-seed", "1", "--cores", "1", "--sweeps", "4", "--keep", "2", "--passes", "1")


class Sketch:
    """Stands in for a figure, which takes longer to draw than all the rest."""

    def savefig(self, file, format, dpi):
        file.write(b"a picture")


@pytest.fixture(autouse=True)
def sketches(request, monkeypatch):
    """No pictures but where a test asks for them."""
    if "with_picture" not in request.fixturenames:
        pictures = pytest.importorskip("nmf_zoo.audio.pictures", exc_type=ImportError)
        monkeypatch.setattr(pictures, "draw_components", lambda found: Sketch())


@pytest.fixture
def with_picture():
    """Pictures are drawn."""
    pytest.importorskip("matplotlib")


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The samples of a short 16-bit file in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    return write("song.wav", song(2.0)[:, None], "int16")[:, 0]


def song(seconds):
    """The sources on a floor of noise, which leaves no frame silent."""
    mixed = three_sources(seconds).sum(axis=0)
    return mixed + 1e-3 * np.random.default_rng(9).normal(size=len(mixed))


def run(*words):
    """The exit code, also where argparse exits."""
    try:
        return main([*words])
    except SystemExit as stop:
        return stop.code


def test_sources_are_separated():
    sources = three_sources()
    mixed = song(12.0)
    found = nz.separate(mixed, 3, rate=RATE, **FEW)
    assert np.all(distortion(sources, np.stack([mixed] * 3)) < 4)
    assert np.all(distortion(sources, found["sound"].to_numpy()) > (12, 9.5, 11))
    np.testing.assert_allclose(found["sound"].sum("component"), mixed, atol=1e-12)
    np.testing.assert_allclose(found["share"].sum(), 1.0)
    energy = (found["sound"] ** 2).sum("sample")
    np.testing.assert_allclose(energy / energy.sum(), found["share"], atol=0.03)
    np.testing.assert_allclose(found["W"].mean("frequency"), 1.0)
    P = nz.power_spectrogram(mixed, RATE)
    np.testing.assert_allclose((P / (found["W"] @ found["H"])).mean(), 1.0, rtol=0.1)  # where the likelihood is highest
    of_tones = np.sort(found["frequency"][found["W"].argmax("frequency")][:2])
    np.testing.assert_allclose(of_tones, [330, 660], atol=20)


def oversampled(seed):
    """Ratios of the sources from a 16-bit file of twice the rate they need, half of it noise of rounding."""
    sources = 0.3 * three_sources()
    mixed = sources.sum(axis=0) + 1e-5 * np.random.default_rng(9).normal(size=sources.shape[1])
    samples = np.rint(resample_poly(mixed, 2, 1) * 2**15).astype(np.int16)
    found = nz.separate(samples, 3, rate=2 * RATE, **{**FEW, "random_seed": seed})
    return distortion(resample_poly(sources, 2, 1, axis=1), found["sound"].to_numpy())


def test_the_noise_of_rounding_is_no_component():
    assert np.all(oversampled(1) > (13, 10.5, 12))  # 12.2, 9.6, 11.7 without a floor


@pytest.mark.statistical
def test_no_seed_misses_the_sources():
    sources = 0.3 * three_sources()
    mixed = sources.sum(axis=0) + 1e-5 * np.random.default_rng(9).normal(size=sources.shape[1])
    for seed in range(6):
        found = nz.separate(mixed, 3, rate=RATE, **{**FEW, "random_seed": seed})
        assert distortion(sources, found["sound"].to_numpy()).min() > 9, f"seed {seed}"


@pytest.mark.parametrize(("name", "channels"), [(n, c) for n in ("int16", "int24", "float32") for c in (1, 2)])
@pytest.mark.parametrize("rank", [1, 3])
def test_components_sum_to_the_recording(tmp_path, name, channels, rank):
    samples = np.stack([three_sources(1.1, seed=c).sum(axis=0) for c in range(channels)], axis=1)
    mixed = write(tmp_path / "a.wav", samples, name).mean(axis=1)
    nz.separate(tmp_path / "a.wav", rank, tmp_path / "parts", window=20, hop=7.5, **QUICK)
    files = sorted((tmp_path / "parts").glob("component_*.wav"))
    assert len(files) == rank
    total = sum(read_all(path)[:, 0] for path in files)
    assert {open_recording(path).form.name for path in files} == {name}
    assert {open_recording(path).rate for path in files} == {RATE}
    step = 1e-6 if name == "float32" else 0.51 / open_recording(files[0]).form.steps
    assert total.shape == mixed.shape
    assert np.abs(total - mixed).max() <= (step if channels == 2 or name == "float32" else 0)


@pytest.mark.parametrize("name", ["uint8", "int32", "float64"])
def test_other_formats(tmp_path, name):
    mixed = write(tmp_path / "a.wav", three_sources(0.7).sum(axis=0)[:, None], name)
    nz.separate(tmp_path / "a.wav", 2, tmp_path / "parts", **QUICK)
    total = sum(read_all(path) for path in sorted((tmp_path / "parts").glob("component_*.wav")))
    np.testing.assert_allclose(total, mixed, atol=1e-12)


def test_a_dc_offset_and_silence_are_shared_out(tmp_path):
    mixed = song(2.0) * np.repeat([0.0, 1.0, 0.0, 1.0], RATE // 2) + 0.1
    found = nz.separate(mixed, 2, rate=RATE, **QUICK)
    np.testing.assert_allclose(found["sound"].sum("component"), mixed, atol=1e-12)
    mixed -= 0.1
    mixed[:100] = 0.0
    found = nz.separate(mixed, 2, rate=RATE, **QUICK)
    assert np.all(found["H"].to_numpy()[:, 4:25] == 0)
    assert np.all(found["H"].to_numpy()[:, 36:60] > 0)
    assert np.isfinite(found["H_sd"]).all()


def test_other_sample_formats_by_the_shell(short, capfd):
    assert run("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS, "--sample-format", "float32") == 0
    assert open_recording("parts/component_1.wav").form.name == "float32"
    assert run("separate", "song.wav", "--rank", "2", "-o", "more", *WORDS, "--sample-format", "int12") == 2
    assert "--sample-format: got 'int12'; expected one of ['uint8', 'int16'" in capfd.readouterr().err


def test_files_and_lines_of_the_shell(short, with_picture, capfd):
    assert run("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS) == 0
    said = capfd.readouterr()
    names = ["component_1.wav", "component_2.wav", "components.nc", "components.png"]
    assert sorted(path.name for path in Path("parts").iterdir()) == names
    assert Path("parts/components.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in Path().iterdir()) == ["parts", "song.wav"]
    lines = said.out.splitlines()
    expected = "song.wav: 2.0 s at 8000 Hz, int16; 126 frames of 128 frequencies (window 32.0 ms, hop 16.0 ms)"
    assert lines[0] == expected
    assert "energy" in lines[1]
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in lines[3:5]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.11)
    assert re.fullmatch(r"wrote parts in [\d.]+ s, [\d.]+ times as fast as it plays", lines[-1])
    assert "learning" in said.err
    assert "separating" in said.err
    found = nz.separate("song.wav", 2, **QUICK)
    total = sum(wavfile.read(f"parts/component_{k}.wav")[1].astype(int) for k in (1, 2))
    np.testing.assert_array_equal(total, short * 2**15)
    with xr.open_dataset("parts/components.nc", engine="h5netcdf") as stored:
        for name in ("W", "H", "H_sd", "share"):
            np.testing.assert_array_equal(stored[name], found[name])
        assert (stored.attrs["engine.sweeps"], stored.attrs["random_seed"], stored.attrs["passes"]) == (4, "1", 1)
        assert stored.attrs["status"] == "complete"


def test_quiet_says_nothing(short, capfd):
    assert run("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS, "--quiet") == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rank", "0"), "--rank: got 0; expected an integer >= 1"),
        (("--rank", "129"), "--rank: got 129; expected at most 128, the number of frequencies"),
        (("--rank", "2", "--hop", "30"), "--hop: got 30.0 ms, 240 samples at 8000 Hz; expected 1 to 128"),
        (("--rank", "2", "--window", "0"), "--window: got 0.0; expected milliseconds"),
        (("--rank", "2", "--window", "3000"), "song.wav: got 16,000 samples (2000.0 ms); expected at least one window"),
        (("--rank", "2", "--exponent", "0.5"), "--exponent: got 0.5; expected a number in (1/2, 1]"),
        (("--rank", "2", "--keep", "9", "--sweeps", "4"), "--keep: got 9; expected at most --sweeps 4"),
        (("--rank", "2", "--passes", "0"), "--passes: got 0; expected an integer >= 1"),
        (("--rank", "2", "--alpha", "-1"), "--alpha: got"),
        (("--rank", "2", "--cores", "0"), "--cores: got 0"),
        (("--rank", "2", "--random-seed", "x"), "--random-seed: got 'x'"),
        (("--rank", "2", "--engine", "em"), "unrecognized arguments: --engine em"),
        ((), "the following arguments are required: --rank"),
    ],
)
def test_bad_words_are_one_line(short, words, message, capfd):
    assert run("separate", "song.wav", "-o", "parts", "--checkpoint", "state", *words) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(path.name for path in Path().iterdir()) == ["song.wav"]


@pytest.mark.parametrize("name", ["none.wav", ".", "text.wav", "empty.wav", "silent.wav"])
def test_bad_files_are_one_line(short, name, capfd):
    Path("text.wav").write_text("no sound")
    Path("empty.wav").touch()
    wavfile.write("silent.wav", RATE, np.zeros(1000, np.int16))
    assert run("separate", name, "--rank", "2", "-o", "parts") == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"nmf-zoo: {name}: got ")
    assert not Path("parts").exists()


def test_an_output_is_not_overwritten_without_force(short, capfd):
    words = ("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS, "--quiet")
    assert run(*words) == 0
    assert run(*words) == 2
    assert (
        "--output: got parts, which exists; expected a new name; or --force to overwrite it" in capfd.readouterr().err
    )
    assert run(*words[:3], "1", *words[4:], "--force") == 0
    assert not Path("parts/component_2.wav").exists()


def test_damage_is_said_once_and_used(short, capfd):
    loud = np.clip(three_sources(2.0).sum(axis=0) * 9e4, -32768, 32767).astype(np.int16)
    wavfile.write("loud.wav", RATE, loud)
    Path("loud.wav").write_bytes(Path("loud.wav").read_bytes()[:-8000])
    assert run("separate", "loud.wav", "--rank", "2", "-o", "parts", *WORDS, "--quiet") == 0
    said = capfd.readouterr().err.splitlines()
    assert said[0] == (
        "nmf-zoo: warning: loud.wav is truncated: its header tells of 2.00 s, and 1.50 s are there, which are used"
    )
    assert "clipped" in said[1]
    rate, first = wavfile.read("parts/component_1.wav")
    assert (rate, len(first)) == (RATE, 12000)


class Stopped(Exception):
    """A run that dies."""


def stop_after(monkeypatch, number, kind, owner=Stream, method="update"):
    """Let a method be called so many times, then fail once."""
    inner, calls = getattr(owner, method), []

    def counted(*args, **words):
        calls.append(1)
        if len(calls) == number:
            raise kind
        return inner(*args, **words)

    monkeypatch.setattr(owner, method, counted)


def test_threads_and_blocks_change_nothing(short, monkeypatch):
    options = {**QUICK, "engine": nz.SimulatedOnlineEM(sweeps=4, keep=2, batch=7), "passes": 2}
    one = nz.separate("song.wav", 3, **options)
    two = nz.separate("song.wav", 3, **{**options, "cores": 2})
    xr.testing.assert_equal(one, two)
    monkeypatch.setattr(parts, "MOST_TIMES", 50)
    few = nz.separate("song.wav", 3, **options)
    assert few.sizes["time"] == 42
    np.testing.assert_array_equal(one["sound"], few["sound"])
    np.testing.assert_allclose(few["H"], one["H"].coarsen(time=3).mean())
    np.testing.assert_allclose(few["H_sd"] ** 2, (one["H_sd"] ** 2).coarsen(time=3).mean())
    np.testing.assert_allclose(few["time"], one["time"].coarsen(time=3).mean())


@pytest.mark.parametrize("owner", [Stream, parts])
def test_a_run_that_died_goes_on_to_the_same_bits(short, monkeypatch, owner):
    whole = nz.separate("song.wav", 3, **QUICK)
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(parts, "BLOCK", 30)
    with monkeypatch.context() as patch:
        stop_after(patch, 3, Stopped, owner, "update" if owner is Stream else "activations_of")
        with pytest.raises(Stopped):
            nz.separate("song.wav", 3, "parts", checkpoint="state", **QUICK)
    assert not Path("parts").exists()
    with pytest.raises(InputError, match=r"of another run: rank was 3, now 2"):
        nz.separate("song.wav", 2, "parts", checkpoint="state", **QUICK)
    done = []
    monkeypatch.setattr(Stream, "update", spy(Stream.update, done))
    monkeypatch.setattr(parts, "activations_of", spy(parts.activations_of, done))
    found = nz.separate("song.wav", 3, "parts", checkpoint="state", **QUICK)
    assert len(done) == (4 - 2 + 5 if owner is Stream else 5 - 2)
    for name in ("W", "H", "H_sd"):
        np.testing.assert_array_equal(found[name], whole[name])
    np.testing.assert_allclose(found["share"], whole["share"], rtol=1e-14)  # a sum over blocks
    sound = np.stack([read_all(f"parts/component_{k}.wav")[:, 0] for k in (1, 2, 3)])
    np.testing.assert_allclose(sound, whole["sound"], atol=2.0**-15)


def test_a_checkpoint_is_of_one_format_of_samples(tmp_path, monkeypatch):
    """Their noise of rounding is a part of the model."""
    monkeypatch.chdir(tmp_path)
    faint = np.round(song(1.0)[:, None] * 2.0**7) / 2.0**15
    for name in ("int16", "float32"):
        write(f"{name}.wav", faint, name)
    nz.separate("int16.wav", 2, checkpoint="state", **QUICK)
    with pytest.raises(InputError, match="of another run: recording was 8000 samples"):
        nz.separate("float32.wav", 2, checkpoint="state", **QUICK)


def spy(inner, calls):
    def counted(*args, **words):
        calls.append(1)
        return inner(*args, **words)

    return counted


def test_ctrl_c_while_learning_separates_with_what_there_is(short, monkeypatch, capfd):
    stop_after(monkeypatch, 3, KeyboardInterrupt)
    words = ("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS, "--quiet", "--checkpoint", "state")
    assert run(*words) == 130
    said = capfd.readouterr().err
    assert said == (
        "nmf-zoo: learning interrupted after 64 of 126 frames; parts holds what that gives; "
        "the same command with --force goes on from state\n"
    )
    total = sum(wavfile.read(f"parts/component_{k}.wav")[1].astype(int) for k in (1, 2))
    np.testing.assert_array_equal(total, short * 2**15)
    assert run(*words[:-3], *words[-2:], "--force") == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"wrote parts in [\d.]+ s, from where an earlier run ended", last)
    with xr.open_dataset("parts/components.nc", engine="h5netcdf") as stored:
        np.testing.assert_array_equal(stored["H"], nz.separate("song.wav", 2, **QUICK)["H"])


def test_ctrl_c_while_separating_writes_nothing(short, monkeypatch, capfd):
    stop_after(monkeypatch, 1, KeyboardInterrupt, parts, "activations_of")
    words = ("separate", "song.wav", "--rank", "2", "-o", "parts", *WORDS, "--quiet")
    assert run(*words, "--checkpoint", "state") == 130
    expected = "nmf-zoo: interrupted: the same command goes on from state; outputs are whole or absent\n"
    assert capfd.readouterr().err == expected
    assert not Path("parts").exists()
    stop_after(monkeypatch, 1, KeyboardInterrupt)
    assert run(*words) == 130
    assert capfd.readouterr().err == "nmf-zoo: interrupted; outputs are whole or absent\n"


def test_without_matplotlib_there_is_no_picture(short, monkeypatch):
    from nmf_zoo.audio import separation

    monkeypatch.setattr(separation, "find_spec", lambda name: None)
    with pytest.warns(NmfZooWarning, match=r"no components\.png: it needs matplotlib"):
        nz.separate("song.wav", 2, "parts", **QUICK)
    assert not Path("parts/components.png").exists()
    assert Path("parts/component_2.wav").exists()


@pytest.mark.parametrize("capacity", [1, 20, 64, 1000])
@pytest.mark.parametrize("n", [5, 32, 100])
def test_a_shuffle_gives_every_row_once_in_blocks_of_a_size(capacity, n):
    rows = np.arange(n)[:, None].astype(float)
    blocks = [rows[first : first + 8] for first in range(0, n, 8)]
    out = list(shuffled(iter(blocks), capacity, np.random.default_rng(1)))
    found = np.concatenate(out)
    assert {len(block) for block in out[:-1]} <= {8}
    assert sorted(found[:, 0]) == list(range(n))
    assert not np.array_equal(found, rows) or n <= 8 == capacity


def test_the_start_is_from_all_over_the_recording(short, monkeypatch):
    sound = listen(open_recording(Path("song.wav")), make_framing(RATE))
    monkeypatch.setattr(learning, "SAMPLE", 20)
    chosen = spread_frames(sound, np.random.default_rng(1))
    every = np.concatenate(list(sound.sounding(1000)))
    places = [int(np.flatnonzero((every == frame).all(axis=1))[0]) for frame in chosen]
    assert np.all(np.diff(places) > 0)
    even = (np.arange(20) + 0.5) * len(every) / 20
    assert np.all(np.abs(places - even) <= len(every) / 20)


def separate_and_save():
    checkpoints.EVERY, checkpoints.SHARE = 0.0, 1e9
    nz.separate("song.wav", 3, "parts", checkpoint="state", **FEW)


@pytest.mark.statistical
def test_a_killed_process_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """Long: twice of a recording that is long enough to be killed on the way."""
    monkeypatch.chdir(tmp_path)
    write("song.wav", song(20.0)[:, None], "int16")
    whole = nz.separate("song.wav", 3, **FEW)
    for name in ("learning.state", "0.state"):
        process = Forked(separate_and_save)
        until = time.monotonic() + 120
        while not Path("state", name).exists() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not Path("parts").exists()
    found = nz.separate("song.wav", 3, "parts", checkpoint="state", **FEW)
    for name in ("W", "H", "H_sd", "share"):
        np.testing.assert_array_equal(found[name], whole[name])


@pytest.mark.statistical
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_the_recording(tmp_path):
    """Long: it takes minutes of sound for memory to grow."""
    from benchmarks import audio

    short, long = audio.peaks_of_processes(tmp_path, (40, 140), buffer=1 << 19)
    assert long - short < audio.ALLOWED
