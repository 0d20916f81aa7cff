"""A real Ctrl-C in the middle of compiled work: the process lives, and what was done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main
from nmf_zoo.runtime import checkpoint
from nmf_zoo.verbs import sample_and_fit
from tests.forked import Forked

SOURCE = """
import os, signal, threading, time
import numpy as np
import nmf_zoo as nz

X = np.random.default_rng(0).poisson(5.0, (4, 400_000))
model = nz.hmm_nmf(None, 2, chain="unit", shape=(4, 1))
stream = nz.stream(model, engine=nz.ParticleOnlineEM(particles=300), random_seed=1)
stream.update(X[:, :10])
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    stream.update(X[:, 10:])
except KeyboardInterrupt:
    assert 10 <= stream.columns_seen < X.shape[1], stream.columns_seen
    assert np.all(np.isfinite(stream.W.values))
    stream.update(X[:, :10])
    print("kept", stream.columns_seen)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_stream_survives_ctrl_c_inside_a_kernel():
    """What was learnt before Ctrl-C is kept. Long: a process of its own, with all that it imports."""
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != -signal.SIGSEGV
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("kept ")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_command_saves_what_was_drawn_and_says_who_stopped_it(tmp_path):
    """Real processes, stopped once their first checkpoint shows that they are sampling."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).poisson(5.0, (3, 4)))
    running = {}

    def work(words):
        os.chdir(tmp_path)
        checkpoint.EVERY = 0.1  # or both would sample for seconds
        raise SystemExit(main(words))

    for number in (signal.SIGINT, signal.SIGTERM):
        words = f"fit x.npy --rank 1 --chains 1 --tune 10 --draws 400000000 --thin 100000 -o {int(number)}.nc".split()
        words += f"--checkpoint {int(number)} --quiet".split()
        running[number] = Forked(lambda words=words: work(words), err=tmp_path / f"{int(number)}.said")
    try:
        for number, process in running.items():
            while not (tmp_path / str(int(number)) / "0.state").exists():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            code, said = process.wait(), (tmp_path / f"{int(number)}.said").read_text(encoding="utf-8")
            assert code == 128 + number, said
            assert said.startswith("nmf-zoo: interrupted; ")
            assert nz.load(tmp_path / f"{int(number)}.nc").posterior.sizes["draw"] >= 1
    finally:
        for process in running.values():
            process.send_signal(signal.SIGKILL)


def test_ctrl_c_in_the_checks_after_a_run_keeps_its_draws(monkeypatch):
    def stop(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_and_fit, "warn_unconverged", stop)
    model = nz.gamma_nmf(np.ones((3, 4), dtype=int), 1)
    with pytest.warns(nz.NmfZooWarning, match="convergence checks: stopped by the user and left out"):
        idata = nz.sample(5, tune=5, chains=1, random_seed=1, progressbar=False, model=model)
    assert idata.posterior.sizes["draw"] == 5
