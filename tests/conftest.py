"""Test set-up: PyTensor's numba backend (no C compiler needed), one BLAS thread, no plots on a screen, Ctrl-C heard."""

import os
import signal

os.environ["PYTENSOR_FLAGS"] = "cxx=,mode=NUMBA," + os.environ.get("PYTENSOR_FLAGS", "")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
