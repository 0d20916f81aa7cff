"""Recordings, their spectra and the files of components: formats, blocks, and what is said of bad ones."""

from __future__ import annotations

import os
import re
import struct
import sys
import warnings
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import wavfile
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

import nmf_zoo as nz
from nmf_zoo.audio import recordings, wav
from nmf_zoo.audio.recordings import open_recording, survey
from nmf_zoo.audio.samples import FORMATS, decode, encode, whole_steps
from nmf_zoo.audio.sinks import Files, check_folder
from nmf_zoo.audio.sound import FLOOR, listen
from nmf_zoo.audio.spectra import Framing, Synthesis, make_framing, power_of, transform
from nmf_zoo.audio.wav import WavWriter
from nmf_zoo.errors import InputError, NmfZooWarning

RATE = 8000


def noise(n, channels=1, seed=0):
    """Samples within full scale, in steps of a 32-bit float so that every float format holds them."""
    return np.clip(np.random.default_rng(seed).normal(0, 0.2, (n, channels)), -0.99, 0.99).astype(np.float32)


def write(path, samples, name, rate=RATE):
    """By SciPy or the standard library, whichever can; the values that the file then holds."""
    form = FORMATS[name]
    steps = np.rint(samples * (form.steps - 1)).astype(np.int64)
    if name == "int24":
        padded = np.ascontiguousarray(steps, "<i4").view(np.uint8).reshape(-1, 4)
        with wave.open(str(path), "wb") as file:
            file.setparams((samples.shape[1], 3, rate, len(samples), "NONE", ""))
            file.writeframes(padded[:, :3].tobytes())
    elif form.kind == "f":
        wavfile.write(path, rate, samples.astype(name))
        return samples.astype(np.float64)
    else:
        wavfile.write(path, rate, (steps + (128 if name == "uint8" else 0)).astype(name))
    return steps / form.steps


def read_all(path, size=1000):
    return np.concatenate(list(open_recording(path).read(size)))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_in_blocks(tmp_path, name, channels):
    held = write(tmp_path / "a.wav", noise(2347, channels), name)
    recording = open_recording(tmp_path / "a.wav")
    assert (recording.rate, recording.channels, recording.form.name) == (RATE, channels, name)
    for size in (1, 1000, 10_000) if channels == 1 else (1000,):
        np.testing.assert_array_equal(read_all(tmp_path / "a.wav", size), held)
    np.testing.assert_allclose(np.concatenate(list(recording.mono(500))), held.mean(axis=1), rtol=1e-15, atol=1e-17)


@pytest.mark.parametrize("kind", ["WAVEX", "RF64", "WAV"])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT"])
def test_headers_of_another_writer(tmp_path, kind, subtype):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", noise(999, 2), RATE, subtype=subtype, format=kind)
    expected, _ = soundfile.read(tmp_path / "a.wav", dtype="float64")
    np.testing.assert_array_equal(read_all(tmp_path / "a.wav"), expected)


def test_chunks_between_header_and_samples(tmp_path):
    held = write(tmp_path / "a.wav", noise(50), "int16")
    content = (tmp_path / "a.wav").read_bytes()
    at = content.index(b"data")
    odd = b"LIST" + struct.pack("<I", 5) + b"INFO!" + b"\0"
    (tmp_path / "b.wav").write_bytes(content[:at] + odd + content[at:] + b"id3 " + struct.pack("<I", 4) + b"tags")
    np.testing.assert_array_equal(read_all(tmp_path / "b.wav"), held)


def test_a_file_of_a_pipe_ends_where_it_ends(tmp_path):
    held = write(tmp_path / "a.wav", noise(50), "int16")
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[40:44] = struct.pack("<I", 0xFFFFFFFF)
    (tmp_path / "a.wav").write_bytes(content)
    np.testing.assert_array_equal(read_all(tmp_path / "a.wav"), held)


def test_a_truncated_file_is_used_with_a_warning(tmp_path):
    held = write(tmp_path / "a.wav", noise(8000, 2), "int24")
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[: 44 + 6 * 2000 + 4])
    with pytest.warns(NmfZooWarning, match=r"a\.wav is truncated: its header tells of 1\.00 s, and 0\.25 s are there"):
        np.testing.assert_array_equal(read_all(tmp_path / "a.wav"), held[:2000])


