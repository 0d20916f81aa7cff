"""The faces of Cemgil (2009), and a stand-in where they are not at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FIGURES = Path(__file__).parent / "figures"
INK, ACCENT = "#22304a", "#c4552d"


def faces(size: int) -> tuple[np.ndarray, str]:
    """Pixels x 400 faces, block means rounded to counts; simulated ones where the faces are not at hand."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "olivetti" / "olivetti.npz"
    if "NMF_ZOO_DATA" in os.environ and path.exists():
        with np.load(path) as archive:
            return np.rint(archive[f"X{size}"]).astype(np.int64), "Olivetti faces, means of blocks of pixels, rounded"
    rng = np.random.default_rng(1)
    W, H = rng.gamma(0.3, size=(size * size, 30)), rng.gamma(2.0, size=(30, 400))
    return rng.poisson(W @ H * 130 / (W @ H).mean()), "simulated stand-in for the Olivetti faces (30 sources)"
