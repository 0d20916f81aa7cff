"""Options of Monte-Carlo EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nmf_zoo.errors import InputError
from nmf_zoo.options import check_types

COMPLETE = ("auto", "C", "H", "CH")
STARTS = ("random", "deterministic")


@dataclass(frozen=True, kw_only=True)
class MCEM:
    """Options of Monte-Carlo EM: GaP's W at the maximum of log p(X | W), H integrated out (Filstroff 2018, section 5).

    ``fit`` holds the column ``norms`` (iteration, component), the ``objective`` -log p(X | W) with its Monte-Carlo
    ``objective_error`` (0 where it is exact), and which components are ``pruned``: those whose share of the expected
    total is at most 0.001. Surplus columns shrink with the number of samples, and slowly with iterations: of 10,000
    samples one can keep a share of 0.006 and is not pruned. So look at the norms, too.

    Attributes
    ----------
    complete : what is drawn and then treated as data: "C", "H" or "CH"; "auto" is "C" where its update holds (no
        missing cells; rate and exposure the same for all samples) and "CH" elsewhere
    sweeps : sweeps of Gibbs sampling in an iteration
    burn_in : how many of an iteration's sweeps are discarded
    step : exponent of the averaging over iterations, above 0.5 and at most 1; None averages nothing
    explore : iterations before the averaging begins
    start : where ``initvals`` say nothing: "random" divides the mean counts among the components at random,
        "deterministic" equally (eq. 51: then only noise separates the components)
    rao_blackwell : expectations given the other variables take the place of draws, wherever they are known; "H" has
        them in its numerator in any case. Averages of drawn C make a cell of W 0 for ever once no draw of an iteration
        holds a count there
    average : the result is the mean of the last whole window of iterations; False: the last iterate
    exact : evaluate log p(X | W) exactly in each iteration; "auto" where that takes less than 10 ms on one thread
    """

    complete: Literal["auto", "C", "H", "CH"] = "auto"
    sweeps: int = 20
    burn_in: int = 5
    step: float | None = None
    explore: int = 200
    start: Literal["random", "deterministic"] = "random"
    rao_blackwell: bool = True
    average: bool = True
    exact: bool | Literal["auto"] = "auto"

    def __post_init__(self):
        check_types(self)
        if self.complete not in COMPLETE:
            raise InputError("complete", repr(self.complete), f"one of {list(COMPLETE)}")
        if self.start not in STARTS:
            raise InputError("start", repr(self.start), f"one of {list(STARTS)}")
        for name, least in (("sweeps", 1), ("burn_in", 0), ("explore", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(name, repr(value), f"an integer >= {least}")
        if self.burn_in >= self.sweeps:
            raise InputError("burn_in", f"{self.burn_in} of {self.sweeps} sweeps", "fewer than sweeps")
        if self.step is not None and not (isinstance(self.step, float | int) and 0.5 < self.step <= 1.0):
            raise InputError("step", repr(self.step), "None or a number above 0.5 and at most 1")
        for name in ("rao_blackwell", "average"):
            if type(getattr(self, name)) is not bool:
                raise InputError(name, repr(getattr(self, name)), "True or False")
        if type(self.exact) is not bool and self.exact != "auto":
            raise InputError("exact", repr(self.exact), "True, False or 'auto'")
