"""One-step-ahead scores of smooth activations beside log-normal chains and independent columns (Filstroff et al. 2021).

A model is fitted to the times before an origin and says what the next column is; the score is the log predictive
density of its cells, log mean_s p(x | W_s, h_s), h_s the next activations of draw s, in nats per cell over the origins.
Hyperparameters of all models have priors and are drawn. The papers of NIPS have no dates: thirteen parts of equal size,
in their order, stand for its thirteen years, counts thinned to a fiftieth. Frames of a recording are powers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy import stats
from scipy.io import wavfile
from scipy.special import logsumexp

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.rows import Row, note
from nmf_zoo import _compat

YEARS, THINNED, WORDS, TOPICS = 13, 0.02, 300, 4
FRAMES, BINS, NOTES = 60, 40, 3
RUN: dict[str, Any] = {"random_seed": 1, "quiet": True, "cores": 1, "chains": 2}


class Contender(NamedTuple):
    """A declaration of data, the engine that samples it, and the next activations (draws, K) of its draws."""

    name: str
    declare: Callable[[np.ndarray], pm.Model]
    engine: Any
    next_time: Callable[[Any, pm.Model], np.ndarray]


def go_on(idata: Any, model: pm.Model) -> np.ndarray:
    """Of chains."""
    H = nz.forecast(idata, model, random_seed=2)["H"].to_numpy()[..., 0]
    return H.reshape(-1, H.shape[-1])


def anew(idata: Any, model: pm.Model) -> np.ndarray:
    """Of independent columns, gamma or inverse gamma: a draw of the prior."""
    group = _compat.group(idata, "posterior")
    shape, second = (group[name].to_numpy() for name in ("a", "m"))
    shape, second = shape.reshape(-1, 1), second.reshape(shape.size, -1)
    drawn = np.random.default_rng(2).gamma(np.broadcast_to(shape, second.shape))
    return drawn * second / shape if model["X"].owner.op.name == "poisson" else second / drawn


def with_hyperpriors(declare: Callable[..., Any]) -> Callable[[np.ndarray], pm.Model]:
    """A declaration inside a model of its own, so that hyperparameters are variables of it."""

    def declared(X: np.ndarray) -> pm.Model:
        with pm.Model() as model:
            declare(X)
        return model

    return declared


def gamma_chain(rank: int) -> Any:
    shape = pm.Gamma("a", 3.0, 0.2)
    return nz.GammaChain(shape, shape, 1.0, initial=(1.0, 1.0))


def bgar(rank: int) -> Any:
    return nz.BGAR(pm.Gamma("a", 3.0, 1.0), pm.Gamma("b", 3.0, 3.0), pm.Beta("r", 4.0, 1.0))


def log_normal(rank: int) -> Any:
    scale = pm.HalfNormal("s", 0.7)
    return nz.LogNormalAR(pm.Normal("m", 0.0, 1.0, shape=rank), pm.Beta("f", 4.0, 1.0), scale)


def of_counts() -> list[Contender]:
    """All with gamma weights of shape 0.5 and rate 0.5."""
    W = {"alpha_w": 0.5, "beta_w": 0.5}

    def chained(chain: Callable[[int], Any]) -> Callable[[np.ndarray], pm.Model]:
        return with_hyperpriors(lambda X: nz.hmm_nmf(X, TOPICS, chain=chain(TOPICS), **W))

    def independent(X: np.ndarray) -> pm.Model:
        mean = pm.InverseGamma("m", 2.0, 2.0, shape=(TOPICS, 1))
        return nz.gamma_nmf(X, TOPICS, alpha_h=pm.Gamma("a", 3.0, 1.0), mean_h=mean, **W)

    return [
        Contender("gamma chain", chained(gamma_chain), "gibbs", go_on),
        Contender("BGAR(1)", chained(bgar), "gibbs", go_on),
        Contender("log-normal chain, particle Gibbs", chained(log_normal), "particle_gibbs", go_on),
        Contender("independent gamma columns", with_hyperpriors(independent), "gibbs", anew),
    ]


def of_powers() -> list[Contender]:
    """All with inverse-gamma weights of shape 1 and scale 1."""

    def chained(chain: Callable[[int], Any]) -> Callable[[np.ndarray], pm.Model]:
        return with_hyperpriors(lambda X: nz.is_nmf(X, NOTES, chain=chain(NOTES), alpha_w=1.0))

    def independent(X: np.ndarray) -> pm.Model:
        scale = pm.Gamma("m", 2.0, 2.0, shape=(NOTES, 1))
        return nz.is_nmf(X, NOTES, alpha_h=pm.Gamma("a", 3.0, 1.0), beta_h=scale, alpha_w=1.0)

    return [
        Contender("gamma chain", chained(gamma_chain), "gibbs", go_on),
        Contender("BGAR(1)", chained(bgar), "gibbs", go_on),
        Contender("log-normal chain, NUTS", chained(log_normal), "nuts", go_on),
        Contender("independent inverse-gamma columns", with_hyperpriors(independent), "gibbs", anew),
    ]


def scored(
    contender: Contender, X: np.ndarray, origins: range, law: Callable[..., Any], size: dict[str, int]
) -> tuple[np.ndarray, float]:
    """(nats per cell at each origin, CPU seconds)"""
    scores, began = [], time.process_time()
    for origin in origins:
        model = contender.declare(X[:, :origin])
        idata = nz.sample(engine=contender.engine, extend=1, model=model, **RUN, **size)
        W = _compat.group(idata, "posterior")["W"].to_numpy()
        H = contender.next_time(idata, model)
        mean = np.einsum("sfk,sk->sf", W.reshape(len(H), *W.shape[2:]), H)
        log_p = logsumexp(law(X[:, origin], np.maximum(mean, 1e-12)), axis=0) - np.log(len(H))
        scores.append(log_p.mean())
    return np.array(scores), time.process_time() - began


def years() -> np.ndarray:
    """(words, 13): the words that most papers do not use, and that the others use most."""
    counts, _ = nips()
    used_by = np.diff(counts.tocsr().indptr)
    total = np.asarray(counts.sum(axis=1)).ravel()
    kept = np.sort(np.argsort(np.where(used_by < 0.35 * counts.shape[1], total, -1))[-WORDS:])
    parts = np.array_split(np.arange(counts.shape[1]), YEARS)
    table = np.stack([np.asarray(counts[kept][:, part].sum(axis=1)).ravel() for part in parts], axis=1)
    return np.random.default_rng(1).binomial(table.astype(np.int64), THINNED)


def frames() -> tuple[np.ndarray, str]:
    """(bins, frames) powers of mean 1, and what they are."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
    if path.exists():
        rate, sound = wavfile.read(path)
        sound, name = sound[4 * rate : 16 * rate].astype(np.float64), "a recording"
    else:
        rate, name = 22050, "simulated sound (set NMF_ZOO_DATA for a recording)"
        at = np.arange(12 * rate) / rate
        sound = sum(np.sin(2 * np.pi * f * at) * np.sin(np.pi * at / p) ** 2 for f, p in ((220, 3.0), (330, 2.0)))
        sound = sound + 0.01 * np.random.default_rng(1).normal(size=at.size)
    power = np.asarray(nz.power_spectrogram(sound, rate, window=100.0, hop=50.0))
    power = power[2 : 2 + 3 * BINS : 3, : 2 * FRAMES : 2]  # frames that do not overlap
    return power / power.mean() + 1e-9, name


