"""A real Ctrl-C in the middle of compiled work: the process lives, and what was done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != -signal.SIGSEGV
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("kept ")