def test_a_recording_that_was_broken_off_is_used_with_a_warning(tmp_path):
    held = write(tmp_path / "a.wav", noise(4000), "int16")
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[4:8] = content[40:44] = bytes(4)  # sizes that were never filled in
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.warns(NmfZooWarning, match=r"a\.wav is unfinished: its header tells of 0\.00 s, and 0\.50 s are there"):
        np.testing.assert_array_equal(read_all(tmp_path / "a.wav"), held)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_files_are_read_as_scipy_reads_them(tmp_path_factory, data):
    path, draw = tmp_path_factory.getbasetemp() / "any.wav", data.draw
    name, channels, n = draw(st.sampled_from(list(FORMATS))), draw(st.integers(1, 8)), draw(st.integers(1, 50))
    form = FORMATS[name]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    bits = (
        rng.normal(size=n * channels).astype(name).tobytes()
        if form.kind == "f"
        else rng.bytes(n * channels * form.width)
    )
    chunks = [chunk(b"fmt ", fmt_of(form, channels, draw(st.booleans()) and form.width > 1))]
    for other in draw(st.lists(st.sampled_from([b"LIST", b"bext", b"fact", b"JUNK"]), max_size=3)):
        chunks.insert(draw(st.integers(0, len(chunks))), chunk(other, bytes(draw(st.integers(4, 9)))))
    body = b"WAVE" + b"".join(chunks) + chunk(b"data", bits)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)
        rate, expected = wavfile.read(path)
    expected = expected.reshape(n, channels).astype(np.float64)
    if form.kind != "f":
        expected = (expected - 128 * (name == "uint8")) / (2.0**31 if name == "int24" else form.steps)
    recording = open_recording(path)
    assert (recording.rate, recording.channels, recording.form) == (rate, channels, form)
    np.testing.assert_array_equal(read_all(path, draw(st.integers(1, 60))), expected)


def chunk(name, content):
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def fmt_of(form, channels, is_extensible):
    coding, frame = (3 if form.kind == "f" else 1), channels * form.width
    plain = struct.pack("<HIIHH", channels, RATE, RATE * frame, frame, 8 * form.width)
    if not is_extensible:
        return struct.pack("<H", coding) + plain
    guid = struct.pack("<H", coding) + bytes.fromhex("000000001000800000aa00389b71")
    return struct.pack("<H", 0xFFFE) + plain + struct.pack("<HHI", 22, 8 * form.width, 0) + guid


@pytest.mark.parametrize("name", FORMATS)
def test_written_files_are_read_by_others(tmp_path, name):
    form, samples = FORMATS[name], noise(333)[:, 0].astype(np.float64)
    steps = samples if form.kind == "f" else np.rint(samples * form.steps)
    writer = WavWriter(tmp_path / "a.wav", RATE, 333, form)
    for part in np.split(steps, [100, 101]):
        writer.write(part)
    writer.close()
    rate, found = wavfile.read(tmp_path / "a.wav")
    assert rate == RATE
    found = found.astype(np.float64)
    expected = {"uint8": steps + 128, "int24": steps * 256}.get(name, steps)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(read_all(tmp_path / "a.wav")[:, 0], steps if form.kind == "f" else steps / form.steps)
    assert (tmp_path / "a.wav").stat().st_size % 2 == 0


