"""Filstroff 2018, Fig. 1: iterates of the three variants on the likelihood of one feature and two components.

The paper: F = 1, K = 2, N = 300, alpha = beta = 1, the last 80 of 500 iterations. It does not say which W drew the
data, nor how many sweeps; here W = (2, 6) and 300 sweeps, half of them discarded, as for its other synthetic data.
"""

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import PAPER, VARIANTS, declare, gap_counts, is_quick, run, save
from nmf_zoo.inference.marginal.exact import activation_prior, log_likelihoods, observe

SIDE, KEPT = 80, 80
CLOSE = (1.0, 3.5, 3.8, 6.2)  # the window of the right panel: w_1 from and to, w_2 from and to


def main() -> None:
    quick = is_quick(__doc__)
    X = gap_counts(n_samples=300, W=np.array([[2.0, 6.0]]))
    model = declare(X, 2)
    iterations, sweeps = (100, 20) if quick else (500, 300)
    print(f"F=1, K=2, N=300, alpha=beta=1; {iterations} iterations of {sweeps} sweeps; mean count {X.mean():.4f}")
    _, axes = plt.subplots(1, 2, figsize=(11, 5))
    for complete, colour in VARIANTS.items():
        found = run(model, iterations, complete=complete, sweeps=sweeps, burn_in=sweeps // 2, **PAPER)
        last = found.norms[-KEPT:]  # of one feature the norms are W itself
        sums = last.sum(axis=1)
        print(f"MCEM-{complete}: last W {last[-1].round(3)}, w1 + w2 from {sums.min():.4f} to {sums.max():.4f}")
        for axis in axes:
            axis.plot(*last.T, ".-", color=colour, label=f"MCEM-{complete}", linewidth=0.8, markersize=3)
    for axis, window in zip(axes, ((0.0, 1.2 * X.mean(), 0.0, 1.2 * X.mean()), CLOSE), strict=True):
        draw_contours(axis, model, window)
        axis.plot([0, X.mean()], [X.mean(), 0], "k:", label="$w_1 + w_2 = \\bar{v}$")
        axis.set(xlabel="$w_1$", ylabel="$w_2$", xlim=window[:2], ylim=window[2:])
    axes[0].legend()
    axes[1].set_title("the same, closer")
    save("filstroff_fig1")


def draw_contours(axis, model, window) -> None:
    """-log p(V | W), exactly."""
    structure = nz.read(model)
    samples, prior = observe(structure), activation_prior(structure, {})
    first, second = (np.linspace(max(low, 0.05), high, SIDE) for low, high in (window[:2], window[2:]))
    surface = [[-log_likelihoods(samples, np.array([[a, b]]), *prior).sum() for a in first] for b in second]
    levels = np.min(surface) + np.array([0.1, 0.5, 1, 2, 4, 8, 16, 32, 64])
    axis.contour(first, second, surface, levels=levels, cmap="Greys_r", linewidths=0.8)


if __name__ == "__main__":
    main()
