"""Means and variances of the draws in place of the draws: memory of a few models, however many are drawn.

The statistics of the draws, which tell convergence, are kept draw by draw as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmf_zoo.kernels.numerics.moments import add_draws
from nmf_zoo.runtime.state_patterns import Like, require
from nmf_zoo.runtime.traces import Rows, Trace, Traces
from nmf_zoo.structure import Array


class MomentTrace(Trace):
    """Running moments of one chain: a row of arrays (chain, 1, *variable) ``mean`` and ``squares``.

    Attributes
    ----------
    added : draws that are in the moments; after an interruption there may be fewer statistics
    """

    def __init__(self, mean: Rows, squares: Rows, stats: Rows, chain: int):
        super().__init__(Rows(stats.n_chains, stats.length), stats, chain)
        self._mean, self._squares, self.added = mean, squares, 0

    def extend(self, values: Mapping[str, Array], stats: Mapping[str, Array]) -> None:
        """Add the kept sweeps of a block to the moments, and append their statistics."""
        for name, draws in values.items():
            mean, squares = self._moments(name, draws.shape[1:])
            add_draws(mean.ravel(), squares.ravel(), np.reshape(draws, (len(draws), -1)), self.added)
        super().extend({}, stats)
        self.added = self.filled

    def _moments(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """This chain's mean and sum of squares of a variable, 0 before its first draw. Views, contiguous."""
        mean, squares = (rows.array(name, shape, np.dtype(float))[self.chain] for rows in (self._mean, self._squares))
        if self.added == 0:
            mean[...], squares[...] = 0.0, 0.0
        return mean, squares

    def state(self) -> dict[str, Array]:
        """The moments."""
        mean, squares = (rows.of_chain(self.chain, 0, min(self.added, 1)) for rows in (self._mean, self._squares))
        return {f"mean/{name}": array for name, array in mean.items()} | {
            f"squares/{name}": array for name, array in squares.items()
        }

    def in_rows(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def restore(self, filled: int, state: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Take the moments up again."""
        like = {name: Like(np.empty((1, *np.shape(value)))) for name, value in values.items() if filled}
        require(state, {f"{kind}/{name}": like[name] for kind in ("mean", "squares") for name in like}, "the moments")
        for key, saved in state.items():
            kind, _, name = key.partition("/")
            rows = self._mean if kind == "mean" else self._squares
            rows.array(name, saved.shape[1:], saved.dtype)[self.chain] = saved
        super().restore(filled, state, values)


class MomentTraces(Traces):
    """The moments of all chains of a run, and the statistics of their draws; ``rows``: means, squares, statistics."""

    def make_part(self, part: str, n_chains: int, length: int) -> Sequence[Trace]:
        mean, squares, stats = self.rows[part] = [Rows(n_chains, n) for n in (1, 1, length)]
        return [MomentTrace(mean, squares, stats, chain) for chain in range(n_chains)]
