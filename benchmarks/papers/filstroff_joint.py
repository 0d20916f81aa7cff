"""Filstroff 2018, section 4.2: joint maximum likelihood keeps all columns, marginal likelihood empties some.

GaP data of 2 components (eq. 50 times 100, N = 100, alpha = beta = 1), fitted with K = 5. Joint (eq. 3): EM, columns
of W held to sum to one, without which there is no maximum; the share of a component is that of its expected counts.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import declare, gap_counts, is_quick, run, save
from nmf_zoo import _compat

RANK = 5


def main() -> None:
    iterations = 100 if is_quick(__doc__) else 600
    model = declare(gap_counts(100.0), RANK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joint = nz.fit(engine="em", model=model, max_iter=iterations, random_seed=1, quiet=True)
    draws = _compat.group(joint, "posterior")
    W, H = draws["W"].to_numpy()[0, 0], draws["H"].to_numpy()[0, 0]
    marginal = run(model, iterations, sweeps=20, burn_in=5, exact=False)
    shares = {"joint (EM)": W.sum(axis=0) * H.sum(axis=1), "marginal (MCEM-C)": marginal.W.sum(axis=0)}
    for place, (name, share) in enumerate(shares.items()):
        share = np.sort(share / share.sum())[::-1]
        print(f"{name}, K={RANK}, {iterations} iterations: shares of the counts {share.round(4)}")
        plt.bar(np.arange(1, RANK + 1) + 0.4 * place - 0.2, share, 0.4, label=name)
    plt.xlabel("component, by size")
    plt.ylabel("share of the expected counts")
    plt.legend()
    save("filstroff_joint")


if __name__ == "__main__":
    main()
