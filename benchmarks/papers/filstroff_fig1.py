"""Filstroff 2018, Fig. 1: iterates of the three variants on the likelihood of one feature and two components.

The paper: F = 1, K = 2, N = 300, alpha = beta = 1, the last 80 of 500 iterations. It does not say which W drew the
data, nor how many sweeps; here W = (2, 6) and 300 sweeps, half of them discarded, as for its other synthetic data.
"""

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import PAPER, VARIANTS, declare, gap_counts, is_quick, run, save
from nmf_zoo.inference.marginal import activation_prior, log_likelihoods, observe

SIDE, KEPT = 25, 80


def main() -> None:
    quick = is_quick(__doc__)
    X = gap_counts(n_samples=300, W=np.array([[2.0, 6.0]]))
    model = declare(X, 2)
    iterations, sweeps = (100, 20) if quick else (500, 300)
    print(f"F=1, K=2, N=300, alpha=beta=1; {iterations} iterations of {sweeps} sweeps; mean count {X.mean():.4f}")
    for complete, colour in VARIANTS.items():
        found = run(model, iterations, complete=complete, sweeps=sweeps, burn_in=sweeps // 2, **PAPER)
        last = found.norms[-KEPT:]  # of one feature the norms are W itself
        sums = last.sum(axis=1)
        print(f"MCEM-{complete}: last W {last[-1].round(3)}, w1 + w2 from {sums.min():.4f} to {sums.max():.4f}")
        plt.plot(*last.T, ".-", color=colour, label=f"MCEM-{complete}", linewidth=0.8, markersize=3)
    draw_contours(model, X.mean())
    plt.plot([0, X.mean()], [X.mean(), 0], "k:", label="$w_1 + w_2 = \\bar{v}$")
    plt.xlabel("$w_1$")
    plt.ylabel("$w_2$")
    plt.legend()
    save("filstroff_fig1")


def draw_contours(model, mean: float) -> None:
    """-log p(V | W), exactly."""
    structure = nz.read(model)
    samples, prior = observe(structure), activation_prior(structure, {})
    ticks = np.linspace(0.02, 1.2, SIDE) * mean
    surface = [[-log_likelihoods(samples, np.array([[a, b]]), *prior).sum() for a in ticks] for b in ticks]
    levels = np.min(surface) + np.array([0.1, 0.5, 1, 2, 4, 8, 16, 32, 64])
    plt.contour(ticks, ticks, surface, levels=levels, cmap="Greys_r", linewidths=0.8)


if __name__ == "__main__":
    main()
