"""Cemgil (2009), Fig. 5: templates of faces under four settings of the priors' shapes, means learned.

``python -m benchmarks.papers.cemgil_fig5 [--quick] [--size 32] [--cores 2]``
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

import nmf_zoo as nz
from benchmarks.papers.cemgil_faces import FIGURES, faces
from nmf_zoo import _compat

TEMPLATES, SHOWN, FACE = 36, 6, 0  # 36 templates are shown as 6 x 6, for the first face
SETTINGS = ((10.0, 10.0), (0.1, 0.1), (10.0, 0.2), (0.1, 10.0))  # the last: sparse templates, as its text describes


def main() -> None:
    arguments = parse()
    FIGURES.mkdir(exist_ok=True)
    warnings.simplefilter("ignore", nz.NmfZooWarning)
    print(
        "Paper: 36 templates; shapes of templates and excitations (10, 10), (0.1, 0.1), (10, 0.2) and a fourth, printed"
    )
    print("(10, 0.5) but described as sparse templates with dense excitations: parts of faces, the highest bound.")
    X, name = faces(arguments.size)
    print(f"Here: {name}, {X.shape[0]} x {X.shape[1]}; the fourth is (0.1, 10), and the printed (10, 0.5) beside it.")
    found = {shapes: fit(X, shapes, arguments) for shapes in (*SETTINGS, (10.0, 0.5))}
    for shapes, idata in found.items():
        W, H = means(idata)
        values = f"bound {bound(idata):.0f}, sparseness {nz.sparseness(W):.2f} and {nz.sparseness(H):.2f}"
        print(f"shapes {shapes}: {values}, SNR {nz.snr(X, W @ H):.1f} dB", flush=True)
    path = FIGURES / f"cemgil_fig5{'_quick' if arguments.quick else ''}.png"
    picture(X, found, arguments.size).savefig(path, dpi=130)
    print(f"wrote {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cemgil_fig5", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 x 16, 100 iterations: shows that it runs")
    parser.add_argument("--size", type=int, choices=(16, 32), default=32)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size = 16
    return arguments


def fit(X: np.ndarray, shapes: tuple[float, float], arguments: argparse.Namespace) -> Any:
    """VB with both shapes fixed and both means learned."""
    free = nz.free("all")
    model = nz.gamma_nmf(X, TEMPLATES, alpha_w=shapes[0], mean_w=free, alpha_h=shapes[1], mean_h=free)
    max_iter = 100 if arguments.quick else 3000
    return nz.fit(
        engine="vb", model=model, max_iter=max_iter, tol=1e-5, random_seed=1, quiet=True, cores=arguments.cores
    )


def means(idata: Any) -> tuple[np.ndarray, np.ndarray]:
    posterior = _compat.group(idata, "posterior").isel(chain=0).mean("draw")
    return posterior["W"].to_numpy(), posterior["H"].to_numpy()


def bound(idata: Any) -> float:
    return float(_compat.group(idata, "fit")["objective"].isel(chain=0).dropna("iteration")[-1])


def picture(X: np.ndarray, found: dict[tuple[float, float], Any], size: int):
    """A column for each setting: templates, templates times their excitations for one face, and their sum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(found), 7.6), layout="constrained")
    grid = figure.subplots(3, len(found), height_ratios=(3, 3, 1.6))
    for column, (shapes, idata) in zip(grid.T, found.items(), strict=True):
        W, H = means(idata)
        weighted = W * H[:, FACE]
        for axes, tiles in zip(column[:2], (W / W.max(axis=0), weighted / weighted.max()), strict=True):
            axes.imshow(mosaic(tiles, size), cmap="gray_r", vmin=0, vmax=1)
        column[2].imshow(weighted.sum(axis=1).reshape(size, size), cmap="gray", vmin=0, vmax=X.max())
        column[0].set_title(f"shapes {shapes[0]:g}, {shapes[1]:g}\nbound {bound(idata):.4g}", fontsize=9)
        for axes in column:
            axes.set(xticks=[], yticks=[])
    for axes, label in zip(grid[:, 0], ("templates", "times excitations", "their sum"), strict=True):
        axes.set_ylabel(label, fontsize=9)
    return figure


def mosaic(tiles: np.ndarray, size: int) -> np.ndarray:
    """(pixels, 36) as one image, 6 x 6."""
    images = tiles.T.reshape(SHOWN, SHOWN, size, size)
    return images.transpose(0, 2, 1, 3).reshape(SHOWN * size, SHOWN * size)


if __name__ == "__main__":
    main()
