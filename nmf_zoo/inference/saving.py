"""What a chain and a restart save of themselves, and how they go on from it; without a checkpoint, nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.checkpoint import Part
from nmf_zoo.inference.traces import Chain

DO = "ask for as many, or give another checkpoint"


class SavedChain:
    """Saves a chain: its state after a number of sweeps, and what its traces have gained since the last save."""

    def __init__(self, part: Part | None, chain: Chain):
        self._part, self._traces = part, {"warmup": chain.warmup, "draws": chain.draws}
        self._sweeps, self._filled = 0, dict.fromkeys(self._traces, 0)

    def load(self, tune: int, draws: int) -> tuple[int, Any]:
        """(sweeps done, state) with the traces as they were then; (0, None) when there is nothing to go on from."""
        saved = None if self._part is None else self._part.load()
        if saved is None:
            return 0, None
        self._sweeps, self._filled = saved.tree["sweeps"], saved.tree["filled"]
        if self._sweeps > tune + draws:
            expected = f"at least the {self._sweeps - tune} that the checkpoint holds"
            raise InputError("draws", str(draws), expected, DO)
        for rows in saved.rows():
            for name, gained in rows.items():
                self._traces[name].add_rows(gained)
        for name, trace in self._traces.items():
            trace.restore(self._filled[name], saved.tree["traces"][name])
        return self._sweeps, saved.tree["state"]

    def save(self, sweeps: int, state: Any, *, last: bool = False) -> None:
        """Save if it is time to, or the chain ends here with something new."""
        if self._part is None or sweeps == self._sweeps or not (last or self._part.is_due()):
            return
        rows = {name: trace.rows(self._filled[name]) for name, trace in self._traces.items()}
        filled = {name: trace.filled for name, trace in self._traces.items()}
        summaries = {name: trace.state() for name, trace in self._traces.items()}
        tree = {"sweeps": sweeps, "state": state, "filled": filled, "traces": summaries}
        if self._part.save(tree, {name: gained for name, gained in rows.items() if gained}):
            self._sweeps, self._filled = sweeps, filled


class SavedFit:
    """Saves a restart: its state and residual, and the objective of every iteration."""

    def __init__(self, part: Part | None):
        self._part, self._iterations = part, 0

    def load(self, max_iter: int) -> tuple[Any, list[float], float]:
        """(state, objective so far, residual); (None, [], inf) when there is nothing to go on from."""
        saved = None if self._part is None else self._part.load()
        if saved is None:
            return None, [], np.inf
        objective = np.concatenate([rows["objective"] for rows in saved.rows()]).tolist()
        self._iterations = len(objective)
        if self._iterations > max_iter:
            expected = f"at least the {self._iterations} that the checkpoint holds"
            raise InputError("max_iter", str(max_iter), expected, DO)
        return saved.tree["state"], objective, saved.tree["residual"]

    def save(self, state: Any, objective: list[float], residual: float, *, last: bool = False) -> None:
        """Save if it is time to, or the restart ends here with something new."""
        if self._part is None or len(objective) == self._iterations or not (last or self._part.is_due()):
            return
        rows = {"objective": np.array(objective[self._iterations :])}
        if self._part.save({"state": state, "residual": residual}, rows):
            self._iterations = len(objective)
