"""What a run keeps of its chains, block by block: here every draw, in arrays that the chains share.

Each chain fills its own row of arrays (chain, draw, *variable), which become the result as they are: nothing is stacked
or copied at the end. :class:`MomentTraces` keeps means and variances instead, memory of a few models however many are
drawn; the statistics of the draws, which tell convergence, are kept draw by draw as ever. :mod:`nmf_zoo.results.stores`
sends the draws to disk.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.numerics.moments import add_draws
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import ArrayPattern, Like, require
from nmf_zoo.structure import Array


class TraceArrays:
    """Arrays (chain, draw, *variable) by name, made when a name is first met; each chain fills a row of its own."""

    def __init__(self, n_chains: int, length: int):
        self.n_chains, self.length = n_chains, length
        self.arrays: dict[str, Array] = {}
        self._making = threading.Lock()

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """The array of a variable of this shape, (chain, draw, *shape)."""
        with self._making:
            if name not in self.arrays:
                self.arrays[name] = np.empty((self.n_chains, self.length, *shape), dtype=dtype)
            return self.arrays[name]

    def of_chain(self, chain: int, first: int, stop: int) -> dict[str, Array]:
        """Draws first, ..., stop - 1 of one chain, (stop - first, *variable) each."""
        return {name: array[chain, first:stop] for name, array in self.arrays.items()} if stop > first else {}

    def gather(self, chain: int, first: int, step: int, kept: int) -> None:
        """Move draws first, first + step, ... of one chain to 0, ..., kept - 1: one by one, which takes no memory."""
        for array in self.arrays.values():
            for place in range(kept):
                array[chain, place] = array[chain, first + step * place]

    def keep(self, chains: Sequence[int], length: int) -> None:
        """Drop all but some chains, and the draws from ``length`` on."""
        for name, array in self.arrays.items():
            for place, chain in enumerate(chains):
                if place != chain:
                    array[place] = array[chain]
            self.arrays[name] = array[: len(chains), :length]


class Trace:
    """Draws and statistics of one chain, in the warm-up or after it.

    Attributes
    ----------
    length, filled : draws there will be, and draws there are
    before : draws there were when new ones began to take their places; from ``filled`` on they are still there
    thins : whether it keeps fewer of them when the chain goes on, not more
    """

    thins = True

    def __init__(self, values: TraceArrays, stats: TraceArrays, chain: int):
        self.length, self.filled, self.before, self.chain = stats.length, 0, 0, chain
        self._values, self._stats = values, stats

    @property
    def values(self) -> dict[str, Array]:
        """Draws of the variables, (filled, *variable)."""
        return self._values.of_chain(self.chain, 0, self.filled)

    @property
    def stats(self) -> dict[str, Array]:
        """Statistics of the draws, (filled, ...)."""
        return self._stats.of_chain(self.chain, 0, self.filled)

    def extend(self, values: Mapping[str, Array], stats: Mapping[str, Array]) -> None:
        """Append the kept sweeps of a block, (kept, *variable) each."""
        stop = self.filled + len(next(iter(stats.values())))
        assert stop <= self.length, f"{stop} draws, and room for {self.length}"
        for rows, new in ((self._values, values), (self._stats, stats)):
            for name, array in new.items():
                rows.array(name, array.shape[1:], array.dtype)[self.chain, self.filled : stop] = array
        self.filled = stop

    def lengthen(self) -> None:
        """Make room for as many sweeps again as there were: keep every second draw."""
        kept, self.before = -(-self.filled // 2), 0
        self._gather(0, 2, kept)

    def begin_anew(self) -> None:
        """New draws take the places of those that there are, which are left out when there are as many."""
        self.before, self.filled = self.filled or self.before, 0

    def go_back(self) -> bool:
        """To the draws of before, where there are fewer new ones by now."""
        left = self.before - self.filled
        if left <= self.filled:
            return False
        self._gather(self.filled, 1, left)
        self.before = 0
        return True

    def _gather(self, first: int, step: int, kept: int) -> None:
        for rows in (self._values, self._stats):
            rows.gather(self.chain, first, step, kept)
        self.filled = kept

    def rows(self, first: int) -> dict[str, Array]:
        """For a checkpoint: what draws first, ..., filled - 1 added, to be saved once. Views."""
        of_values = self._values.of_chain(self.chain, first, self.filled)
        of_stats = self._stats.of_chain(self.chain, first, self.filled)
        return {f"values/{name}": array for name, array in of_values.items()} | {
            f"stats/{name}": array for name, array in of_stats.items()
        }

    def state(self) -> dict[str, Array]:
        """For a checkpoint: what each one saves anew."""
        return {}

    def add_rows(self, rows: Mapping[str, Array], values: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
        """Append what an earlier :meth:`rows` gave, if that is draws like this one (``values``, ``stats``).

        There may be more statistics: those of a sweep.
        """
        parts: dict[str, dict[str, Array]] = {"values": {}, "stats": {}}
        for name, array in rows.items():
            kind, _, variable = name.partition("/")
            parts.setdefault(kind, {})[variable] = array
        n = len(next(iter(parts["stats"].values()), ()))
        if not 0 < n <= self.length - self.filled:
            raise Damaged(f"damaged: {n} draws after {self.filled} of {self.length}")
        others = {name: ArrayPattern(array.dtype.kind, (n, *array.shape[1:])) for name, array in parts["stats"].items()}
        require(
            parts, {"values": _draws_like(self.in_rows(values), n), "stats": others | _draws_like(stats, n)}, "rows"
        )
        self.extend(parts["values"], parts["stats"])

    def in_rows(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the variables whose draws are in the rows."""
        return values

    def restore(self, filled: int, state: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Go back to ``filled`` draws like ``values``, whose rows have been added, and to what :meth:`state` gave."""
        if self.filled != filled:
            raise Damaged(f"damaged: rows of {self.filled} draws, and a state after {filled}")


def _draws_like(draw: Mapping[str, Any], n: int) -> dict[str, Like]:
    """The pattern of ``n`` draws."""
    return {name: Like(np.broadcast_to(value, (n, *np.shape(value)))) for name, value in draw.items()}


class ChainRound(NamedTuple):
    """What a chain goes on with: which draws it keeps from then on, and from whose state it goes on.

    Attributes
    ----------
    discarded : sweeps after the warm-up that are left out in all; more than before where what there was is left out
    kept : how many times the sweeps that were asked for come after these
    leaders : of each chain of the run the one from whose state it goes on
    """

    discarded: int
    kept: int
    leaders: Sequence[int]

    def length(self, draws: int) -> int:
        """Sweeps after the warm-up in all, where so many were asked for."""
        return self.discarded + draws * self.kept


FIRST_ROUND = ChainRound(0, 1, ())  # before a chain goes on


@dataclass
class ChainResult:
    """What sampling one chain gave, its number, and what is ``left`` of it: what its engine says at the end.

    ``rounds`` : one for each time that it went on; ``lengthened`` : how many draws there were each time
    """

    number: int
    warmup: Trace
    draws: Trace
    left: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[ChainRound] = field(default_factory=list)
    lengthened: list[int] = field(default_factory=list)

    @property
    def now(self) -> ChainRound:
        """The round that it is in."""
        return self.rounds[-1] if self.rounds else FIRST_ROUND

    @property
    def discarded(self) -> int:
        """Sweeps after the warm-up that are left out."""
        return self.now.discarded

    @property
    def kept(self) -> int:
        """How many times the sweeps that were asked for come after these."""
        return self.now.kept

    @property
    def every(self) -> int:
        """Of the sweeps that were to be kept before it went on, every so-many-th is kept by now."""
        return self.kept if self.draws.thins else 1

    @property
    def gathered(self) -> int:
        """How many sweeps after the warm-up chains last went on from the states of others; 0 if they never did."""
        followed = (each for each in self.rounds if list(each.leaders) != list(range(len(each.leaders))))
        return max((each.discarded for each in followed), default=0)

    def lengthen(self, to: ChainRound) -> None:
        """Make room for the sweeps of a round. What there is stays, or is left out."""
        is_anew = to.discarded > self.discarded
        self.rounds.append(to)
        self.lengthened.append(self.draws.filled)
        if is_anew:
            self.draws.begin_anew()
        else:
            self.draws.lengthen()

    def go_back(self) -> None:
        """Where it was stopped soon after it had begun anew, to what there was."""
        if self.draws.go_back():
            del self.rounds[-1], self.lengthened[-1]


class Traces:
    """The traces of all chains of a run, in memory.

    Attributes
    ----------
    chains : one ChainResult each, for its own thread to fill
    rows : "warmup" and "draws" -> arrays of the variables, and of the statistics
    """

    def __init__(self, n_chains: int, kept_warmup: int, kept_draws: int):
        self.rows: dict[str, list[TraceArrays]] = {"warmup": [], "draws": []}
        traces = {
            part: self.make_part(part, n_chains, length)
            for part, length in (("warmup", kept_warmup), ("draws", kept_draws))
        }
        pairs = zip(traces["warmup"], traces["draws"], strict=True)
        self.chains = [ChainResult(chain, *pair) for chain, pair in enumerate(pairs)]

    def make_part(self, part: str, n_chains: int, length: int) -> Sequence[Trace]:
        """One trace per chain for a part of the run."""
        values, stats = self.rows[part] = [TraceArrays(n_chains, length), TraceArrays(n_chains, length)]
        return [Trace(values, stats, chain) for chain in range(n_chains)]

    @property
    def furthest(self) -> ChainResult:
        """The first of the chains that have gone on most often."""
        return max(self.chains, key=lambda chain: len(chain.rounds))

    @property
    def is_level(self) -> bool:
        """Whether all have gone on as often."""
        return len({len(chain.rounds) for chain in self.chains}) == 1

    def level(self) -> list[ChainResult]:
        """The chains, cut to the same length; those that an interruption left far behind are dropped."""
        for chain in self.chains:
            chain.go_back()
        kept = fullest([chain.draws.filled for chain in self.chains])
        for part in self.rows:
            traces: list[Trace] = [getattr(self.chains[chain], part) for chain in kept]
            self.cut(part, traces, min(trace.filled for trace in traces))
        self.chains = [self.chains[chain] for chain in kept]
        return self.chains

    def cut(self, part: str, traces: Sequence[Trace], length: int) -> None:
        """Keep ``length`` draws of these traces and nothing of the others."""
        for rows in self.rows[part]:
            rows.keep([trace.chain for trace in traces], length)
        for place, trace in enumerate(traces):
            trace.chain, trace.filled = place, length


def fullest(lengths: Sequence[int]) -> list[int]:
    """The chains that hold most draws together when cut to their shortest: after Ctrl-C some may not have begun."""
    shortest = max(lengths, key=lambda length: (length * sum(other >= length for other in lengths), length))
    return [chain for chain, length in enumerate(lengths) if length >= shortest]


# -- moments in the place of the draws -------------------------------------------------------------------------------

BEFORE = "before/"  # of moments of draws that new ones are to replace


class MomentTrace(Trace):
    """Running moments of one chain: a row of arrays (chain, 1, *variable) ``mean`` and ``squares``.

    Attributes
    ----------
    added : draws that are in the moments; after an interruption there may be fewer statistics
    """

    thins = False

    def __init__(self, mean: TraceArrays, squares: TraceArrays, stats: TraceArrays, chain: int):
        super().__init__(TraceArrays(stats.n_chains, stats.length), stats, chain)
        self._rows, self.added = {"mean": mean, "squares": squares}, 0
        self._of_before: dict[str, Array] = {}  # the moments of the draws of before, as in a state

    def extend(self, values: Mapping[str, Array], stats: Mapping[str, Array]) -> None:
        """Add the kept sweeps of a block to the moments, and append their statistics."""
        for name, draws in values.items():
            mean, squares = self._moments(name, draws.shape[1:])
            add_draws(mean.ravel(), squares.ravel(), np.reshape(draws, (len(draws), -1)), self.added)
        super().extend({}, stats)
        self.added = self.filled

    def _moments(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """This chain's mean and sum of squares of a variable, 0 before its first draw. Views, contiguous."""
        mean, squares = (rows.array(name, shape, np.dtype(float))[self.chain] for rows in self._rows.values())
        if self.added == 0:
            mean[...], squares[...] = 0.0, 0.0
        return mean, squares

    def lengthen(self) -> None:
        """There is room: a draw takes only its statistics."""
        self.before, self._of_before = 0, {}

    def begin_anew(self) -> None:
        """The moments of before are kept beside the new ones."""
        if self.filled:
            self._of_before = {f"{BEFORE}{key}": array.copy() for key, array in self._of_draws().items()}
        super().begin_anew()
        self.added = 0

    def go_back(self) -> bool:
        added = self.before
        if not super().go_back():
            return False
        self._take(self._of_before)
        self.added = added
        return True

    def state(self) -> dict[str, Array]:
        """The moments, and those of before."""
        return self._of_draws() | self._of_before

    def _of_draws(self) -> dict[str, Array]:
        of_chain = {kind: rows.of_chain(self.chain, 0, min(self.added, 1)) for kind, rows in self._rows.items()}
        return {f"{kind}/{name}": array for kind, arrays in of_chain.items() for name, array in arrays.items()}

    def in_rows(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def restore(self, filled: int, state: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Take the moments up again."""
        there_are = ([""] if filled else []) + ([BEFORE] if self.before else [])
        like = {
            f"{when}{kind}/{name}": Like(np.empty((1, *np.shape(value))))
            for when in there_are
            for kind in self._rows
            for name, value in values.items()
        }
        require(state, like, "the moments")
        self._of_before = {key: saved for key, saved in state.items() if key.startswith(BEFORE)}
        self._take({key: saved for key, saved in state.items() if key not in self._of_before})
        super().restore(filled, state, values)

    def _take(self, state: Mapping[str, Array]) -> None:
        for key, saved in state.items():
            kind, _, name = key.removeprefix(BEFORE).partition("/")
            self._rows[kind].array(name, saved.shape[1:], saved.dtype)[self.chain] = saved


class MomentTraces(Traces):
    """The moments of all chains of a run, and the statistics of their draws; ``rows``: means, squares, statistics."""

    def make_part(self, part: str, n_chains: int, length: int) -> Sequence[Trace]:
        mean, squares, stats = self.rows[part] = [TraceArrays(n_chains, n) for n in (1, 1, length)]
        return [MomentTrace(mean, squares, stats, chain) for chain in range(n_chains)]