@pytest.mark.parametrize("name", ["int16", "float32"])
def test_files_above_4_gib_are_rf64(tmp_path, name, monkeypatch):
    monkeypatch.setattr(wav, "LARGEST", 100)
    samples = noise(333)[:, 0].astype(np.float64)
    steps = samples if name == "float32" else np.rint(samples * FORMATS[name].steps)
    writer = WavWriter(tmp_path / "a.wav", RATE, 333, FORMATS[name])
    writer.write(steps)
    writer.close()
    assert (tmp_path / "a.wav").read_bytes().startswith(b"RF64")
    held = steps if name == "float32" else steps / FORMATS[name].steps
    np.testing.assert_array_equal(read_all(tmp_path / "a.wav")[:, 0], held)
    soundfile = pytest.importorskip("soundfile")
    np.testing.assert_array_equal(soundfile.read(tmp_path / "a.wav", dtype="float64")[0], held)


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_come_back(name):
    form = FORMATS[name]
    numbers = noise(100)[:, 0].astype(np.float64)
    numbers = numbers if form.kind == "f" else np.array([-form.steps, -1.0, 0.0, 1.0, form.steps - 1.0])
    found = decode(encode(numbers, form), form, 1)[:, 0]
    np.testing.assert_array_equal(found, numbers if form.kind == "f" else numbers / form.steps)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "AIFF"])
def test_other_files_by_the_library(tmp_path, kind):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, noise(3000, 2), RATE, format=kind)
    expected, _ = soundfile.read(path, dtype="float64")
    recording = open_recording(path)
    assert recording.form.name == {"OGG": "float32"}.get(kind, "int16")
    np.testing.assert_array_equal(read_all(path), expected)


def test_a_truncated_file_of_the_library_is_used_with_a_warning(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", np.tile(noise(100_000), (4, 1)), RATE)
    expected, _ = soundfile.read(tmp_path / "a.flac", dtype="float64")
    (tmp_path / "a.flac").write_bytes((tmp_path / "a.flac").read_bytes()[:400_000])
    with pytest.warns(NmfZooWarning, match=r"a\.flac is truncated: its header tells of 50\.00 s, and \d+\.\d+ s are"):
        found = survey(open_recording(tmp_path / "a.flac"))
    assert 0 < found.n_samples < 400_000
    held = read_all(tmp_path / "a.flac", 1 << 16)[:, 0]
    np.testing.assert_array_equal(held, expected[: len(held)])
    assert len(held) == found.n_samples


def test_without_the_library_other_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC" + bytes(100))
    with pytest.raises(InputError, match=r"a\.flac: got no WAV file.*pip install 'nmf_zoo\[audio\]'"):
        open_recording(tmp_path / "a.flac")
    held = write(tmp_path / "a.wav", noise(100), "int24")
    np.testing.assert_array_equal(read_all(tmp_path / "a.wav"), held)


def header(coding=1, channels=1, rate=RATE, bits=16, frame=None, data=b"\0" * 100, fmt=None):
    frame = channels * bits // 8 if frame is None else frame
    fmt = struct.pack("<HHIIHH", coding, channels, rate, rate * frame, frame, bits) if fmt is None else fmt
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(fmt)) + fmt
    body += b"" if data is None else b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file; expected a sound file"),
        (b"RI", "got no WAV file"),
        (b"no sound at all, but text", "got no WAV file"),
        (header(data=b""), "got a WAV file without a single sample"),
        (header(data=b"\0"), "got a WAV file without a single sample"),
        (header(data=None), "got a WAV file without samples"),
        (header(fmt=b"\1\0"), "got a WAV file whose header ends early"),
        (header(channels=0, frame=0), "got a WAV header of 0 channels"),
        (header(rate=0), "got a WAV header of 1 channels, 0 Hz"),
        (header(coding=2, bits=4, frame=256), "got WAV of ADPCM"),
        (header(bits=64, frame=8), "bits in 8 bytes; expected samples of uint8, int16, int24"),
        (b"RIFF\x04\0\0\0WAVE", "got a WAV file without a format"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, content, message, monkeypatch):
    monkeypatch.setattr(recordings, "find_spec", lambda name: None)
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_recording(tmp_path / "a.wav")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_library_cant_read_either(tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "a.txt").write_text("no sound at all, but text")
    with pytest.raises(InputError, match=r"a\.txt: got no WAV file, and nothing else that can be read"):
        open_recording(tmp_path / "a.txt")


