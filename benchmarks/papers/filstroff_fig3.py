"""Filstroff 2018, Fig. 3: norms of the K = 3 columns against CPU time, V1 above and V2 (100 times W) below.

The paper: as for Fig. 2, and 2,000 iterations on V2, whose likelihood it calls impossible to compute: we print it.
"""

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import PAPER, VARIANTS, W_TRUE, declare, gap_counts, is_quick, run, save, sorted_norms
from nmf_zoo.inference.marginal.exact import marginal_log_likelihoods


def main() -> None:
    quick = is_quick(__doc__)
    _, axes = plt.subplots(2, 3, figsize=(12, 6))
    for row, (name, scale, iterations) in zip(axes, (("V1", 1.0, 500), ("V2", 100.0, 2000)), strict=True):
        iterations = 30 if quick else iterations
        X = gap_counts(scale)
        model = declare(X, 3)
        best = -np.sum(marginal_log_likelihoods(nz.read(declare(X, 2)), scale * W_TRUE))
        print(f"{name}, K=3; {iterations} iterations of 300 sweeps, 150 discarded; -log p at the true W {best:.3f}")
        for axis, complete in zip(row, VARIANTS, strict=True):
            found = run(model, iterations, complete=complete, sweeps=300, burn_in=150, exact=False, **PAPER)
            at = -np.sum(marginal_log_likelihoods(nz.read(model), found.W))
            norms = sorted_norms(found.norms[-1])
            print(f"MCEM-{complete}: {found.seconds[-1]:.1f} s, -log p {at:.3f} exactly, norms {norms}")
            axis.plot(found.seconds, found.norms)
            axis.set(title=f"{name}, MCEM-{complete}", xlabel="CPU seconds", ylabel="column norms", ylim=(0, None))
    save("filstroff_fig3")


if __name__ == "__main__":
    main()
