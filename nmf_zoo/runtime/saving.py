"""What a chain and a restart save of themselves, and how they go on from it; without a checkpoint, nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each, Like
from nmf_zoo.runtime.traces import FIRST_ROUND, ChainResult, ChainRound
from nmf_zoo.structure import Array

MOST = 2**62  # sweeps, which nobody can count
ROUNDS = ("lengthened", *ChainRound._fields)  # of a state: of each time that the chain went on
DO = "ask for as many, or give another checkpoint"
Draw = Callable[[Any], tuple[Mapping[str, Array], Mapping[str, Array]]]


class SavedChain:
    """Saves a chain of so many: its state after some sweeps, and what its traces have gained since the last save."""

    def __init__(self, part: RunFiles | None, chain: ChainResult, chains: int):
        self._part, self._chain, self._chains = part, chain, chains
        self._traces = {"warmup": chain.warmup, "draws": chain.draws}
        self._sweeps, self._filled = 0, dict.fromkeys(self._traces, 0)

    def load(self, tune: int, draws: int, extend: int, fresh: Any, draw: Draw) -> tuple[int, Any]:
        """(sweeps done, state) with the traces as they were then; (0, ``fresh``) when there is nothing to go on from.

        What was saved must look like the fresh state, and like what ``draw`` keeps of it.
        """
        each = dict.fromkeys(self._traces, int)
        of_traces = {"filled": each, "traces": dict.fromkeys(self._traces, dict)}
        of_rounds = dict.fromkeys(ROUNDS, Each(int)) | {"leaders": Each(Each(int))}
        pattern = {"sweeps": int, **of_traces, **of_rounds, "state": Like(fresh)}
        saved = None if self._part is None else self._part.load(pattern)
        if self._part is None or saved is None:
            return 0, fresh
        self._sweeps, self._filled = saved.tree["sweeps"], saved.tree["filled"]
        with self._part.refused():
            own = self._as_it_was(*(saved.tree[name] for name in ROUNDS))
        if self._sweeps > tune + own.now.length(draws):
            drawn = self._sweeps - tune - own.discarded
            expected = f"at least the {-(-drawn // own.kept)} that the checkpoint holds"
            raise InputError("draws", str(draws), expected, DO)
        self._check_room(own, draws, extend)
        values, stats = draw(fresh)
        for rows in saved.rows(Each(Each(np.ndarray))):
            self._lengthen_as(own)
            with self._part.refused():
                for name, gained in rows.items():
                    self._trace(name).add_rows(gained, values, stats)
        self._lengthen_as(own)
        with self._part.refused():
            missing = own.lengthened[len(self._chain.lengthened) :]
            if missing:
                raise Damaged(f"damaged: chains that went on after {missing} draws, and rows of fewer")
            for name, trace in self._traces.items():
                trace.restore(self._filled[name], saved.tree["traces"][name], values)
        return self._sweeps, saved.tree["state"]

    def _as_it_was(self, lengthened: Sequence[int], *of_rounds: Sequence[Any]) -> ChainResult:
        """The chain when it was saved, of rounds that it can have gone through."""
        times = [len(lengthened), *map(len, of_rounds)]
        if len(set(times)) > 1:
            raise Damaged(f"damaged: chains that went on {' or '.join(map(str, times))} times")
        rounds = [ChainRound(*each) for each in zip(*of_rounds, strict=True)]
        before = FIRST_ROUND
        for each in rounds:
            is_anew = each.discarded > before.discarded
            is_longer = each.discarded == before.discarded and each.kept == 2 * before.kept
            if not (is_anew or is_longer) or not 1 <= each.kept <= MOST or each.discarded > MOST:
                raise Damaged(f"damaged: chains that kept {each[:2]} sweeps after {before[:2]}")
            if len(each.leaders) != self._chains or not set(each.leaders) <= set(range(self._chains)):
                raise Damaged(f"damaged: {self._chains} chains that followed {each.leaders}")
            before = each
        chain = self._chain
        return ChainResult(chain.number, chain.warmup, chain.draws, {}, rounds, list(lengthened))

    def _check_room(self, own: ChainResult, draws: int, extend: int) -> None:
        """The trace has room for as many draws as it held at any time, and to keep all where it does."""
        trace, most = self._chain.draws, max((each.kept for each in own.rounds), default=1)
        if not trace.thins and most > extend:
            raise InputError("extend", str(extend), f"at least the {most} that the checkpoint has gone on to", DO)
        needed = max([*own.lengthened, self._filled["draws"]])
        if needed > trace.length:
            expected = f"as many as when the chains went on, of which {needed} were kept"
            raise InputError("draws", str(draws), expected, DO)

    def _lengthen_as(self, own: ChainResult) -> None:
        """Go on as the chain did when it held so many draws."""
        chain = self._chain
        while (place := len(chain.rounds)) < len(own.rounds) and chain.draws.filled == own.lengthened[place]:
            chain.lengthen(own.rounds[place])

    def lengthen(self, to: ChainRound) -> None:
        """Let the chain go on. All that it has drawn is saved by now, or is not going to be."""
        self._chain.lengthen(to)
        self._filled["draws"] = self._chain.draws.filled
        self._sweeps = -1  # nothing is saved of what it has become

    def _trace(self, name: str) -> Any:
        if name not in self._traces:
            raise Damaged(f"damaged: rows of {name!r}")
        return self._traces[name]

    def has(self, sweeps: int) -> bool:
        """Whether what there is after so many is saved, if anything is to be."""
        return self._part is None or self._sweeps == sweeps

    def close(self) -> None:
        """Nothing is saved from here on."""
        self._part = None

    def save(self, sweeps: int, state: Any, *, last: bool = False) -> None:
        """Save if it is time to, or the chain ends here with something new."""
        if self._part is None or sweeps == self._sweeps or not (last or self._part.is_due()):
            return
        rows = {name: trace.rows(self._filled[name]) for name, trace in self._traces.items()}
        filled = {name: trace.filled for name, trace in self._traces.items()}
        summaries = {name: trace.state() for name, trace in self._traces.items()}
        tree = {"sweeps": sweeps, "state": state, "filled": filled, "traces": summaries}
        rounds = self._chain.rounds
        tree |= {"lengthened": list(self._chain.lengthened), "leaders": [list(each.leaders) for each in rounds]}
        tree |= {name: [getattr(each, name) for each in rounds] for name in ("discarded", "kept")}
        if self._part.save(tree, {name: gained for name, gained in rows.items() if gained}):
            self._sweeps, self._filled = sweeps, filled


class SavedFit:
    """Saves a restart: its state and residual, and the objective of every iteration."""

    def __init__(self, part: RunFiles | None):
        self._part, self._iterations = part, 0

    def load(self, max_iter: int, fresh: Any) -> tuple[Any, list[float], float]:
        """(state, objective so far, residual); (``fresh``, [], inf) when there is nothing to go on from."""
        saved = None if self._part is None else self._part.load({"state": Like(fresh), "residual": float})
        if self._part is None or saved is None:
            return fresh, [], np.inf
        objective = [
            value for rows in saved.rows({"objective": ArrayPattern("f", (None,))}) for value in rows["objective"]
        ]
        self._iterations = len(objective)
        if self._iterations > max_iter:
            expected = f"at least the {self._iterations} that the checkpoint holds"
            raise InputError("max_iter", str(max_iter), expected, DO)
        return saved.tree["state"], [float(value) for value in objective], saved.tree["residual"]

    def save(self, state: Any, objective: list[float], residual: float, *, last: bool = False) -> None:
        """Save if it is time to, or the restart ends here with something new."""
        if self._part is None or len(objective) == self._iterations or not (last or self._part.is_due()):
            return
        rows = {"objective": np.array(objective[self._iterations :])}
        if self._part.save({"state": state, "residual": residual}, rows):
            self._iterations = len(objective)
