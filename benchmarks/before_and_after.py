"""CPU time of two commits in turn: ``python -m benchmarks.before_and_after --base REV [--head REV] [--pairs 15]``.

Each row is one call of `nz.fit` or `nz.sample`, by the public interface alone, with one thread. Of each commit (the
head is the working tree unless named) a process of its own makes the model, makes the call once, which compiles, and
waits. Then both make it once in each pair, first the one and then the other, so that whatever else the machine does
falls on both. What is told is the median over pairs of the CPU seconds, and of their ratio, head over base, with the
interval that order statistics give it: whatever the distribution, and at 95 % or more from six pairs on.

Sources of a commit go to ``build/before_and_after``, with a kernel cache of their own, and stay there.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import BytesIO
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "before_and_after"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
COVERAGE = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_and_after", description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, metavar="REV", help="the commit to compare with")
    parser.add_argument("--head", metavar="REV", help="a commit in the place of the working tree")
    parser.add_argument("--pairs", type=int, default=15, help="of runs, default 15")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[], help="rows whose name contains one of these")
    given = parser.parse_args()
    wanted = [name for name in ROWS if not given.only or any(word in name for word in given.only)]
    trees = {"base": tree_of(given.base), "head": tree_of(given.head)}
    print(f"{'work':34}{'base':>9}{'head':>9}   head / base")
    for name in wanted:
        print(compare(name, trees, given.pairs), flush=True)
    return 0


def tree_of(revision: str | None) -> tuple[Path, Path]:
    """(sources, kernel cache) of a commit, or of the working tree."""
    if revision is None:
        return ROOT, KEPT / "working_tree"
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()[:12]
    tree = KEPT / commit / "tree"
    if not tree.exists():
        with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", commit))) as archive:
            archive.extractall(tree, filter="data")
    shutil.copytree(ROOT / "benchmarks", tree / "benchmarks", dirs_exist_ok=True, ignore=_compiled)
    return tree, KEPT / commit / "kernels"


_compiled = shutil.ignore_patterns("__pycache__")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


class Worker:
    """A process of one commit that makes one call whenever it is asked."""

    def __init__(self, row: str, tree: Path, kernels: Path):
        own = {"PYTHONPATH": str(tree), "NMF_ZOO_CACHE": str(kernels), "NUMBA_CACHE_DIR": str(kernels)}
        environment = os.environ | own | dict.fromkeys(THREADS, "1")
        command = [sys.executable, "-m", "benchmarks.before_and_after", SERVE, row]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=tree, env=environment, **pipes)
        self.result = self._answer()["result"]  # of the call that compiles

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def seconds(self) -> float:
        """CPU time of one call."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self._process.args} ended with status {self._process.wait()}")
        return json.loads(line)


def compare(row: str, trees: dict[str, tuple[Path, Path]], pairs: int) -> str:
    """One line about one row."""
    with ExitStack() as stack:
        workers = {side: stack.enter_context(Worker(row, *tree)) for side, tree in trees.items()}
        found: dict[str, list[float]] = {side: [] for side in workers}
        for pair in range(pairs):
            for side in sorted(workers, reverse=bool(pair % 2)):
                found[side].append(workers[side].seconds())
    results = [worker.result for worker in workers.values()]
    return told(row, found["base"], found["head"], *results)


def told(row: str, base: Sequence[float], head: Sequence[float], was: float, became: float) -> str:
    """``EM  0.52 s  0.50 s  0.97 (0.95 to 0.99, 96 %), faster``; and whether the objective, or mean lp, is another."""
    ratios = np.asarray(head) / np.asarray(base)
    low, high, coverage = interval_of_median(ratios)
    verdict = "slower" if low > 1.0 else "faster" if high < 1.0 else "no difference seen"
    verdict = verdict if coverage >= COVERAGE else "too few pairs to tell"
    same = "same result" if was == became else f"another result: {was:.10g}, {became:.10g}"
    times = "".join(f"{np.median(seconds):7.3f} s" for seconds in (base, head))
    return f"{row:34}{times}   {np.median(ratios):.3f} ({low:.3f} to {high:.3f}, {coverage:.0%}), {verdict}; {same}"


