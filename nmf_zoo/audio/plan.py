"""What is asked of a separation, and what of it decides the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nmf_zoo import __version__
from nmf_zoo.audio.learning import first_profiles
from nmf_zoo.audio.sound import Sound
from nmf_zoo.errors import InputError
from nmf_zoo.inference.powers.online_em import SimulatedOnlineEM
from nmf_zoo.models import is_nmf
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.streaming.stream import Stream, stream


@dataclass(frozen=True)
class Plan:
    """What is asked for, beside the recording; see :func:`separate`."""

    rank: int
    alpha: float
    beta: float
    engine: SimulatedOnlineEM
    passes: int

    def __post_init__(self) -> None:
        check_counts(rank=(self.rank, 1), passes=(self.passes, 1))
        try:
            self._model((self.rank, 1), None)  # refuses alpha and beta before any work
        except InputError as error:  # in the model's words, which has such of W, too
            raise InputError(error.name.removesuffix("_h"), error.got, error.expected, error.do) from None

    def _model(self, shape: tuple[int, int], floor: float | None, coords: Any = None) -> Any:
        alpha, beta = self.alpha, self.beta
        return is_nmf(None, self.rank, alpha_h=alpha, beta_h=beta, background=floor, shape=shape, coords=coords)

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