def test_places_without_a_file(tmp_path):
    with pytest.raises(InputError, match="got no such file"):
        open_recording(tmp_path / "none.wav")
    with pytest.raises(InputError, match="got a folder"):
        open_recording(tmp_path)
    with pytest.raises(InputError, match="got a pipe or device, and the recording is gone through several times"):
        open_recording(os.devnull)
    with pytest.raises(InputError, match="rate: got 8000; expected None"):
        open_recording(tmp_path / "none.wav", 8000)


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros(10), None, "rate: got None"),
        (np.zeros(10), 0, "rate: got 0"),
        (np.zeros(10), 1.5, "rate: got 1.5"),
        (np.zeros(0), 10, "samples: got samples of shape"),
        (np.zeros((2, 3, 4)), 10, "samples: got samples of shape"),
        (np.zeros((2, 1000)), 10, "transpose them"),
        (np.zeros(10, "complex"), 10, "dtype complex128"),
        (np.zeros(10, "int64"), 10, "samples: got dtype int64; expected one of uint8, int16, int32"),
        (["a", "b"], 10, "samples: got samples of shape"),
    ],
)
def test_samples_that_cant_be_used(samples, rate, message):
    with pytest.raises(InputError, match=message):
        open_recording(samples, rate)


@pytest.mark.parametrize("name", ["uint8", "int16", "int32", "float32", "float64"])
def test_samples_in_memory_are_read_as_from_a_file(tmp_path, name):
    held = write(tmp_path / "a.wav", noise(100, 2), name)
    _, samples = wavfile.read(tmp_path / "a.wav")
    recording = open_recording(samples, RATE)
    np.testing.assert_array_equal(np.concatenate(list(recording.read(33))), held)
    assert recording.form.name == name


def test_what_a_first_look_refuses_and_warns_of():
    samples = noise(5000)[:, 0].astype(np.float64)
    assert survey(open_recording(samples, RATE)).n_samples == 5000
    for value in (np.nan, np.inf, -1e200):
        samples[4000] = value
        with pytest.raises(InputError, match=rf"samples: got {re.escape(str(value))} at 0\.500 s; expected finite"):
            survey(open_recording(samples, RATE))
    with pytest.raises(InputError, match="got silence: every sample is 0"):
        survey(open_recording(np.zeros(100), RATE))
    opposite = np.stack([samples[:100], -samples[:100]], axis=1)
    with pytest.raises(InputError, match="got silence: the mean of its channels is 0"):
        survey(open_recording(opposite, RATE))
    loud = np.clip(30000 * np.sin(np.arange(1000) / 20) * 2, -32768, 32767).astype(np.int16)
    with pytest.warns(NmfZooWarning, match=r"0\.\d+ of the samples \(\d+\) are clipped"):
        survey(open_recording(loud, RATE))
    with warnings.catch_warnings():  # one sample at full scale is no clipping
        warnings.simplefilter("error")
        survey(open_recording((noise(100)[:, 0] / np.abs(noise(100)).max()), RATE))


def test_short_and_constant_recordings_are_refused():
    framing = make_framing(RATE)
    with pytest.raises(InputError, match=r"got 255 samples \(31\.9 ms\); expected at least one window, 256 samples"):
        listen(open_recording(noise(255)[:, 0], RATE), framing)
    listen(open_recording(noise(256)[:, 0], RATE), framing)


