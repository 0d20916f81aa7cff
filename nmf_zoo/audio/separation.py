"""From a recording to its components: two passes over its frames in constant memory, and what they found.

P_fn, the power of frame n at frequency f, is exponential with mean (W H)_fn + floor, h_kn ~ InverseGamma(alpha, beta)
(:func:`~nmf_zoo.is_nmf`). The first pass learns W by simulated online EM (Cappe, Fevotte and Rohde 2011), the second
has the activations of every frame under the final W, and with them the components' sounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import __version__
from nmf_zoo.audio.learning import SavedLearning, first_profiles, learn
from nmf_zoo.audio.parts import Found, SavedActivations, separate_frames
from nmf_zoo.audio.recordings import open_recording
from nmf_zoo.audio.sinks import PICTURE, RESULT, Files, Memory, check_folder, choose_format
from nmf_zoo.audio.sound import Sound, listen
from nmf_zoo.audio.spectra import FREQUENCY, TIME, make_framing
from nmf_zoo.errors import InputError, under_names, warn_caller
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.inference.powers.online_em import SimulatedOnlineEM
from nmf_zoo.models import is_nmf
from nmf_zoo.netcdf import write_netcdf
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.runtime.checkpoint import Checkpoint, open_checkpoint
from nmf_zoo.streaming.stream import Stream, stream

COMPONENT, COMPLETE = "component", "complete"


@names_checked
def separate(
    recording: Path | str | Any,
    rank: int,
    output: Path | str | None = None,
    *,
    rate: int | None = None,
    window: float | None = None,
    hop: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    engine: SimulatedOnlineEM | str = "online_em",
    passes: int = 3,
    sample_format: str | None = None,
    random_seed: Any = None,
    cores: int | None = None,
    checkpoint: Path | str | None = None,
    force: bool = False,
    quiet: bool = False,
) -> xr.Dataset:
    """Separate a recording into components that sum to it.

    Parameters
    ----------
    recording : path of a sound file: WAV of 8 to 32 bits or floating point; FLAC, Ogg, MP3 and more with ``soundfile``.
        Or samples (n,) or (n, channels), of full scale 1 or of integers. Channels are mixed down to their mean
    rank : number of components
    output : folder for ``component_1.wav``, ..., ``components.png`` and ``components.nc``. It appears when it is
        complete. With None the sounds are in the result, in memory
    rate : samples per second, of samples
    window, hop : milliseconds; the default window is 32, up to the next length that is fast, the default hop half of it
    alpha, beta : of the activations' inverse-gamma prior
    engine : options of the engine, e.g. ``nz.SimulatedOnlineEM(sweeps=400, keep=200, leaps=0)``
    passes : how often the recording is gone through to learn the profiles
    sample_format : of the WAV files: "int16", "int24", "int32", "float32", ...; default that of the recording
    random_seed : as in :func:`~nmf_zoo.sample`
    cores : threads; results do not depend on it
    checkpoint : folder from which the same call goes on after it was killed, to the same bits
    force : replace an ``output`` of an earlier call
    quiet : no progress bars

    Returns
    -------
    Dataset
        ``W`` (frequency, component), the profiles, of mean one; ``H`` and ``H_sd`` (component, time), posterior mean
        and standard deviation of the activations under W: the power of a component in a frame, mean of the frequencies
        in W, in units of :func:`~nmf_zoo.power_spectrogram`. Where there are more than 4096 frames a time stands for
        several neighbours: H is their mean, ``H_sd`` the root mean square of theirs, that of a single frame. ``share``
        (component,) of the recording's energy, in falling order; without ``output`` also ``sound`` (component, sample)

    Notes
    -----
    In WAV files of integers the components sum to the mixed-down recording step for step. Its noise of rounding is a
    known background in the model, or one of 100 dB below the mean in floating point; frequencies at which there is
    nothing else are not in W.

    Ctrl-C while it learns goes
    on to separate with the profiles so far, and says so in ``attrs["status"]``; while it separates, it ends the call.

    Examples
    --------
    >>> import numpy as np
    >>> import nmf_zoo as nz
    >>> t = np.arange(16000) / 8000
    >>> x = 0.4 * np.sin(2 * np.pi * 440 * t) * (t % 0.5 < 0.3) + 0.01 * np.random.default_rng(1).normal(size=16000)
    >>> found = nz.separate(x, 2, rate=8000, random_seed=1, quiet=True)
    >>> bool(np.allclose(found["sound"].sum("component"), x))
    True
    """
    began = time.perf_counter()
    plan = SeparationPlan(rank, alpha, beta, resolve(engine), passes)
    check_counts(cores=(1 if cores is None else cores, 1))
    source = open_recording(recording, rate)
    framing, form = make_framing(source.rate, window, hop), choose_format(source.form, sample_format)
    _check_rank(rank, framing.length // 2, "a longer window has more")
    if output is not None:
        check_folder(Path(output), force)
    sound = listen(source, framing)
    _check_rank(rank, len(sound.lines), "nothing sounds at the others")
    with _checkpoint(checkpoint, sound, plan, random_seed) as (saved, entropy):
        learner, progress = _learn(sound, plan, SavedLearning(saved), entropy, cores, quiet)
        is_whole = progress["status"] == COMPLETE
        known = SavedActivations(saved.part(0) if saved is not None and is_whole else None)
        attributes = plan.attributes(sound, entropy) | progress
        if output is None:
            memory = Memory()
            found = separate_frames(sound, learner, memory, known, quiet)
            result = _describe(sound, learner, found).assign_attrs(attributes, seconds=time.perf_counter() - began)
            return result.assign(sound=((COMPONENT, "sample"), memory.samples[found.order]))
        with replacing(output, "output") as folder:
            folder.mkdir()
            with Files(folder, rank, framing.rate, sound.n_samples, form) as files:
                found = separate_frames(sound, learner, files, known, quiet)
            files.name(found.order)
            result = _describe(sound, learner, found).assign_attrs(attributes, seconds=time.perf_counter() - began)
            _write(result, folder)
            return result


def _check_rank(rank: int, n_lines: int, do: str) -> None:
    if rank > n_lines:
        raise InputError("rank", str(rank), f"at most {n_lines}, the number of frequencies", do)


@contextmanager
def _checkpoint(
    path: Path | str | None, sound: Sound, plan: SeparationPlan, random_seed: Any
) -> Iterator[tuple[Checkpoint | None, Any]]:
    """The checkpoint of this separation, if one is asked for, and the entropy of its seed."""
    entropy = entropy_of(random_seed)
    if path is None:
        yield None, entropy
        return
    facts = {name: repr(value) for name, value in plan.facts(sound).items()}
    recording = f"{sound.n_samples} samples of mean power {sound.unit!r} and floor {sound.floor!r}"
    facts |= {"recording": recording, "version": __version__}
    saved = open_checkpoint(Path(path), facts, entropy, random_seed is not None)
    try:
        yield saved, saved.entropy
    finally:
        saved.close()


def _learn(
    sound: Sound, plan: SeparationPlan, saved: SavedLearning, entropy: Any, cores: int | None, quiet: bool
) -> tuple[Stream, dict[str, Any]]:
    """The first pass, from where it was left; a stream, and what a result says of how that went."""
    begun = saved.load(cores)
    learner = plan.begin(sound, entropy, cores) if begun is None else begun
    status, resumed = COMPLETE, int(begun is not None)
    if not learn(sound, learner, plan.engine.batch, plan.passes, entropy, saved, quiet):
        status = f"learning interrupted after {learner.columns_seen} of {plan.passes * sound.n_sounding} frames"
    return learner, {"status": status, "resumed": resumed}


def _describe(sound: Sound, learner: Stream, found: Found) -> xr.Dataset:
    """The result, components in falling order of energy."""
    order, times = found.order, sound.framing.times(found.middles)
    W = learner.W.to_numpy()[:, order]
    size = W.mean(axis=0)
    power = size[:, None] * sound.unit
    return xr.Dataset(
        {
            "W": ((FREQUENCY, COMPONENT), W / size),
            "H": ((COMPONENT, TIME), found.mean[order] * power),
            "H_sd": ((COMPONENT, TIME), np.sqrt(found.variance[order]) * power),
            "share": (COMPONENT, found.energy[order] / found.energy.sum()),
        },
        {FREQUENCY: sound.frequencies, COMPONENT: np.arange(1, len(order) + 1), TIME: times},
    )


def _write(result: xr.Dataset, folder: Path) -> None:
    """The picture and the numbers."""
    write_netcdf(result, folder / RESULT)
    if find_spec("matplotlib") is None:
        text = f"no {PICTURE}: it needs matplotlib, pip install 'nmf_zoo[plots]'"
        warn_caller(text)
        return
    from nmf_zoo.audio.pictures import draw_components

    write_figure(draw_components(result), folder / PICTURE)


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeparationPlan:
    """What is asked for, beside the recording; see :func:`separate`."""

    rank: int
    alpha: float
    beta: float
    engine: SimulatedOnlineEM
    passes: int

    def __post_init__(self) -> None:
        check_counts(rank=(self.rank, 1), passes=(self.passes, 1))
        self._model((self.rank, 1), None)  # refuses alpha and beta before any work

    def _model(self, shape: tuple[int, int], floor: float | None, coords: Any = None) -> Any:
        priors = {"alpha_h": self.alpha, "beta_h": self.beta}
        with under_names(alpha_h="alpha", beta_h="beta"):  # the model has such of W, too
            return is_nmf(None, self.rank, **priors, background=floor, shape=shape, coords=coords)

    def begin(self, sound: Sound, entropy: Any, cores: int | None) -> Stream:
        """A stream that has seen nothing."""
        model = self._model((len(sound.lines), 1), sound.floor, {"feature": sound.frequencies.tolist()})
        start = {"W": first_profiles(sound, self.rank, entropy, cores)}
        return stream(model, engine=self.engine, random_seed=entropy, initvals=start, cores=cores)

    def facts(self, sound: Sound) -> dict[str, Any]:
        """What decides the result, flat."""
        options = {f"engine.{name}": value for name, value in asdict(self.engine).items()}
        mine = {name: getattr(self, name) for name in ("rank", "alpha", "beta", "passes")}
        framing = {"rate": sound.framing.rate, "window": sound.framing.length, "hop": sound.framing.hop}
        return mine | framing | options

    def attributes(self, sound: Sound, entropy: Any) -> dict[str, Any]:
        """What a result says of itself."""
        recording = sound.recording
        about = {"recording": recording.name, "samples": recording.form.name, "channels": recording.channels}
        about |= {"seconds_of_sound": sound.seconds, "frames": sound.n_frames, "random_seed": str(entropy)}
        facts = self.facts(sound).items()
        known = {name: value if type(value) in (int, float, str) else str(value) for name, value in facts}
        return about | known | {"inference_library": "nmf_zoo", "inference_library_version": __version__}


def resolve(engine: SimulatedOnlineEM | str) -> SimulatedOnlineEM:
    """Options of the engine."""
    if isinstance(engine, SimulatedOnlineEM):
        return engine
    if engine != "online_em":
        raise InputError("engine", repr(engine), "'online_em', or options of it, nz.SimulatedOnlineEM(...)")
    return SimulatedOnlineEM()
