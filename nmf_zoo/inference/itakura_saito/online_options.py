"""The options of simulated online EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.step_options import check_steps, is_real
from nmf_zoo.options import check_types

STATISTICS = ("rao_blackwell", "plain")


@dataclass(frozen=True, kw_only=True)
class SimulatedOnlineEM:
    """Options of simulated online EM, for exponential data (Cappe, Fevotte, Rohde 2011).

    Attributes
    ----------
    sweeps, keep : L Gibbs sweeps of a frame's activations, and how many of the last, m, are averaged. What noise few
        sweeps leave averages out over the frames; their bias does not
    leaps : leapfrog steps of a Hamiltonian move of the activations that ends each sweep; 0, no such move, is the
        paper's sampler, whose draws resemble each other over tens of sweeps, over hundreds with many components. With 2
        or 3 they are nearly independent: on a piece of music the default differs from ``sweeps=100, keep=50, leaps=0``
        and ``sweeps=400, keep=200, leaps=0`` by less than random starts do, in 2/3 and 1/5 of the time
    exponent, offset : the n-th step has size (n + offset)^-exponent, 1/2 < exponent <= 1. Smaller exponents forget the
        beginning sooner, larger ones average longer
    statistic : "rao_blackwell", expectations given the drawn activations, or "plain", as drawn, which varies more
    smoothing : (a, b), both >= 0, when W is free: a_n = a / n, b_n = b / n in the maximisation. None for maximum
        likelihood, where W is kept from 0 by 1e-100. The paper has a = 1. W with an inverse-gamma prior has its own
    batch : frames of one step, drawn side by side on several cores. Blocks given to ``update`` are cut into steps of so
        many frames, the last of a block may have fewer
    first_frames : frames that are gathered until the start of W is fitted to them; they are streamed then, like all
        others. 0 begins at random, which ended 170 nats a frame lower on that music in shuffled order, and no lower in
        order of time. With ``initvals`` none are gathered
    average_after : from which frame on statistics are averaged over the steps, as Polyak and Ruppert average iterates;
        the W of the result is that of the averages. None for no averages
    expand : parameter expansion: the scale of H is estimated, too, and given to W, whose scale then settles as fast as
        its profiles do. For frames in random order; in those of a recording it follows what was last heard, and a
        component that is not heard for long may be lost

    Notes
    -----
    A silent frame, of power 0, is data: it pulls W towards 0 (W of a single component by the step size), and a long
    silence pulls it far. The activations of later frames make up for that, but frames of no interest are best left out,
    or given as NaN; a known noise floor is a ``background=`` of the model. Only the products of W and H are known well:
    without ``expand`` the scale of W settles slowly, the more so the more frequencies there are.

    The paper's algorithm is ``sweeps=400, keep=200, leaps=0, first_frames=0, smoothing=(1, b)``; its toy has
    ``sweeps=100, keep=1``.

    Examples
    --------
    >>> import numpy as np
    >>> import nmf_zoo as nz
    >>> rng = np.random.default_rng(1)
    >>> W = np.array([[1.0, 0.01], [0.5, 0.2], [0.02, 1.0]])
    >>> power = rng.exponential(size=(3, 2000)) * (W @ (1 / rng.gamma(1.0, size=(2, 2000))))
    >>> stream = nz.stream(nz.is_nmf(None, rank=2, shape=(3, 1)), engine="online_em", random_seed=1)
    >>> stream.update(power)
    >>> sorted(stream.W.argmax("feature").values.tolist())
    [0, 2]
    """

    sweeps: int = 20
    keep: int = 15
    leaps: int = 2
    exponent: float = 0.6
    offset: float = 0.0
    statistic: Literal["rao_blackwell", "plain"] = "rao_blackwell"
    smoothing: tuple[float, float] | None = None
    batch: int = 1
    first_frames: int = 100
    average_after: int | None = None
    expand: bool = False

    def __post_init__(self):
        check_types(self)
        check_steps(self)
        if self.statistic not in STATISTICS:
            raise InputError("statistic", repr(self.statistic), f"one of {list(STATISTICS)}")
        if self.smoothing is not None:
            object.__setattr__(self, "smoothing", _pair(self.smoothing))
        if not isinstance(self.expand, bool | np.bool_):
            raise InputError("expand", repr(self.expand), "True or False")


def _pair(smoothing: Any) -> tuple[float, float]:
    is_pair = isinstance(smoothing, tuple | list) and len(smoothing) == 2
    if not is_pair or not all(is_real(value) and 0.0 <= value < np.inf for value in smoothing):
        raise InputError("smoothing", repr(smoothing), "None or two finite numbers >= 0, (a, b)")
    return float(smoothing[0]), float(smoothing[1])
