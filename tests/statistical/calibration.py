"""Simulation-based calibration by the library's own `nz.calibrate`, as a test: pass, or fail with what is off."""

from __future__ import annotations

import nmf_zoo as nz
from tests.sizes import size
from tests.statistical.gates import ALARM
from tests.statistical.judged import judges

DRAWS = size(15, 31)  # 16 or 32 ranks, in 8 bins: the simulations have the power, of 1 + 2 / DRAWS times the variance
LEAST = 50  # simulations, twice those that see most planted errors
SEEING = 25  # of those that may see a planted error


@judges(lambda declare, engine, simulations, **_: simulations)
def check_calibrated(declare, engine, simulations, *, tune, thin, seed, least=LEAST):
    """Raise unless the ranks of every quantity are uniform; the chance of a false alarm is ALARM."""
    assert simulations >= least, f"gate 1, simulations: got {simulations}; expected at least {least}"
    found = nz.calibrate(
        declare,
        engine,
        simulations=simulations,
        draws=DRAWS,
        thin=thin,
        tune=tune,
        alarm=ALARM,
        cores=1,
        random_seed=seed,
        progressbar=False,
    )
    assert (found["verdict"] == "calibrated").all(), f"gate 2, uniform ranks: {found.attrs['verdict']}"
