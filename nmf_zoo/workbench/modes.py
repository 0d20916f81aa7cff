"""What each mode of a posterior weighs: the evidence within it, from the draws of the chains that are in it.

Chains that have settled apart (:mod:`nmf_zoo.diagnostics.modes`) say nothing of how much their modes weigh: how many
chains end in a mode depends on where they started, and lp is a density at draws, not a mass. The mass of a mode is the
integral of p(X, W, H) over it::

    Z_m = (exchanges of alike components) x integral of p(X, W, H) over the mode in one labelling

and its share of the posterior is Z_m / sum Z. The integral is estimated as :class:`nmf_zoo.Chib` has it: the draws of
the mode's own chains, all put into one labelling, are joined by bridge sampling to a normal density, or first to
sharper densities where none fits (:mod:`nmf_zoo.inference.evidence.chib_bridge`). The exchanges are those of components
with equal priors: K! where all are alike, 1 where priors tell them apart, and then each order is a mode of its own.

**What is decided.** A mode whose evidence is lower than the best by ``NEGLIGIBLE`` nats, and three errors of the
difference more, is left out. The others have shares if the error of every difference of two is ``MOST_ERROR`` nats at
the most; else they are undecided, and no share is given. Modes that no chain has found are not known of.

Gronau et al. (2017), A tutorial on bridge sampling, Journal of Mathematical Psychology 81; Meng & Wong (1996).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.diagnostics.align import RAW
from nmf_zoo.diagnostics.invariants import invariants
from nmf_zoo.diagnostics.modes import have_settled, modes_of_chains, split_labellings
from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel, warn_caller
from nmf_zoo.inference.evidence import chib
from nmf_zoo.inference.evidence.bridging import exchangeable, log_exchanges, orders_like, orders_of_best
from nmf_zoo.inference.evidence.chib_bridge import CurvatureBridge, End, bridge_to_normal, tighten_from
from nmf_zoo.inference.evidence.curvature import has_curvature
from nmf_zoo.inference.evidence.posterior_runs import Draws, FactorPair, LogJoints, as_pair, typical_point
from nmf_zoo.inference.registry import verdict
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.memory import require_memory
from nmf_zoo.options import names_checked
from nmf_zoo.reading import model_here, read
from nmf_zoo.results.beginnings import OPTIMUM_OF_CHAIN, fits_to_the_end, search_group
from nmf_zoo.results.matching import Components, cosines
from nmf_zoo.results.modes import DECIDED, LEFT_OUT, MODES, UNDECIDED, describe_modes
from nmf_zoo.results.posterior import INTERVAL, Posterior, open_posterior, posterior_group, spaced
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.structure import Array, Factorisation
from nmf_zoo.workbench.evidence import probabilities, simulate

NEGLIGIBLE = 20.0  # nats, e^-20 = 2e-9 of the posterior
ERRORS = 3.0  # of the difference, by which a mode has to be lower still
MOST_ERROR = 1.0  # nats, of a difference: a factor e between two shares
MOST_FITTED = 1000  # unknown cells: a fitted normal density needs as many draws, and the cube of it in time
FEWEST = 100  # draws of a mode
SAME = 1e-6  # relative difference of lp, of the draws and of the model, that rounding explains
COPIES = 6  # of a mode's draws that its estimate holds at once


@names_checked
def weigh_modes(
    idata: Any,
    model: pm.Model | None = None,
    *,
    modes: Sequence[Sequence[int]] | None = None,
    draws: int = 2000,
    tune: int = 200,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    executor: Any = None,
) -> Result:
    """Weigh the modes of the posterior that chains have settled in, by the evidence within each.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample`, of counts with gamma priors of known hyperparameters
    model : the model it came from; default the one of the ``with`` context
    modes : which chains are in one mode, e.g. ``[[0, 2], [1]]``; chains that are in none are passed over. Default as
        they are told apart: chains that disagree though each has settled, and those that number unlike components
        differently
    draws : of each mode, evenly spaced, that take part at the most; also sweeps from each sharper density, where a
        mode needs some
    tune : warm-up sweeps before each of these
    cores, random_seed, progressbar, quiet : as in :func:`~nmf_zoo.sample`
    executor : where modes are integrated over, in place of threads: a ``concurrent.futures.Executor`` of processes or
        of a cluster, or a ``dask.distributed.Client``. The weights do not depend on it

    Returns
    -------
    A new InferenceData or DataTree, ``idata`` with the group ``modes``, by (mode), the largest evidence first::

        log_evidence        log of the mode's part of p(X)
        log_evidence_error  its Monte-Carlo error, infinite where there is no estimate
        share               of the posterior in the modes that were found; NaN when undecided, 0 when left out
        share_low, _high    its 5% and 95% quantiles over the Monte-Carlo errors
        verdict             "decided", "undecided" or "left out": more than 20 nats below the best
        lp                  its mean over the mode's draws
        cosine              by (mode, component): how near its sources are to those of the best mode, from 0 to 1
        levels              how many sharper densities it took, counting the posterior
        reason              why there is no estimate; empty where there is one
        found, way          where chains began by a search: how many of its fits came to where the mode's chains began,
                            and how the first of them had begun

    and ``mode_of_chain`` by (chain), -1 for a chain that was passed over. :func:`~nmf_zoo.plot_modes` draws it and
    :func:`~nmf_zoo.pool` makes one posterior of the chains.

    Raises
    ------
    UnsupportedModel : the evidence of the model can't be had this way
    InputError : no result of a sampler, of another model, with too few draws, or with chains still on their way

    Warns
    -----
    NmfZooWarning : the errors leave open which mode weighs how much

    Notes
    -----
    Shares are of the modes that chains have found. A mode that none has found is missing, whatever it weighs. Chains of
    one mode that mix slowly may be taken for two, which then have cosines near 1 and equal evidence: put them into one
    by ``modes``.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> idata = nz.sample(500, tune=200, chains=2, random_seed=1, quiet=True, model=model)
    >>> weighed = nz.weigh_modes(idata, model, random_seed=1, quiet=True)
    >>> weighed["modes"]["share"].values
    array([1.])
    """
    model = model_here(model)
    check_counts(draws=(draws, FEWEST), tune=(tune, 0))
    if cores is not None:
        check_counts(cores=(cores, 1))
    check_executor(executor)
    declared = read(model)
    structure = replace(declared, imputed=None)  # missing cells integrate to 1
    refusal = verdict(structure, chib.METHOD)
    if not refusal:
        raise UnsupportedModel(f"weigh_modes can't have this model's evidence: {refusal.reason}")
    drawn, classes = _as_drawn(idata, structure), exchangeable(structure)
    _check_model(idata, drawn, declared)
    chains = _tell_apart(idata, drawn, classes) if modes is None else _positions(modes, drawn)
    pairs = [_aligned(structure, _draws_of(drawn, mode, draws), classes) for mode in chains]
    entropy, began = entropy_of(random_seed), time.perf_counter()
    keys = [child(seed_key(entropy), mode[0]) for mode in chains]
    bars: dict[str, Any] = {"word": "mode", "total": chib.TYPICAL_LEVELS * (draws + tune)}
    bars |= {"progressbar": progressbar and not quiet, "executor": executor}
    with Jobs(len(pairs), cores=cores or available_cores(), **bars) as jobs:
        found = jobs.run(lambda own, job: _integrate(structure, own, draws, tune, job), pairs, keys)
    if len(found) < len(pairs):
        raise KeyboardInterrupt
    attrs: dict[str, Any] = {"log_exchanges": log_exchanges(classes), "draws": draws, "tune": tune}
    attrs |= {"random_seed": str(entropy), "seconds": time.perf_counter() - began}
    weighed = _with_search(_as_dataset(drawn, chains, pairs, list(found.values())), idata).assign_attrs(attrs)
    if not quiet and UNDECIDED in weighed["verdict"]:
        do = "Raise draws=, here and in nz.sample, or treat each mode apart."
        message = f"{describe_modes(weighed)} The errors leave the shares open. {do}"
        warn_caller(message)
    return _compat.with_groups(idata, {MODES: weighed})


# -- which chains, and their draws -----------------------------------------------------------------------------------


def _as_drawn(idata: Any, structure: Factorisation) -> Posterior:
    """The draws of a sampler, from before any alignment."""
    posterior_group(idata)  # says what is missing
    names = _compat.group_names(idata)
    if "fit" in names or "sample_stats" not in names:
        got = "a fit" if "fit" in names else "draws without sample_stats"
        raise InputError("idata", got, "the result of nz.sample", "the bridge needs draws from the posterior")
    raw = _compat.with_groups(idata, {"posterior": _compat.group(idata, RAW)}) if RAW in names else idata
    return open_posterior(raw, structure)


def _check_model(idata: Any, drawn: Posterior, declared: Factorisation) -> None:
    """Refuse draws whose lp is not the model's; that of other samplers, and of missing cells, has more terms."""
    stats = _compat.group(idata, "sample_stats")
    if "lp" not in stats or declared.imputed is not None or idata.attrs.get("inference_library") != "nmf_zoo":
        return
    pair = as_pair(drawn.structure, {name: array[0, :1].to_numpy() for name, array in drawn.arrays.items()})
    own, kept = float(LogJoints(drawn.structure)(pair)[0]), float(stats["lp"][0, 0])
    if abs(own - kept) > SAME * (1.0 + abs(kept)):
        got = f"draws with an lp of {kept:,.4f}, which the model puts at {own:,.4f}"
        raise InputError("idata", got, "draws of this model, as nz.sample made them", "give the model they came from")


def _tell_apart(idata: Any, drawn: Posterior, classes: Array) -> list[list[int]]:
    """The chains' positions by mode."""
    followed = invariants(idata)
    modes = modes_of_chains(followed)
    if modes is None:
        moving = ", ".join(str(label) for label in drawn.chains[~have_settled(followed)])
        do = "draw longer (tune=, draws=), or say which chains are in one mode: modes=[[0, 2], [1]]"
        raise InputError("idata", f"chains that are still on their way ({moving})", "chains that have settled", do)
    if len(np.unique(classes)) == 1:
        return modes
    means = [_mean_components(_pair_of(drawn, [chain], FEWEST)) for chain in range(len(drawn.chains))]
    of_w, of_h = (np.stack(part) for part in zip(*means, strict=True))
    return split_labellings(modes, Components(of_w, of_h), classes)


def _positions(modes: Sequence[Sequence[int]], drawn: Posterior) -> list[list[int]]:
    """The user's modes, by position."""
    labels, expected = drawn.chains.tolist(), "lists of chains, each chain in one at the most"
    try:
        chains = [[labels.index(chain) for chain in mode] for mode in modes]
    except (TypeError, ValueError) as error:
        raise InputError("modes", repr(modes)[:60], f"{expected}, of {labels}") from error
    flat = [chain for mode in chains for chain in mode]
    if not chains or not all(chains) or len(set(flat)) < len(flat):
        raise InputError("modes", repr(modes)[:60], f"{expected}, and none empty")
    return chains


def _draws_of(drawn: Posterior, mode: list[int], draws: int) -> FactorPair:
    """Both factors at ``draws`` of a mode's draws."""
    available = len(mode) * drawn.lead[1]
    if available < FEWEST:
        got = f"{available} draws in a mode"
        raise InputError("idata", got, f"{FEWEST} or more", "raise draws= of nz.sample")
    size = sum(array.nbytes for array in drawn.arrays.values()) / np.prod(drawn.lead)
    needed = COPIES * min(draws, available) * size
    require_memory("draws", f"{min(draws, available)} draws of a mode", needed, "take fewer: draws=")
    return _pair_of(drawn, mode, draws)


def _pair_of(drawn: Posterior, chains: list[int], draws: int) -> FactorPair:
    """``draws`` draws of some chains, evenly spaced, one chain after the other."""
    each = spaced(drawn.lead[1], min(drawn.lead[1], -(-draws // len(chains))))
    values = {
        name: np.concatenate([array[chain].to_numpy()[each] for chain in chains])
        for name, array in drawn.arrays.items()
    }
    return as_pair(drawn.structure, values)


def _aligned(structure: Factorisation, pair: FactorPair, classes: Array) -> Draws:
    """The draws in one labelling, that of a typical one."""
    lp = LogJoints(structure)(pair)
    point = typical_point(structure, Draws(pair, lp))
    return Draws(pair.ordered(orders_like(pair, point, classes)), lp)


# -- the evidence of one mode ----------------------------------------------------------------------------------------


class Weight(NamedTuple):
    """log Z of a mode and its error, how many densities it took, and why it failed, if it did."""

    log_evidence: float
    error: float
    levels: int
    reason: str


def _integrate(structure: Factorisation, own: Draws, draws: int, tune: int, job: Job) -> Weight:
    """What bridge sampling makes of a mode's draws."""
    ends = _ends(structure)
    if not ends:
        return Weight(np.nan, np.inf, 0, f"too large: no normal density of its {_size(structure):,} cells can be had")
    centre = FactorPair(*(array.mean(axis=0) for array in own.pair))
    try:
        found = tighten_from(structure, own, centre, draws, tune, job, ends)
    except RunFailed as failure:
        return Weight(np.nan, np.inf, 0, str(failure))
    return Weight(found.log_evidence, found.error, found.levels, "")


def _ends(structure: Factorisation) -> list[End]:
    """The bridges to a normal density that a table of this size allows: one fitted to draws, one from the curvature."""
    fitted: list[End] = [bridge_to_normal] if _size(structure) <= MOST_FITTED else []
    return [*fitted, CurvatureBridge()] if has_curvature(structure) else fitted


def _size(structure: Factorisation) -> int:
    """How many cells are unknown."""
    return int(sum(np.prod(factor.free_shape) for factor in (structure.W, structure.H) if not factor.is_fixed))


# -- what is decided -------------------------------------------------------------------------------------------------


def judge(log_evidences: Array, errors: Array) -> tuple[Array, Array]:
    """(shares, verdicts) of the modes, by the rule above."""
    verdicts = np.full(len(errors), UNDECIDED, dtype=object)
    known = np.isfinite(log_evidences)
    if known.any():
        best = int(np.nanargmax(log_evidences))
        lower, error = log_evidences[best] - log_evidences, np.hypot(errors, errors[best])
        verdicts[known & (lower > NEGLIGIBLE + ERRORS * error)] = LEFT_OUT
    kept = np.flatnonzero(verdicts == UNDECIDED)
    shares = np.where(verdicts == LEFT_OUT, 0.0, np.nan)
    if all(np.hypot(errors[one], errors[other]) <= MOST_ERROR for one, other in combinations(kept, 2)):
        verdicts[kept] = DECIDED
        shares[kept] = probabilities(log_evidences[kept]) if len(kept) > 1 else 1.0
    return shares, verdicts.astype(str)


def _bounds(values: Array, errors: Array, shares: Array) -> Array:
    """(2, modes) 5% and 95% quantiles of the shares over the errors of the evidences."""
    bounds, open_ = np.stack([shares, shares]), np.flatnonzero((shares > 0) & (shares < 1))
    if len(open_):
        simulated = probabilities(simulate(values[open_], errors[open_]))
        bounds[:, open_] = np.quantile(simulated, INTERVAL, axis=0)
    return bounds


# -- the group -------------------------------------------------------------------------------------------------------


def _as_dataset(drawn: Posterior, chains: list[list[int]], pairs: list[Draws], found: list[Weight]) -> xr.Dataset:
    """The group ``modes``, the largest evidence first."""
    values = np.array([weight.log_evidence for weight in found])
    order = np.argsort(np.where(np.isfinite(values), -values, np.inf), kind="stable")
    found, values = [found[mode] for mode in order], values[order]
    errors = np.array([weight.error for weight in found])
    shares, verdicts = judge(values, errors)
    low, high = _bounds(values, errors, shares)
    mode_of_chain = np.full(len(drawn.chains), -1)
    for place, mode in enumerate(order):
        mode_of_chain[chains[mode]] = place
    by_mode = {
        "log_evidence": values,
        "log_evidence_error": errors,
        "share": shares,
        "share_low": low,
        "share_high": high,
        "verdict": verdicts,
        "lp": np.array([pairs[mode].lp.mean() for mode in order]),
        "levels": np.array([weight.levels for weight in found]),
        "reason": np.array([weight.reason for weight in found]),
    }
    means = [_mean_components(pairs[mode].pair) for mode in order]
    component = _component(drawn.structure)
    return xr.Dataset(
        {
            **{name: ("mode", array) for name, array in by_mode.items()},
            "cosine": (("mode", component), _cosines(means, exchangeable(drawn.structure))),
            "mode_of_chain": ("chain", mode_of_chain),
        },
        coords={"mode": np.arange(len(order)), "chain": drawn.chains} | _labels(drawn.structure, component),
    )


def _with_search(modes: xr.Dataset, idata: Any) -> xr.Dataset:
    """With how often the search before the chains came to each mode, by the optima that its chains began at."""
    search = search_group(idata)
    if search is None or OPTIMUM_OF_CHAIN not in search or search.sizes["chain"] != modes.sizes["chain"]:
        return modes
    optima, of_chain = search[OPTIMUM_OF_CHAIN].to_numpy(), modes["mode_of_chain"].to_numpy()
    began = [np.unique(optima[of_chain == mode]) for mode in range(modes.sizes["mode"])]
    found = [int(search["found"].to_numpy()[places].sum()) for places in began]
    way = [str(search["way"].to_numpy()[places[0]]) for places in began]
    return modes.assign(found=("mode", found), way=("mode", way)).assign_attrs(fits=fits_to_the_end(search))


def _mean_components(pair: FactorPair) -> Components:
    """The mean of draws in one labelling, columns of W with sums of 1."""
    sums = pair.W.sum(axis=1, keepdims=True)
    return Components((pair.W / sums).mean(axis=0), np.swapaxes(pair.Ht * sums, 1, 2).mean(axis=0))


def _cosines(means: list[Components], classes: Array) -> Array:
    """(modes, K) of the sources of each mode with those of the first, in the nearest order that priors allow."""
    tables = np.stack([cosines(means[0], mean) for mean in means])
    return np.take_along_axis(tables, orders_of_best(tables, classes)[:, :, None], axis=2)[:, :, 0]


def _component(structure: Factorisation) -> str:
    """The dim of the components."""
    W = structure.W
    dims = W.orient_dims(structure.dims.get(W.name, ("feature", "component")))
    return dims[1]


def _labels(structure: Factorisation, dim: str) -> dict[str, Any]:
    return {dim: structure.coords[dim]} if dim in structure.coords else {}
