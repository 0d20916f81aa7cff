"""Beyond the figures of Yildirim 2012: chains with their parameters learned, larger K and M, log-normal chains, errors.

The paper estimates W alone, of 5 components, with particles that are blind to the data. ``--part`` runs one of
``learned`` (p, q and alpha too), ``larger`` (M = 50, K = 12), ``log_normal`` and ``errors`` (error of W against T).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import save
from benchmarks.papers.yildirim import (
    ALPHA,
    FEATURES,
    PATIENT,
    RANK,
    STEPS,
    P,
    Q,
    error,
    follow,
    say,
    simulate,
    weights,
)
from nmf_zoo import _compat

LEVEL, PERSISTENCE, SCALE = 0.0, 0.95, 0.5  # of the log-normal chain
POINTS = 60
COLOURS = {
    "exact online EM, t^-0.6": "tab:blue",
    "exact online EM, t^-0.8": "tab:cyan",
    "Algorithm 1, t^-0.6": "tab:red",
    "Algorithm 1, t^-0.8": "tab:orange",
    "backward smoother, t^-0.6": "tab:green",
}
BATCH = "exact batch EM, best of three starts"


def basis(**shape: Any) -> Any:
    return nz.BasisChain.dist(P, Q, **shape)


def unit(**shape: Any) -> Any:
    return nz.UnitChain.dist(ALPHA, **shape)


def log_normal(**shape: Any) -> Any:
    return nz.LogNormalAR.dist(LEVEL, PERSISTENCE, SCALE, **shape)


def learned(quick: bool) -> None:
    """W with p and q, and W with alpha: what the paper gives rules for and does not show."""
    W, n_times = weights(), 2_000 if quick else 50_000
    free = nz.BasisChain(nz.free(), nz.free())
    report("p, q learned, exact", W, basis, free, nz.ChainOnlineEM(**PATIENT), n_times, ("p", "q"))
    for smoother in ("path", "backward"):
        engine = nz.ParticleOnlineEM(proposal="bootstrap", smoother=smoother, **PATIENT)
        report(f"alpha learned, {smoother} smoother", W, unit, nz.UnitChain(nz.free()), engine, n_times, ("alpha",))


def larger(quick: bool) -> None:
    """More features and components, where bootstrap particles lose the data."""
    W, n_times = weights(50, 12), 500 if quick else 10_000
    for proposal in ("bootstrap", "auxiliary"):
        engine = nz.ParticleOnlineEM(proposal=proposal, **PATIENT)
        report(f"M=50, K=12, {proposal}", W, unit, nz.UnitChain(ALPHA), engine, n_times)


def log_normals(quick: bool) -> None:
    """The chain that the paper's discussion names. Its scale is that of W: the level is known."""
    W, n_times = weights(), 1_000 if quick else 20_000
    for proposal in ("bootstrap", "auxiliary"):
        engine = nz.ParticleOnlineEM(proposal=proposal, **PATIENT)
        chain = nz.LogNormalAR(LEVEL, PERSISTENCE, SCALE)
        report(f"log-normal AR, {proposal}", W, log_normal, chain, engine, n_times)


def report(
    name: str, W: np.ndarray, law: Callable, chain: Any, engine: Any, n_times: int, learned: tuple[str, ...] = ()
) -> None:
    """One stream, in a line or two."""
    X = simulate(law, W, n_times)
    path = follow(X, W.shape[1], chain, engine, seed=1, points=POINTS)
    say(name, W, path)
    if learned:
        posterior = _compat.group(path.result, "posterior")
        print("    " + ", ".join(f"{role} = {float(posterior[role].to_numpy().mean()):.4f}" for role in learned))


def errors(quick: bool) -> None:
    """Error of W against T, for each algorithm: on the chain of 0s and 1s and on that between them."""
    W, n_times = weights(), 2_000 if quick else 50_000
    lengths = (500, 1_000) if quick else (500, 1_000, 2_000, 5_000, 10_000, 20_000)
    particles = {
        "Algorithm 1, t^-0.6": nz.ParticleOnlineEM(proposal="bootstrap", **PATIENT),
        "backward smoother, t^-0.6": nz.ParticleOnlineEM(proposal="bootstrap", smoother="backward", **PATIENT),
    }
    exact = {
        "exact online EM, t^-0.6": nz.ChainOnlineEM(**PATIENT),
        "exact online EM, t^-0.8": nz.ChainOnlineEM(**STEPS),
    }
    paper = {"Algorithm 1, t^-0.8": nz.ParticleOnlineEM(proposal="bootstrap", **STEPS)}
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True)
    X = simulate(basis, W, n_times)
    draw_paths(axes[0], W, X, nz.BasisChain(P, Q), exact | particles)
    batch = [batch_error(W, X[:, :n]) for n in lengths]
    axes[0].loglog(lengths, batch, "k.--", label=BATCH)
    draw_paths(axes[1], W, simulate(unit, W, n_times), nz.UnitChain(ALPHA), particles | paper)
    for axis, title in zip(axes, (f"on or off (p = {P}, q = {Q})", f"between 0 and 1 (alpha = {ALPHA})"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("T")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("error of W, ||found - W|| / ||W||")
    lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.suptitle("\n")  # room for the legend
    figure.legend(lines.values(), lines.keys(), loc="upper center", ncols=3, fontsize=8)
    save("yildirim_beyond")


def draw_paths(axis: Any, W: np.ndarray, X: np.ndarray, chain: Any, engines: dict[str, Any]) -> None:
    """A curve for each engine: the median of three random starts."""
    for name, engine in engines.items():
        paths = [follow(X, RANK, chain, engine, seed=seed, points=POINTS) for seed in (1, 2, 3)]
        for path in paths:
            say(f"{len(W)} x {RANK}, {name}", W, path)
        typical = np.median([[error(W, w) for w in path.W] for path in paths], axis=0)
        axis.loglog(paths[0].after, typical, COLOURS[name], label=name)


def batch_error(W: np.ndarray, X: np.ndarray) -> float:
    """Batch EM from three random starts, the best by its likelihood."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run that needs more iterations says so
        model = nz.hmm_nmf(X, RANK, chain=nz.BasisChain(P, Q))
        fitted = nz.fit(model=model, engine="hmm_exact", restarts=3, random_seed=1, quiet=True, cores=1, max_iter=500)
    found = error(W, _compat.group(fitted, "posterior")["W"].to_numpy()[0, 0])
    print(f"batch EM, T={X.shape[1]:,}: error of W {100 * found:.2g} %; {time.process_time() - began:.1f} CPU seconds")
    return found


PARTS = {"learned": learned, "larger": larger, "log_normal": log_normals, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short streams: shows that it runs")
    parser.add_argument("--part", choices=PARTS, action="append", help="default all")
    arguments = parser.parse_args()
    print(f"M={FEATURES}, K={RANK}, N=1000 unless said otherwise; t^-0.6, t_b=100; random starts")
    for part in arguments.part or PARTS:
        PARTS[part](arguments.quick)


if __name__ == "__main__":
    main()
