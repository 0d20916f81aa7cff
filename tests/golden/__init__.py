"""Golden results: what every engine gives at fixed seeds, from an earlier commit and from the working tree, bit by bit.

``python -m tests.golden --base REV`` makes both on this machine and compares them. ``digests.json`` keeps digests of
the bits, with the processor and the versions they belong to, and for other machines one step from a given start.
"""

import os

SETTINGS = {"PYTENSOR_FLAGS": "cxx=,mode=NUMBA", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
for _name, _value in SETTINGS.items():  # as the tests have them, before NumPy and PyTensor are imported
    os.environ.setdefault(_name, _value)
