"""A short text about a model: what it is, before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pymc as pm

from nmf_zoo.errors import number_of
from nmf_zoo.options import names_checked
from nmf_zoo.reading.read import read
from nmf_zoo.structure import (
    Blocked,
    CellParameter,
    Cells,
    Factor,
    Factorisation,
    Fixed,
    Flat,
    InBlocks,
    KnownAtCells,
    KnownComponents,
    Multipliers,
    Offset,
    Outer,
    PartlyKnown,
    Unknown,
)

Engines = Callable[[Factorisation], Mapping[str, str]]
SHOWN = 4  # known entries printed in full


@names_checked
def describe(model: pm.Model | Factorisation, engines: Engines | None = None) -> str:
    """What a model is, in a few lines.

    Parameters
    ----------
    model : pm.Model or Factorisation
    engines : function structure -> {engine name: reason why it can't run it, "" when it can}, optional
        Adds a line on the engines.
    """
    structure = model if isinstance(model, Factorisation) else read(model)
    lines = [data_line(structure), product_line(structure)]
    lines += [factor_line(factor) for factor in (structure.W, structure.H)]
    lines += list(offset_lines(structure))
    lines += [unknown_line(unknown) for unknown in structure.unknowns.values()]
    if engines is not None:
        lines += list(engine_lines(engines(structure)))
    return "\n".join(lines)


def data_line(structure: Factorisation) -> str:
    """``X: 64 x 1797 counts, 40% non-zero, 12 missing cells``"""
    name, data, (F, N) = structure.likelihood.name, structure.data, structure.shape
    if data is None:
        return f"{name}: {F} x {N}, not observed"
    words = structure.likelihood.data_words(structure.is_integer)
    if isinstance(data, Blocked):
        known, non_zero = int(np.sum(data.observed)), data.non_zero
    else:
        values = data.observed_values
        known = F * N if isinstance(data, Cells) and data.is_complete else values.size
        non_zero = int(np.count_nonzero(values))
    text = f"{name}: {F} x {N} {words}, {non_zero:,} non-zero ({non_zero / max(1, known):.1%})"
    text += ", stored as a list of cells" if isinstance(data, Cells) else ""
    if isinstance(data, Blocked):
        text += f", in {number_of(data.n_blocks, 'block')} of samples"
    n_missing = F * N - known
    missing = f", {number_of(n_missing, 'cell')} missing" if n_missing else ""
    imputed = f" (imputed as {structure.imputed.name})" if structure.imputed is not None else ""
    return text + missing + imputed


def product_line(structure: Factorisation) -> str:
    """``X ~ Poisson(exposure * (W @ H) + background), rank 10``"""
    likelihood = structure.likelihood
    W, H = (f"{f.name or 'known matrix'}{'.T' if f.transposed else ''}" for f in (structure.W, structure.H))
    mean = f"{W} @ {H}"
    mean = f"exposure * ({mean})" if likelihood.exposure is not None else mean
    mean += " + background" if likelihood.background is not None else ""
    mean += "".join(f", {role}={parameter_text(parameter)}" for role, parameter in likelihood.parameters.items())
    return f"{likelihood.name} ~ {type(likelihood).__name__}({mean}), rank {structure.rank}"


def factor_line(factor: Factor) -> str:
    """``H: 10 x 1797, Gamma(shape=alpha_h, mean=1)``"""
    rows, cols = factor.variable_shape
    known = "" if factor.known is None else f"{known_text(factor.known)}, {factor.variable} "
    return f"{factor.name or 'known matrix'}: {rows} x {cols}, {known}{prior_text(factor)}"


def known_text(known: KnownComponents) -> str:
    """``3 of 5 components known``"""
    return f"{np.sum(~known.are_free)} of {len(known.are_free)} components known"


def prior_text(factor: Factor) -> str:
    if isinstance(factor.prior, Fixed):
        return "known"
    if isinstance(factor.prior, Flat):
        return "no prior (flat on [0, inf))"
    parts = [f"{role}={parameter_text(p)}" for role, p in factor.prior.parameters.items()]
    if factor.is_chain and factor.prior.is_stationary:
        parts.append("initial=stationary")
    return f"{factor.prior.distribution}({', '.join(parts)})"


def parameter_text(parameter: CellParameter) -> str:
    if isinstance(parameter, PartlyKnown):
        return f"{parameter.name} beside {np.sum(~parameter.are_free)} known"
    if isinstance(parameter, Unknown):
        return parameter.name
    if isinstance(parameter, KnownAtCells):
        return offset_text(parameter.listed)
    if isinstance(parameter, Multipliers):
        return batches_text(parameter)
    return array_text(parameter.resolve({}))


def batches_text(multipliers: Multipliers) -> str:
    """``M of batches of 30 and 20 samples, 5 of a reference``"""
    sizes = np.bincount(multipliers.batch, minlength=multipliers.n_batches)
    batches, reference = sizes[: multipliers.n_batches], sizes[multipliers.n_batches :]
    shown = " and ".join(map(str, batches)) if len(batches) <= SHOWN else f"{batches.min()} to {batches.max()}"
    of_reference = f", {reference[0]} of a reference" if reference.size else ""
    words = "batch" if len(batches) == 1 else "batches"
    return f"{multipliers.variable.name} of {len(batches)} {words} of {shown} samples{of_reference}"


def array_text(value: np.ndarray) -> str:
    if value.size <= SHOWN:
        entries = ", ".join(f"{v:g}" for v in value.ravel())
        return entries if value.size == 1 else f"[{entries}]"
    return f"array {' x '.join(map(str, value.shape))} in [{value.min():g}, {value.max():g}]"


def offset_lines(structure: Factorisation) -> Iterator[str]:
    """The known arrays around the product."""
    for role in ("exposure", "background"):
        value = getattr(structure.likelihood, role)
        if value is not None:
            yield f"{role}: {offset_text(value)}"


def offset_text(offset: Offset) -> str:
    """``column times row, 2000 x 500 in [0.1, 40]``"""
    if isinstance(offset, np.ndarray):
        return array_text(offset)
    low, high = offset.ends()
    if isinstance(offset, Outer | InBlocks):
        form = "column times row," if isinstance(offset, Outer) else "array"
        return f"{form} {' x '.join(map(str, offset.shape))} in [{low:g}, {high:g}]"
    return f"of the {len(offset.values):,} listed cells, in [{low:g}, {high:g}]"


def unknown_line(unknown: Unknown) -> str:
    """``alpha_h: 10 values, one for each row, free``"""
    entries = int(np.prod(unknown.variable_shape, dtype=int))
    prior = "free (no prior)" if unknown.prior.is_flat else f"sampled, {prior_name(unknown)} prior"
    return f"{unknown.name}: {entries} {'value' if entries == 1 else 'values'}, {tying(unknown)}, {prior}"


def prior_name(unknown: Unknown) -> str:
    args = ", ".join(array_text(np.asarray(a)) for a in unknown.prior.args)
    return f"{unknown.prior.kind}({args})"


def tying(unknown: Unknown) -> str:
    """Which cells of its factor share a value."""
    if unknown.tied:
        return unknown.tied
    along = [size > 1 for size in unknown.shape]
    if not any(along):
        return "shared by all cells"
    if all(along):
        return "one for each cell"
    return f"one for each {'row' if along[0] else 'column'}"


def engine_lines(verdicts: Mapping[str, str]) -> Iterator[str]:
    """The engines that can run it, then the others with the reason."""
    able = [name for name, reason in verdicts.items() if not reason]
    yield f"engines: {', '.join(able) or 'none'}"
    yield from (f"not {name}: {reason}" for name, reason in verdicts.items() if reason)