def rows(quick: bool) -> Iterator[Row]:
    """Each model's score at the same origins."""
    size = {"draws": 20, "tune": 20} if quick else {"draws": 500, "tune": 500}
    counts, (powers, recording) = years(), frames()
    of_years, of_frames = range(YEARS - (1 if quick else 5), YEARS), range(FRAMES - (1 if quick else 5), FRAMES)
    log_of_powers = lambda x, mean: -np.log(mean) - x / mean  # noqa: E731
    for contenders, X, origins, law, what in (
        (of_counts(), counts, of_years, stats.poisson.logpmf, f"NIPS in 13 parts, {len(counts)} words, K={TOPICS}"),
        (of_powers(), powers, of_frames, log_of_powers, f"{recording}, {BINS} bins x {FRAMES} frames, K={NOTES}"),
    ):
        best = None
        for contender in reversed(contenders):  # independent columns first: the others are held against them
            scores, seconds = scored(contender, X, origins, law, size)
            best = scores if best is None else best
            gain = (scores - best).mean()
            error = (scores - best).std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else np.nan
            ahead = "" if contender.next_time is anew else f", {gain:+.3f} ± {error:.3f} beside independent columns"
            yield note(
                f"one step ahead, {what}: {contender.name}", f"{scores.mean():.3f} nats a cell{ahead}, {seconds:.0f} s"
            )
