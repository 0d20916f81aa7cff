"""What a chain and a restart save of themselves, and how they go on from it; without a checkpoint, nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each, Like
from nmf_zoo.runtime.traces import ChainResult
from nmf_zoo.structure import Array

MOST_TIMES = 62  # that a chain went on, to so many sweeps that nobody can count them
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
        of_rounds = {"lengthened": Each(int), "discarded": Each(int), "leaders": Each(Each(int))}
        pattern = {"sweeps": int, **of_traces, **of_rounds, "state": Like(fresh)}
        saved = None if self._part is None else self._part.load(pattern)
        if self._part is None or saved is None:
            return 0, fresh
        self._sweeps, self._filled = saved.tree["sweeps"], saved.tree["filled"]
        own = ChainResult(self._chain.number, self._chain.warmup, self._chain.draws)  # as it was
        own.lengthened, own.discarded = list(saved.tree["lengthened"]), list(saved.tree["discarded"])
        own.leaders = [list(leaders) for leaders in saved.tree["leaders"]]
        with self._part.refused():
            if len(own.lengthened) > MOST_TIMES or own.whole < 0:
                raise Damaged(f"damaged: chains that went on {len(own.lengthened)} times")
            self._check_leaders(own)
        if self._sweeps > tune + own.length(draws):
            drawn = self._sweeps - tune - own.length(0)
            expected = f"at least the {-(-drawn // own.kept_times)} that the checkpoint holds"
            raise InputError("draws", str(draws), expected, DO)
        self._check_room(max([*own.lengthened, self._filled["draws"]]), own.times, draws, extend)
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

    def _check_leaders(self, own: ChainResult) -> None:
        """Each time, of every chain, there is one that it followed."""
        are_chains = all(len(each) == self._chains and set(each) <= set(range(self._chains)) for each in own.leaders)
        if not are_chains or len(own.leaders) != len(own.discarded):
            raise Damaged(f"damaged: {self._chains} chains that followed {own.leaders}")

    def _check_room(self, needed: int, times: int, draws: int, extend: int) -> None:
        """The trace has room for as many draws as it held at any time."""
        trace = self._chain.draws
        if needed <= trace.length:
            return
        if not trace.thins and times > extend:
            raise InputError("extend", str(extend), f"at least the {times} that the checkpoint has gone on to", DO)
        raise InputError("draws", str(draws), f"as many as when the chains went on, of which {needed} were kept", DO)

    def _lengthen_as(self, own: ChainResult) -> None:
        """Go on as the chain did when it held so many draws."""
        chain = self._chain
        while (place := len(chain.lengthened)) < len(own.lengthened) and chain.draws.filled == own.lengthened[place]:
            if place < own.whole:
                chain.lengthen(None, ())
            else:
                chain.lengthen(own.discarded[place - own.whole], own.leaders[place - own.whole])

    def lengthen(self, discarded: int | None, leaders: Sequence[int]) -> None:
        """Let the chain go on. All that it has drawn is saved by now, or is not going to be."""
        self._chain.lengthen(discarded, leaders)
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
        tree |= {name: list(getattr(self._chain, name)) for name in ("lengthened", "discarded", "leaders")}
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
