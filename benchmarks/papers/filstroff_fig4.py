"""Filstroff 2018, Fig. 4: norms of the K = 10 columns against CPU time on the NIPS counts, MCEM-C and MCEM-CH.

The paper: alpha = beta = 1, 1,000 iterations of 250 sweeps, 125 discarded, from eq. 51: hours. ``--quick`` takes
40 iterations of 20 sweeps. Our default, expectations in place of draws, is shown beside them.
"""

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.datasets import nips
from benchmarks.papers.filstroff import PAPER, declare, is_quick, run, save, sorted_norms


def main() -> None:
    quick = is_quick(__doc__)
    X, name = nips()
    model, (iterations, sweeps) = declare(X, 10), (40, 20) if quick else (1000, 250)
    print(f"{name}, K=10, alpha=beta=1; {iterations} iterations of {sweeps} sweeps, half discarded")
    half = {"sweeps": sweeps, "burn_in": sweeps // 2, "exact": False}
    runs = {
        "MCEM-C": {"complete": "C", **half, **PAPER},
        "MCEM-CH": {"complete": "CH", **half, **PAPER},
        "MCEM-C, ours": {
            "complete": "C",
            "sweeps": 20,
            "burn_in": 5,
            "exact": False,
            "average": False,
        },
    }
    _, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, (label, options) in zip(axes, runs.items(), strict=True):
        found = run(model, min(iterations, 400) if "ours" in label else iterations, **options)
        zeros = np.mean(found.W == 0)
        print(
            f"{label}: {found.seconds[-1]:.0f} s, -log p about {found.objective[-5:].mean():.0f}, "
            f"{zeros:.0%} of W exactly 0, norms {sorted_norms(found.norms[-1])}"
        )
        axis.plot(found.seconds, found.norms)
        axis.set(title=label, xlabel="CPU seconds")
    axes[0].set_ylabel("column norms")
    plt.suptitle(f"{name}, K=10, {iterations} iterations of {sweeps} sweeps; ours: 20, with expectations")
    save("filstroff_fig4")


if __name__ == "__main__":
    main()
