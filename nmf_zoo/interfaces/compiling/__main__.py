"""A helper process: runs what its standard input asks for, and ends with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from queue import SimpleQueue
from typing import Any

from nmf_zoo.kernels.compile.ahead import end_with


def serve() -> None:
    """Answer requests, one line each. Ctrl-C is for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer
    requests: SimpleQueue[str] = SimpleQueue()
    end_with(sys.stdin, requests.put)
    while True:
        print(json.dumps(_answer(json.loads(requests.get()))), file=answers, flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from nmf_zoo.inference.registry import OURS
    from nmf_zoo.interfaces.compiling.small_runs import run

    try:
        return {"seconds": run(OURS[request["entry"]], request["models"])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of short runs
    serve()