SHAPES = [(1000, 32, 16), (997, 20, 3), (1234, 32, 10), (31, 32, 16), (1, 8, 4), (513, 512, 256), (513, 512, 512 // 3)]


@pytest.mark.parametrize(("n_samples", "length", "hop"), SHAPES)
def test_synthesis_returns_the_signal(n_samples, length, hop):
    framing, x = Framing(RATE, length, hop), np.random.default_rng(n_samples).normal(size=n_samples)
    found = {}
    for size, cuts in ((1, 7), (5, 1), (1000, 3)):
        spectra = list(transform(np.array_split(x, cuts), framing, size))
        assert sum(map(len, spectra)) == framing.n_frames(n_samples)
        synthesis = Synthesis(framing, n_samples)
        back = np.concatenate([synthesis.add(frames) for frames in spectra])
        np.testing.assert_allclose(back, x, atol=1e-13)
        found[size] = np.concatenate(spectra)
    np.testing.assert_array_equal(found[1], found[5])
    np.testing.assert_array_equal(found[1], found[1000])


def test_frames_are_those_of_scipy():
    framing, x = Framing(RATE, 64, 32), np.random.default_rng(1).normal(size=500)
    ours = np.concatenate(list(transform([x], framing, 4)))
    theirs = ShortTimeFFT(framing.window, framing.hop, RATE, phase_shift=None)
    times = theirs.t(len(x))
    spectra = theirs.stft(x).T
    at = [int(np.argmin(np.abs(times - t))) for t in framing.times(np.arange(len(ours)))]
    np.testing.assert_allclose(np.abs(spectra[at]), np.abs(ours), atol=1e-12)
    np.testing.assert_allclose(theirs.dual_win, framing.dual, atol=1e-12)


def test_power_is_that_of_the_samples():
    x = np.random.default_rng(2).normal(0, 0.3, 200_000)
    P = nz.power_spectrogram(x, RATE)
    np.testing.assert_allclose(P.mean("time").mean(), 0.09, rtol=0.02)
    tone = nz.power_spectrogram(np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE), RATE, window=64, hop=16)
    assert float(tone["frequency"][tone.mean("time").argmax("frequency")]) == 1000.0
    assert (tone.sizes["frequency"], float(tone["time"][1] - tone["time"][0])) == (256, 0.016)
    click = np.zeros(RATE)
    click[4000] = 1.0
    power = nz.power_spectrogram(click, RATE).sum("frequency")
    assert abs(float(power["time"][power.argmax("time")]) - 0.5) <= 0.008


def test_a_spectrogram_is_declared_with_its_labels(tmp_path):
    write(tmp_path / "a.wav", noise(4000, 2), "int24")
    P = nz.power_spectrogram(tmp_path / "a.wav")
    model = nz.is_nmf(P, 2)
    np.testing.assert_array_equal(model.coords["feature"], P["frequency"])
    np.testing.assert_array_equal(model.coords["obs"], P["time"])


@pytest.mark.parametrize(
    ("rate", "window", "hop", "length", "step"),
    [
        (16000, None, None, 512, 256),
        (22050, None, None, 720, 360),
        (44100, None, None, 1440, 720),
        (8000, 20, 5, 160, 40),
        (16000, 32, 16, 512, 256),
    ],
)
def test_windows_are_lengths_that_are_fast(rate, window, hop, length, step):
    assert make_framing(rate, window, hop) == Framing(rate, length, step)


@pytest.mark.parametrize(
    ("window", "hop", "message"),
    [
        (0, None, "window: got 0; expected milliseconds"),
        (np.nan, None, "window: got nan"),
        ("a", None, "window: got 'a'"),
        (0.1, None, "window: got 0.1 ms, 1 sample at 8000 Hz; expected at least 4"),
        (32, 20, "hop: got 20 ms, 160 samples at 8000 Hz; expected 1 to 128 samples"),
        (32, 0.01, "hop: got 0.01 ms, 0 samples"),
        (32, -1, "hop: got -1"),
    ],
)
def test_windows_that_cant_be(window, hop, message):
    with pytest.raises(InputError, match=message):
        make_framing(RATE, window, hop)


def test_lines_without_sound_are_left_out_of_the_model():
    rng, framing = np.random.default_rng(3), make_framing(RATE)
    spectrum = np.fft.rfft(rng.normal(size=32_000))
    spectrum[8000:] = 0.0  # as above the cut-off of a lossy format
    x = np.concatenate([np.zeros(8000), np.fft.irfft(spectrum) * hann(32_000)])
    sound = listen(open_recording(x, RATE), framing)
    assert 60 <= len(sound.lines) < 128
    assert sound.lines[0] == 1
    np.testing.assert_array_equal(sound.lines[sound.nearest[: len(sound.lines)]][1:], sound.lines[:-1])
    assert np.all(sound.nearest[len(sound.lines) + 1 :] == len(sound.lines) - 1)
    assert sound.nearest[0] == 0
    blocks = list(sound.frames())
    silent = np.concatenate([frames.silent for frames in blocks])
    assert silent[:60].all()
    assert sound.n_sounding == (~silent).sum() > 200
    sounding = list(sound.sounding(100))
    assert {len(block) for block in sounding[:-1]} == {100}
    power = np.concatenate([frames.power for frames in blocks])[~silent]
    np.testing.assert_array_equal(np.concatenate(sounding), power)
    assert sound.floor == FLOOR
    np.testing.assert_allclose(sound.unit, power_of(next(transform([x], framing, 400))).mean())


@pytest.mark.parametrize(("name", "channels"), [("uint8", 1), ("int16", 1), ("int16", 2), ("float32", 1)])
def test_the_noise_of_rounding_is_the_floor(tmp_path, name, channels):
    spectrum = np.fft.rfft(np.random.default_rng(4).normal(size=(80_000, channels)), axis=0)
    spectrum[20_000:] = 0.0
    samples = 0.1 * np.fft.irfft(spectrum, axis=0) * hann(80_000)[:, None]
    write(tmp_path / "a.wav", samples, name)
    sound = listen(open_recording(tmp_path / "a.wav"), make_framing(RATE))
    empty = nz.power_spectrogram(tmp_path / "a.wav").sel(frequency=slice(3000, 3900)).mean().item() / sound.unit
    if name == "float32":
        assert sound.floor == FLOOR
    else:  # where it fades, rounding to 8 bits is less and less independent of the signal
        assert sound.floor == pytest.approx(empty, rel=0.2 if name == "uint8" else 0.05)
        assert 1950 < sound.frequencies.max() < 2600


def test_nothing_but_noise_of_rounding_is_refused():
    samples = np.random.default_rng(5).choice([-1, 0, 1], 8000, p=[0.1, 0.8, 0.1]).astype(np.int16)
    with pytest.raises(InputError, match="got noise at all frequencies, as faint as rounding to int16 makes it"):
        listen(open_recording(samples, RATE), make_framing(RATE))


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_components_of_integers_sum_to_the_whole_step_for_step(rank):
    rng, form = np.random.default_rng(rank), FORMATS["int16"]
    whole = rng.integers(-30000, 30000, 500) / form.steps
    shares = rng.dirichlet(np.ones(rank), 500).T
    steps, cut = whole_steps(whole * shares, form)
    np.testing.assert_array_equal(steps.sum(axis=0), whole * form.steps)
    assert np.abs(steps - whole * shares * form.steps).max() < 1.0
    assert not cut.any()


def test_what_is_beyond_full_scale_is_cut_and_said(tmp_path):
    form = FORMATS["int16"]
    parts = np.array([[0.5, 1.5, 0.1], [0.1, -1.0, 0.1]])
    steps, cut = whole_steps(parts, form)
    assert steps.max() == 32767
    assert cut.tolist() == [1, 0]
    np.testing.assert_array_equal(steps.sum(axis=0), np.rint(parts.sum(axis=0) * form.steps))
    with Files(tmp_path, 2, RATE, 3, form) as files:
        files.write(parts)
    with pytest.warns(NmfZooWarning, match=r"component_2\.wav goes beyond full scale: 1 of its samples were cut"):
        files.name([1, 0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["component_1.wav", "component_2.wav"]
    np.testing.assert_allclose(read_all(tmp_path / "component_2.wav")[:, 0], [0.5, 1.0, 0.1], atol=1e-4)


def test_only_folders_of_ours_are_replaced(tmp_path):
    (tmp_path / "parts").mkdir()
    check_folder(tmp_path / "parts", force=False)  # empty
    (tmp_path / "parts" / "component_12.wav").touch()
    with pytest.raises(InputError, match="which exists"):
        check_folder(tmp_path / "parts", force=False)
    check_folder(tmp_path / "parts", force=True)
    (tmp_path / "parts" / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"which holds 'thesis\.tex'"):
        check_folder(tmp_path / "parts", force=True)
    with pytest.raises(InputError, match="a file; expected the name of a folder"):
        check_folder(tmp_path / "parts" / "thesis.tex", force=True)
    with pytest.raises(InputError, match="the working folder"):
        check_folder(Path(), force=True)
    with pytest.raises(InputError, match="make it"):
        check_folder(tmp_path / "no" / "parts", force=True)
