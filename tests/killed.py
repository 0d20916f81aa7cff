"""Runs that are killed: `python -m tests.killed` starts runs, kills them at random moments, and lets the last one end.

A script, not a test: each run is a process of its own, forked before it has threads, so that SIGKILL is the real thing
and the imports are paid once. It prints one line per case, and fails when a result differs from an undisturbed run's.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference import checkpoint, layout, sources
from nmf_zoo.inference.itakura_saito import em, gibbs_steps, vb

SECONDS, KILLS = 0.6, 4  # of an undisturbed run; of each case


def models():
    """Counts (dense, sparse, with missing cells) and powers, all of several chunks, and a table of one chunk."""
    rng = np.random.default_rng(3)
    x = rng.poisson(rng.gamma(0.7, size=(70, 3)) @ rng.gamma(0.7, size=(3, 60)) * 2.0).astype(float)
    gammas = {"alpha_w": 1.5, "beta_w": 1.0, "alpha_h": 1.5, "beta_h": 1.0}
    return {
        "dense": nz.gamma_nmf(x, rank=3, **gammas),
        "sparse": nz.gamma_nmf(sp.csr_array(x), rank=3, **gammas),
        "masked": nz.gamma_nmf(x, rank=3, mask=rng.random(x.shape) < 0.9, exposure=np.full((1, 60), 2.0), **gammas),
        "small": nz.gamma_nmf(x[:12, :15], rank=3, **gammas),
        "powers": nz.is_nmf(rng.exponential(x + 1.0), 3, alpha=1.5, alpha_w=2.5),
    }


def run(model, engine, length, path=None, cores=2):
    """Arrays of a run of this length: what must not depend on how often it was killed."""
    options = {"engine": engine, "cores": cores, "random_seed": 5, "quiet": True, "model": model, "checkpoint": path}
    if engine == "gibbs":
        idata = nz.sample(length, tune=length // 2, chains=2, discard_tuned_samples=False, **options)
    else:
        idata = nz.fit(max_iter=length, tol=0, restarts=2, draws=3, **options)
    groups = [name for name in _compat.group_names(idata) if not name.endswith("_data")]
    numbers = {f"{name}/{key}": value.values for name in groups for key, value in _compat.group(idata, name).items()}
    return {name: array for name, array in numbers.items() if array.dtype.kind in "biuf"}


def in_a_process(work, *args):
    """The number of a new process that does this work and ends."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work(*args)
            code = 0
        finally:
            os._exit(code)
    return number


def killed_after(number, seconds):
    """Whether the process had to be killed; one that failed is a failure of ours."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            assert status == 0, f"the run ended with status {status}"
            return False
        time.sleep(0.001)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return True


def save(path, *args):
    np.savez(path, **run(*args))


def suited_length(model, engine):
    """How long a run of about ``SECONDS`` is."""
    run(model, engine, 20)  # compiles
    began = time.perf_counter()
    run(model, engine, 100)
    return max(20, int(100 * SECONDS / (time.perf_counter() - began)))


def kill_and_compare(name, model, engine, folder):
    length = suited_length(model, engine)
    assert not killed_after(in_a_process(save, folder / "whole.npz", model, engine, length), 300.0)
    path, moments = folder / f"{name}.{engine}.checkpoint", []
    for _ in range(KILLS):
        moments.append(random.uniform(0.0, SECONDS))
        if not killed_after(in_a_process(run, model, engine, length, path), moments[-1]):
            moments.pop()
    assert not killed_after(in_a_process(save, folder / "killed.npz", model, engine, length, path, 1), 300.0)
    with np.load(folder / "whole.npz") as whole, np.load(folder / "killed.npz") as killed:
        assert set(whole.files) == set(killed.files)
        different = [key for key in whole.files if not np.array_equal(whole[key], killed[key], equal_nan=True)]
    said = ", ".join(f"{moment:.3f}" for moment in moments)
    assert not different, f"{engine} on {name}, killed after {said} s: {different} differ"
    print(f"{engine} on {name}: {length} steps, killed after {said} s", flush=True)
    return len(moments)


def main(engines):
    checkpoint.EVERY, checkpoint.SHARE = 0.0, 1.0  # save all the time, so that saves are cut short too
    layout.CHUNK_NONZEROS, sources.CHUNK_CELLS = 256, 512
    em.CHUNK_CELLS, vb.CHUNK_CELLS, gibbs_steps.CHUNK_CELLS = 1024, 1024, 4096
    folder = Path(tempfile.mkdtemp())
    try:
        kills = sum(
            kill_and_compare(name, model, engine, folder) for name, model in models().items() for engine in engines
        )
        assert kills, "no run lived long enough to be killed"
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
