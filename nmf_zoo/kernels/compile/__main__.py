"""A helper process: compiles the kernel that its standard input names, keeps it in the cache, and ends."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from importlib import import_module

from nmf_zoo.kernels.compile.ahead import end_with


def compile_one() -> None:
    """Ctrl-C is for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, name, takes = pickle.load(sys.stdin.buffer)
    end_with(sys.stdin.buffer, lambda line: None)
    code = 1
    try:
        getattr(import_module(module), name).compile(takes)
        code = 0
    finally:
        os._exit(code)  # Python would wait for the thread that listens, and abort


if __name__ == "__main__":
    compile_one()
