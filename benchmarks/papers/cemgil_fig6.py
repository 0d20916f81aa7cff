"""Cemgil (2009), Fig. 6: missing patches of faces predicted by VB, VB + ICM and maximum likelihood.

``python -m benchmarks.papers.cemgil_fig6 [--quick] [--size 32] [--templates 100] [--runs 3]``
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np

import nmf_zoo as nz
from benchmarks.papers.cemgil_faces import ACCENT, FIGURES, INK, faces
from nmf_zoo import _compat

N_FACES, PATCH = 50, (0.35, 0.6, 0.2, 0.8)  # rows and columns of the patch, as shares of the image
SHOWN = (1, 11, 21, 31)  # faces of four people, their patches missing


class Prediction(NamedTuple):
    """snr : of the missing pixels, in dB; of_w, of_h : sparseness; mean : W H, pixels x faces"""

    snr: float
    of_w: float
    of_h: float
    mean: np.ndarray


def main() -> None:
    arguments = parse()
    FIGURES.mkdir(exist_ok=True)
    warnings.simplefilter("ignore", nz.NmfZooWarning)
    print("Paper: 50 faces of 5 people, the same patch missing in half of them, 100 templates. The variational methods")
    print("have the higher SNR and are the less sparse; maximum likelihood fits noise. It gives a picture, no numbers.")
    X, name = faces(arguments.size)
    X = X[:, :N_FACES]
    hidden = f"patch of {patch(arguments.size).sum()} pixels in every second face"
    print(f"Here: {name}, {X.shape[0]} x {X.shape[1]}, {hidden}.")
    runs = [predict_all(X, arguments, seed) for seed in range(1, arguments.runs + 1)]
    print(f"{'method':28}{'SNR (dB)':>24}{'sparseness of W':>18}{'of H':>8}")
    for method in runs[0]:
        found = [run[method] for run in runs]
        values = ", ".join(f"{prediction.snr:.2f}" for prediction in found)
        print(f"{method:28}{values:>24}{found[0].of_w:18.2f}{found[0].of_h:8.2f}")
    path = FIGURES / f"cemgil_fig6{'_quick' if arguments.quick else ''}.png"
    picture(X, runs, arguments.size).savefig(path, dpi=130)
    print(f"wrote {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cemgil_fig6", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 x 16, 20 templates, one run: shows that it runs")
    parser.add_argument("--size", type=int, choices=(16, 32), default=32)
    parser.add_argument("--templates", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size, arguments.templates, arguments.runs = 16, 20, 1
    return arguments


def patch(size: int) -> np.ndarray:
    """(pixels,) True inside the patch."""
    top, bottom, left, right = (round(share * size) for share in PATCH)
    inside = np.zeros((size, size), dtype=bool)
    inside[top:bottom, left:right] = True
    return inside.ravel()


def predict_all(X: np.ndarray, arguments: argparse.Namespace, seed: int) -> dict[str, Prediction]:
    """Every method on the same data, from its own start."""
    mask = np.ones(X.shape, dtype=bool)
    mask[np.ix_(patch(arguments.size), np.arange(1, X.shape[1], 2))] = False
    rank, free = arguments.templates, nz.free("all")
    learned = nz.gamma_nmf(X, rank, alpha_w=free, mean_w=free, alpha_h=free, mean_h=free, mask=mask)
    how: dict[str, Any] = {"random_seed": seed, "quiet": True, "cores": 2}
    vb = nz.fit(engine="vb", model=learned, max_iter=300 if arguments.quick else 3000, tol=1e-5, **how)
    posterior = _compat.group(vb, "posterior").isel(chain=0)
    values = {name: float(posterior[name].isel(draw=0)) for name in ("alpha_w", "mean_w", "alpha_h", "mean_h")}
    print(f"run {seed}: VB learned " + ", ".join(f"{name} {value:.3g}" for name, value in values.items()), flush=True)
    known = nz.gamma_nmf(X, rank, **values, mask=mask)
    icm = nz.fit(engine=nz.EM(mode="log"), model=known, max_iter=2000, **how)
    plain = nz.poisson_nmf(X, rank, mask=mask)
    ml = nz.fit(engine="em", model=plain, max_iter=2000, **how)
    near = nz.fit(engine="em", model=plain, max_iter=2000, initvals=image_start(X, mask, rank, seed), **how)
    results = {"VB": vb, "VB + ICM": icm, "ML, random start": ml, "ML, start at images": near}
    return {method: judge(idata, X, mask) for method, idata in results.items()}


def image_start(X: np.ndarray, mask: np.ndarray, rank: int, seed: int) -> dict[str, np.ndarray]:
    """Templates at images (missing pixels at the mean face), each perturbed; activations random."""
    rng = np.random.default_rng(seed)
    mean = np.sum(X * mask, axis=1) / mask.sum(axis=1)
    filled = np.where(mask, X, mean[:, None])
    W = filled[:, np.arange(rank) % X.shape[1]] * rng.gamma(20.0, 1 / 20.0, (X.shape[0], rank))
    return {"W": W, "H": rng.gamma(1.0, 1.0 / rank, (rank, X.shape[1]))}


def judge(idata: Any, X: np.ndarray, mask: np.ndarray) -> Prediction:
    """The missing pixels against the mean W H of the point estimates, E[W] E[H] of VB."""
    posterior = _compat.group(idata, "posterior").isel(chain=0).mean("draw")
    W, H = posterior["W"].to_numpy(), posterior["H"].to_numpy()
    mean = W @ H
    return Prediction(nz.snr(X[~mask], mean[~mask]), nz.sparseness(W), nz.sparseness(H), mean)


def picture(X: np.ndarray, runs: list[dict[str, Prediction]], size: int):
    """Faces, what is missing and what each method puts there; SNR against sparseness."""
    from matplotlib.figure import Figure

    missing = patch(size)
    figure = Figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1.0))
    methods = list(runs[0])
    grid = above.subplots(len(SHOWN), 2 + len(methods))
    for row, face in zip(grid, SHOWN, strict=True):
        hidden = np.where(missing, np.nan, X[:, face].astype(float))
        images = [X[:, face], hidden, *(np.where(missing, runs[0][name].mean[:, face], hidden) for name in methods)]
        for axes, image, title in zip(row, images, ["truth", "data", *methods], strict=True):
            axes.imshow(np.reshape(image, (size, size)), cmap="gray", vmin=0, vmax=X.max())
            axes.set(xticks=[], yticks=[])
            if face == SHOWN[0]:
                axes.set_title(title, fontsize=8)
    for axes, kind in zip(below.subplots(1, 2, sharey=True), ("of_w", "of_h"), strict=True):
        for number, method in enumerate(methods):
            found = [run[method] for run in runs]
            x, y = [getattr(one, kind) for one in found], [one.snr for one in found]
            axes.plot(x, y, "os^D"[number], color=INK if "VB" in method else ACCENT, ms=6, label=method)
        axes.set(xlabel=f"sparseness of {'templates' if kind == 'of_w' else 'excitations'}", ylabel="SNR (dB)")
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