def interval_of_median(values: Any) -> tuple[float, float, float]:
    """(low, high, coverage): the narrowest pair of order statistics that covers a median with 95 %, or all there is."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    outside = np.cumsum([comb(n, k) for k in range(n)]) / 2.0**n  # P(the k smallest and one more lie below the median)
    cut = max((k for k in range((n - 1) // 2 + 1) if 1.0 - 2.0 * outside[k] >= COVERAGE), default=0)
    return float(ordered[cut]), float(ordered[n - 1 - cut]), float(1.0 - 2.0 * outside[cut])


# -- what runs in a process of a commit ------------------------------------------------------------------------------


SERVE = "serve"
QUIET = {"random_seed": 1, "cores": 1, "quiet": True, "search": None, "start": "random"}


def serve(row: str) -> None:
    """Make the call once, and then for every line that comes in; answer each with a line."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    work = ROWS[row]()
    print(json.dumps({"result": work()}), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        result = work()
        print(json.dumps({"seconds": time.process_time() - began, "result": result}), file=answers, flush=True)


def fit(model: Any, engine: Any, iterations: int) -> Callable[[], float]:
    import nmf_zoo as nz

    words = _known(nz.fit, QUIET | {"engine": engine, "max_iter": iterations, "tol": 0.0, "restarts": 1, "draws": 1})
    return lambda: float(np.max(nz.fit(model=model, **words).fit["objective"].values))


def sample(model: Any, engine: Any, tune: int, draws: int) -> Callable[[], float]:
    import nmf_zoo as nz

    own = {"engine": engine, "tune": tune, "draws": draws, "chains": 1, "keep": "moments"}
    words = _known(nz.sample, QUIET | own | {"compute_convergence_checks": False})
    return lambda: float(nz.sample(model=model, **words).sample_stats["lp"].values.mean())


def _known(call: Callable, words: dict[str, Any]) -> dict[str, Any]:
    """Those that the function of this commit has."""
    return {name: value for name, value in words.items() if name in inspect.signature(call).parameters}


def _counts() -> Any:
    import nmf_zoo as nz
    from benchmarks.datasets import nips

    return nz.gamma_nmf(nips()[0], 10, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, beta_h=0.5)


def _free_counts() -> Any:
    import nmf_zoo as nz
    from benchmarks.datasets import nips

    return nz.poisson_nmf(nips()[0], 10)


def _small_counts() -> Any:
    import nmf_zoo as nz
    from benchmarks.datasets import gamma_counts

    return nz.gamma_nmf(gamma_counts(40, 100, 4, 5.0), 4, alpha_w=1.0, alpha_h=1.0)


def _powers() -> Any:
    import nmf_zoo as nz

    rng = np.random.default_rng(1)
    means = rng.gamma(0.5, 2.0, (257, 8)) @ rng.gamma(0.5, 2.0, (8, 300))
    return nz.is_nmf(rng.exponential(means + 1e-3), 8, alpha_w=2.0)


def _chains() -> Any:
    import nmf_zoo as nz

    rng = np.random.default_rng(1)
    on = rng.random((8, 600)) < 0.5
    X = rng.poisson(rng.gamma(1.0, 4.0, (10, 8)) @ on + 0.1)
    return nz.hmm_nmf(X, 8, chain=nz.BasisChain(0.9, 0.8), background=0.1)


ROWS: dict[str, Callable[[], Callable[[], float]]] = {
    "EM, NIPS counts, K=10": lambda: fit(_free_counts(), "em", 30),
    "VB, NIPS counts, K=10": lambda: fit(_counts(), "vb", 100),
    "Gibbs, NIPS counts, K=10": lambda: sample(_counts(), "gibbs", 0, 60),
    "Gibbs trajectories, 40 x 100, K=4": lambda: sample(_small_counts(), "gibbs", 500, 2000),
    "IS-NMF EM, 257 x 300, K=8": lambda: fit(_powers(), "em", 400),
    "IS-NMF VB, 257 x 300, K=8": lambda: fit(_powers(), "vb", 200),
    "IS-NMF Gibbs, 257 x 300, K=8": lambda: sample(_powers(), "gibbs", 0, 20),
    "exact HMM filter, K=8, T=600": lambda: fit(_chains(), "hmm_exact", 100),
}


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
