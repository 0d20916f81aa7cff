"""Filstroff 2018, Fig. 2: -log p(V1 | W) against CPU time, exactly, for the three variants.

The paper: V1 (4 x 100) drawn with eq. 50, alpha = beta = 1; K = 3, 500 iterations of 300 sweeps, 150 discarded; eq. 51.
"""

import matplotlib.pyplot as plt

from benchmarks.papers.filstroff import PAPER, VARIANTS, declare, gap_counts, is_quick, run, save, sorted_norms


def main() -> None:
    iterations = 50 if is_quick(__doc__) else 500
    model = declare(gap_counts(), 3)
    print(f"V1, K=3, alpha=beta=1; {iterations} iterations of 300 sweeps, 150 discarded")
    for complete, colour in VARIANTS.items():
        found = run(model, iterations, complete=complete, sweeps=300, burn_in=150, exact=True, **PAPER)
        norms = sorted_norms(found.norms[-1])
        print(f"MCEM-{complete}: {found.seconds[-1]:.1f} s, -log p {found.objective[-1]:.3f}, norms {norms}")
        plt.plot(found.seconds, found.objective, color=colour, label=f"MCEM-{complete}")
    plt.xlabel("CPU seconds")
    plt.ylabel("$C_{ML}(W)$")
    plt.legend()
    save("filstroff_fig2")


if __name__ == "__main__":
    main()
