"""A whole factorisation model, its mean and its log joint density."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import xlogy

from nmf_zoo.structure.chains import ChainPrior, supports_of
from nmf_zoo.structure.data import Blocked, Cells, Data, Dense, Imputed
from nmf_zoo.structure.factors import Factor, LogLinearGammaPrior
from nmf_zoo.structure.likelihoods import Likelihood, log_factorial
from nmf_zoo.structure.multipliers import Multipliers
from nmf_zoo.structure.offsets import Outer, offset_at, offset_table, sides_of, total_of
from nmf_zoo.structure.parameters import Array, Unknown
from nmf_zoo.structure.spans import slices

CHUNK = 1 << 16  # cells handled at once: bounds the temporary (cells, rank) arrays


@dataclass(frozen=True, kw_only=True)
class Factorisation:
    """A model X ~ likelihood(exposure * (W @ H) + background), as engines see it.

    Attributes
    ----------
    likelihood, W, H : see their classes
    data : Dense, Cells, or None when nothing is observed; Blocked for engines that go over blocks of samples
    imputed : missing cells the model declares as a free variable, or None
    cells : (rows, cols) when the model's observed variable is a list of cells, in its order; else None
    dims : variable name -> its dims in the model (names as in the InferenceData)
    coords : dim -> labels, for the dims that have some
    """

    likelihood: Likelihood
    W: Factor
    H: Factor
    data: Data | Blocked | None = None
    imputed: Imputed | None = None
    cells: tuple[Array, Array] | None = None
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Array] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(F, N)"""
        return self.W.shape[0], self.H.shape[1]

    @property
    def rank(self) -> int:
        return self.W.shape[1]

    @property
    def products(self) -> int:
        """How many a pass over the cells makes: one for each that is stored and each component; 0 without data."""
        return 0 if self.data is None else self.data.values.size * self.rank

    @cached_property
    def free_in_both(self) -> Array:
        """(K,) bool: components of which nothing is known. Without any the mean is linear in what is unknown."""
        found = np.full(self.rank, not (self.W.is_fixed or self.H.is_fixed))
        for factor in (self.W, self.H):
            if factor.known is not None:
                found &= factor.known.are_free
        return found

    @cached_property
    def unknowns(self) -> dict[str, Unknown]:
        """The unknown hyperparameters by name, in the order shape, rate or mean; W before H, the likelihood's last."""
        return {u.name: u for u in (*self.W.unknowns, *self.H.unknowns, *self.likelihood.unknowns)}

    @cached_property
    def signed(self) -> frozenset[str]:
        """Names of the unknowns that may be negative: means and persistences of chains, slopes of covariates."""
        prior = self.H.prior
        if isinstance(prior, LogLinearGammaPrior):
            return frozenset([prior.covariates.variable.name])
        supports = supports_of(prior) if isinstance(prior, ChainPrior) else {}
        return frozenset(name for name, (low, _) in supports.items() if low < 0)

    @cached_property
    def is_integer(self) -> bool:
        """All observed values are integers."""
        if isinstance(self.data, Blocked):
            return self.data.is_integer
        values = np.empty(0) if self.data is None else self.data.observed_values
        return all(np.array_equal(values[part], np.floor(values[part])) for part in slices(values.size, CHUNK))

    @cached_property
    def constant_of_counts(self) -> float:
        """The sum of x log exposure - log x! over the observed cells, part by part."""
        return sum(float(np.sum(part)) for part in self._constants_of_counts())

    def _constants_of_counts(self) -> Iterator[Array]:
        """Missing cells are 0."""
        data, has_exposure = self.data, self.likelihood.exposure is not None
        if isinstance(data, Dense):
            exposure = self.exposure_table()
            for part in slices(len(data.values), max(1, CHUNK // max(1, self.shape[1]))):
                x = data.values[part]
                yield (xlogy(x, exposure[part]) if has_exposure else 0.0) - log_factorial(x)
        elif isinstance(data, Cells):
            for part in slices(len(data.values), CHUNK):
                x = data.values[part]
                of_exposure = xlogy(x, self.exposure_at(data.rows[part], data.cols[part])) if has_exposure else 0.0
                yield of_exposure - log_factorial(x)

    def exposure_at(self, rows: Array, cols: Array) -> Array:
        """(cells,); ones without an exposure."""
        return offset_at(self.likelihood.exposure, rows, cols, self.shape, 1.0)

    def background_at(self, rows: Array, cols: Array) -> Array:
        """(cells,); zeros without a background."""
        return offset_at(self.likelihood.background, rows, cols, self.shape, 0.0)

    def exposure_table(self, columns: slice = slice(None)) -> Array:
        """(F, columns), of dense data or in blocks: a view of an array, the product of an outer one."""
        return offset_table(self.likelihood.exposure, self.shape, 1.0, columns)

    def background_table(self, columns: slice = slice(None)) -> Array:
        """(F, columns), as :meth:`exposure_table`."""
        return offset_table(self.likelihood.background, self.shape, 0.0, columns)

    def background_ratio(self) -> Array | None:
        """background / exposure, (F, N), which is all that sharing a cell out needs of the two; None for zeros.

        A view where neither has a number for each cell.
        """
        background, exposure = self.likelihood.background, self.likelihood.exposure
        if background is None:
            return None
        if not (isinstance(background, np.ndarray) and isinstance(exposure, np.ndarray | None)):
            return self.background_table() / self.exposure_table()
        return np.broadcast_to(background / (1.0 if exposure is None else exposure), self.shape)

    def mean_at(self, W: Array, H: Array, rows: Array, cols: Array) -> Array:
        """exposure * (W @ H) + background at the given cells, (cells,)."""
        mean = np.empty(len(rows))
        for part in slices(len(rows), CHUNK):
            mean[part] = np.einsum("ck,kc->c", W[rows[part]], H[:, cols[part]])
        return self.exposure_at(rows, cols) * mean + self.background_at(rows, cols)

    def mean_of(self, W: Array, H: Array, columns: slice) -> Array:
        """exposure * (W @ H) + background of a block of samples, (F, columns)."""
        mean = W @ H[:, columns]
        if self.likelihood.exposure is not None:
            mean *= self.exposure_table(columns)
        if self.likelihood.background is not None:
            mean += self.background_table(columns)
        return mean

    def likelihood_at(self, rows: Array | slice, cols: Array | slice) -> Likelihood:
        """The law of these cells: listed ones, or a block. Densities and draws are asked of it, with their means."""
        return self.likelihood.at(self.shape, (rows, cols))

    def total_mean(self, W: Array, H: Array, values: Mapping[str, Array] | None = None) -> float:
        """Sum of E[X] over all (F, N) cells, without building them unless each has an exposure of its own."""
        exposure, multipliers = self.likelihood.exposure, self.likelihood.of_batches
        if multipliers is not None:
            return self._total_of_batches(multipliers, W, H, values or {})
        if isinstance(exposure, Outer):
            W, H = W * exposure.of_features, H * exposure.of_samples
        elif isinstance(exposure, np.ndarray):
            exposure = np.atleast_2d(exposure)
            if 1 not in exposure.shape:
                return sum(float(np.sum(self.mean_of(W, H, columns))) for columns in self.column_blocks())
            W, H = (W * exposure, H) if exposure.shape[1] == 1 else (W, H * exposure)
        background = 0.0 if self.likelihood.background is None else total_of(self.likelihood.background, self.shape)
        return background + float(W.sum(axis=0) @ H.sum(axis=1))

    def _total_of_batches(self, multipliers: Multipliers, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        exposure, table = self.likelihood.exposure, multipliers.table(values)
        sides = sides_of(np.ones(()) if exposure is None else exposure)
        if sides is None:
            blocks = self.column_blocks()
            return sum(float(np.sum(table[:, multipliers.batch[own]] * self.mean_of(W, H, own))) for own in blocks)
        sums = (W * sides.of_features) @ multipliers.sum_samples((H * sides.of_samples).T).T
        if self.likelihood.background is not None:
            for own in self.column_blocks():
                sums += multipliers.sum_samples_of(own, self.background_table(own))
        return float(np.sum(table * sums))

    def column_blocks(self, chunks: int = 16) -> Iterator[slice]:
        """Slices of samples, each holding about so many chunks of cells: for work that must see every cell."""
        return slices(self.shape[1], max(1, chunks * CHUNK // max(1, self.shape[0])))

    def observed_cells(self) -> tuple[Array, Array, Array]:
        """(rows, cols, values) of the listed or observed cells, in row-major order for dense data."""
        if isinstance(self.data, Cells):
            return self.data.rows, self.data.cols, self.data.values
        seen = np.ones(self.shape, dtype=bool) if self.data.mask is None else self.data.mask
        rows, cols = np.nonzero(seen)
        return rows, cols, self.data.values[rows, cols]

    @cached_property
    def total_log_constant(self) -> float:
        """The sum of the likelihood's constants over the observed cells."""
        return float(np.sum(self.likelihood.log_constant(self.data.observed_values)))

    def log_likelihood(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """log p(observed data | W, H)."""
        if self.data is None:
            return 0.0
        if isinstance(self.data, Dense):
            return self._sum_of_cells(self.data.values, self.data.mask, W, H, values) - self.total_log_constant
        rows, cols, x = self.observed_cells()
        mean, law = self.mean_at(W, H, rows, cols), self.likelihood_at(rows, cols)
        listed = float(np.sum(law.log_kernel(x, mean, values))) - self.total_log_constant
        if not self.data.is_complete:
            return listed
        if law.has_free_zeros:
            return listed - (self.total_mean(W, H, values) - float(np.sum(law.expected(mean, values))))
        zeros = self._sum_of_cells(None, None, W, H, values)
        return listed + zeros - float(np.sum(law.log_kernel(np.zeros_like(x), mean, values)))

    def _sum_of_cells(
        self, x: Array | None, mask: Array | None, W: Array, H: Array, values: Mapping[str, Array]
    ) -> float:
        """The log-likelihood of a matrix (F, N), None of zeros, without the constants; in blocks that stay in cache."""
        total = 0.0
        for columns in self.column_blocks(chunks=1):
            law, own = self.likelihood_at(slice(None), columns), np.zeros(()) if x is None else x[:, columns]
            cells = law.log_kernel(own, self.mean_of(W, H, columns), values)
            total += float(np.sum(cells if mask is None else cells[mask[:, columns]]))
        return total

    def log_joint(self, values: Mapping[str, Array]) -> float:
        """Log joint density at ``values`` (model variables by name, in the model's own orientation).

        Equals ``model.compile_logp(jacobian=False)`` of the model it was read from.
        """
        W, H = self.W.value(values), self.H.value(values)
        total = self.log_likelihood(W, H, values)
        total += self.W.log_density(W, values) + self.H.log_density(H, values)
        for unknown in self.unknowns.values():
            total += float(np.sum(unknown.prior.log_density(np.asarray(values[unknown.name], dtype=np.float64))))
        return total + self.log_imputed(W, H, values) + self.log_unobserved(W, H, values)

    def log_unobserved(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """Log-density of an X without data, which is a free variable of its model; 0 when there are data."""
        if self.data is not None:
            return 0.0
        x = np.asarray(values[self.likelihood.name], dtype=np.float64).reshape(self.shape)
        return self._sum_of_cells(x, None, W, H, values) - float(np.sum(self.likelihood.log_constant(x)))

    def log_imputed(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """Log-density of the missing cells that the model itself declares as a variable; 0 when it does not."""
        if self.imputed is None:
            return 0.0
        cells = self.imputed.rows, self.imputed.cols
        imputed = np.asarray(values[self.imputed.name], dtype=np.float64)
        return float(np.sum(self.likelihood_at(*cells).log_density(imputed, self.mean_at(W, H, *cells), values)))

    @cached_property
    def cell_labels(self) -> dict[str, Array]:
        """Feature and sample label of every listed cell, by the dims' names; empty for data without such a list."""
        if self.cells is None:
            return {}
        places = zip(self.axes, self.cells, strict=True)
        return {dim: _labels_at(self.coords[dim], at) for dim, at in places if dim in self.coords}

    @property
    def axes(self) -> tuple[str, str]:
        """The dims of X's two axes, as its factors have them; feature and obs where they have none."""
        left, right = self.dims.get(self.W.name), self.dims.get(self.H.name)
        feature = self.W.orient_dims(left)[0] if left else "feature"
        return feature, self.H.orient_dims(right)[1] if right else "obs"

    def place(self, row: int, col: int) -> str:
        """A cell of X in words: ``feature 'gene7', obs 3``, labels where there are some, else positions from 0."""
        words = []
        for dim, at in zip(self.axes, (row, col), strict=True):
            label = self.coords[dim][at] if dim in self.coords else at
            words.append(f"{dim} {str(label)!r}" if isinstance(label, str) else f"{dim} {label}")
        return ", ".join(words)


def _labels_at(labels: Array, at: Array) -> Array:
    """The labels of listed cells; their own positions, not copied, where labels only number the rows.

    Text as objects, of which cells share one: in a text dtype each would take the room of the longest.
    """
    if labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(labels))):
        numbers = at.view()
        numbers.flags.writeable = False
        return numbers
    return labels.astype(object)[at] if labels.dtype.kind == "U" else labels[at]
