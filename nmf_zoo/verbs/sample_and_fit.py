"""The two verbs: read the model, check that the engine can run it, run, pack the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pymc as pm
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.diagnostics.convergence import warn_unconverged
from nmf_zoo.diagnostics.modes import what_lacks
from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.inference.evidence import chib
from nmf_zoo.inference.registry import option_of, require_support, resolve_engine, verdict
from nmf_zoo.inference.shared.joint import log_joints
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.options import names_checked_beside
from nmf_zoo.prediction.misfit import coverage_attribute
from nmf_zoo.prediction.pointwise import add_log_likelihood, finest
from nmf_zoo.reading import constant_data, model_here, observed_data, read
from nmf_zoo.results.beginnings import OPTIMUM_OF_CHAIN, SEARCH
from nmf_zoo.results.checkpoints import checkpointed, ending
from nmf_zoo.results.component_order import GROUP, result_order
from nmf_zoo.results.groups import DRAWS_ARE, PARTICLES, data_groups, pack, solution_groups
from nmf_zoo.results.modes import WEIGHS_MODES
from nmf_zoo.results.run_attributes import DISCARDED, GATHERED, model_attributes, run_attributes
from nmf_zoo.results.trace_storage import chain_groups, drawn_invariants, finish_store, make_traces
from nmf_zoo.runtime.arguments import (
    check_counts,
    check_extend,
    check_initvals,
    check_keep,
    check_memory,
    check_possible,
    check_runs,
    check_space,
    check_starts,
    check_stopping,
    check_tol,
    check_var_names,
    entropy_of,
    usual_extend,
    wants_log_likelihood,
)
from nmf_zoo.runtime.compile_ahead import compiled_ahead
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.driver import STATUS, FitRun, SampleRun, Solution, available_cores, run_chains, run_restarts
from nmf_zoo.runtime.engine import Engine, WholeSampler
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.runtime.stopping import EARLY, INTERRUPTED, OnStep, left_out
from nmf_zoo.runtime.workers import OneBlasThread
from nmf_zoo.search.optima import dataset_of
from nmf_zoo.search.options import AUTO, search_of
from nmf_zoo.search.run import run_search
from nmf_zoo.structure import Factorisation
from nmf_zoo.verbs.draw_blocks import draw_blocks
from nmf_zoo.verbs.fit_blocks import fit_blocks
from nmf_zoo.verbs.starts import beginnings, chain_search, left_of, searched_starts, starts_of


@names_checked_beside(partial(option_of, verb="sample"))
def sample(
    draws: int = 1000,
    *,
    data: Any = None,
    engine: Any = "gibbs",
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    random_seed: Any = None,
    thin: int = 1,
    extend: Any = AUTO,
    progressbar: bool = True,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: Any = None,
    start: Any = AUTO,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    idata_kwargs: Mapping[str, Any] | None = None,
    keep: Literal["draws", "moments"] = "draws",
    store: Path | str | None = None,
    kept_samples: Sequence[int] | None = None,
    checkpoint: Path | str | None = None,
    executor: Any = None,
    on_step: OnStep | None = None,
    max_seconds: float | None = None,
    model: pm.Model | None = None,
) -> Result:
    """Draw from the posterior of a factorisation model.

    Parameters
    ----------
    draws, tune : sweeps kept and warm-up sweeps of each chain. Of ``"smc"`` a chain is an independent run and draws are
        of its particles, as many at the most; ``tune`` says nothing to it
    data : X in blocks of whole samples, which need not fit into memory, as of :func:`fit`, of a model declared with
        ``X=None, shape=(F, 1)``. "gibbs" of counts, a pass over the blocks per sweep, chains one after the other. Draws
        are of W and hyperparameters; of H there are means and standard deviations, in ``posterior_moments``, over all
        sweeps after the warm-up, and draws of ``kept_samples``
    engine : name of a sampling engine, or its options, e.g. ``"gibbs"``, ``nz.Gibbs(moves="scale")``, ``"smc"``
    chains : number of chains, in threads
    cores : threads in all; default every core. Draws do not depend on it
    random_seed : integer, sequence of integers or NumPy Generator; None for a new one, which the attributes record
    thin : keep every ``thin``-th of the ``draws``; not for ``"smc"``
    extend : how many times the ``draws`` the chains may go on to while R-hat of lp or of a followed cell of W H is
        above 1.01 or one has fewer than 100 effective draws per chain; but not where chains have settled in different
        modes, unless they began at one optimum. Their sweeps double, and as many draws are kept: of twice the sweeps
        every second. They are those of ``draws=2000, thin=2, extend=1`` where 1000 and 1 were asked for, bit for bit,
        and the attributes say so; with ``keep="moments"`` those of more draws. Where R-hat is above 1.05 and a chain is
        still on its way, or such chains are in different modes, what all drew by then is left out instead, as warm-up
        that was too short, and so it is as often as that is so: each time the draws are those of the next ``2 * draws``
        sweeps, or of half of those that are left out then where that is more, and the attribute ``discarded`` says how
        many sweeps went before them, which count, too. Chains that began at one optimum then go on from the state of
        one of them (``gathered`` says after how many sweeps they last did). A run that is stopped on the way has half
        of its draws or more. "auto" is 16. Where a table's cells times components are 262,144 or more no more than 4
        times the ``draws`` are kept for the sake of effective draws. Where there are as many, or may be no more, an
        R-hat above 1.01 is enough for them to be left out if a chain is on its way. 1 below 1,000 draws that are kept
        and without convergence checks, with a ``store``, ``data`` or ``max_seconds``, for ``"nuts"`` and ``"smc"``
    progressbar : one bar per chain, on standard error
    quiet : no bars and no convergence warnings
    var_names : variables to keep; default all
    initvals : starting values by variable name, for all chains or a list with one mapping per chain; what is not given
        is random. Any (W, H) will do, scikit-learn's too; tables with labels have the model's, in its order. Or a
        result: of :func:`fit` draws of its best restart, so that all chains start in one mode of the posterior; of
        :func:`sample` its last draws. Not for ``"smc"``
    start : where the chains begin if ``initvals`` is None: "random", each for itself; or "search", or a
        :class:`~nmf_zoo.Search`: all around the best mode that an optimiser's search found (draws of VB's q, where VB
        can run the model), or in turn at the best ones where their bounds are within 5 nats. The posterior has many
        modes, chains from random starts end in different ones, and none leaves its own. The result's group ``search``
        tells what else was found, and ``optimum_of_chain`` in it where each chain began. "auto" searches where an
        optimiser with an exact objective can run the model and some component is unknown in both factors, for six
        iterations per sweep of warm-up; not before NUTS. Not for ``"smc"``
    discard_tuned_samples : False keeps the warm-up in ``warmup_posterior`` and ``warmup_sample_stats``. Not for
        ``"smc"``
    compute_convergence_checks : warn when R-hat or the effective sample size is poor, of invariants and, unless the
        draws go to a ``store``, of aligned components; see :func:`~nmf_zoo.check_convergence`
    idata_kwargs : ``{"log_likelihood": True}`` adds that group: per cell, or per sample where sparse data hold zeros
    keep : "draws", or "moments": only the means and standard deviations of the variables, in ``posterior_moments``, and
        the statistics of every draw; see :func:`~nmf_zoo.moments`. It takes the memory of a few draws
    store : new Zarr store (``.zarr``) that the draws go to while they are made; the result reads them from there when
        they are used. For posteriors larger than memory. With ``data`` for the result, where the moments of H stay.
        Not for ``"nuts"`` and ``"smc"``
    kept_samples : over blocks (``data``), numbers from 0 of the samples whose draws of H are kept; None: of none
    checkpoint : folder to save the run in every few seconds, from which the same call goes on after a kill. The draws
        are those of a run that was not stopped, bit for bit (same machine and versions). After the end the same call
        returns the result at once, and one with more ``draws`` (or ``max_iter``) makes those that are missing. Other
        calls are refused. Delete the folder when it is no longer wanted. Not for ``"nuts"`` and ``"smc"``
    executor : where sweeps are made, of chains and of the search before them, in place of threads: a
        ``concurrent.futures.Executor`` of processes or of a cluster, or a ``dask.distributed.Client``. Draws do not
        depend on it. With ``data`` a Client whose workers share each pass, as of :func:`fit`. Not for ``"nuts"``
    on_step : called with a :class:`~nmf_zoo.Step` after every block of sweeps (or iteration of a fit), for one chain at
        a time, in the thread of that chain. When it returns True the run ends there, as after Ctrl-C; an exception in
        it ends the run the same way and is raised. Draws do not depend on it. Not for ``"nuts"`` and ``"smc"``
    max_seconds : end the run, as Ctrl-C does, once it has taken so long. It is asked after each block or iteration, of
        which every chain makes at least one. Where chains wait for cores, each has its share. Not for ``"nuts"``
        and ``"smc"``
    model : the model; default the one of the ``with`` context

    Returns
    -------
    InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x) with groups posterior, sample_stats, observed_data, constant_data.
    ``sample_stats`` holds ``lp``, the log joint density, and ``mean``, some cells of W H; of ``"smc"`` also
    ``log_marginal_likelihood`` of each chain, as ``pm.sample_smc`` does, its error, and what its stages say. A run
    that ended early holds what was drawn, and ``attrs["status"]`` says why: "interrupted" (Ctrl-C), "stopped by
    on_step" or "max_seconds reached"; with a ``checkpoint`` it also says how to go on.

    Raises
    ------
    UnreadableModel : the model is no factorisation we know
    UnsupportedModel : the engine can't run it; the message names those that can
    InputError : an argument is wrong
    RunFailed : ``on_step`` or ``max_seconds`` ended the run before the first draw
    """
    if isinstance(draws, pm.Model):
        raise InputError("draws", "a pm.Model", "an integer >= 1", "give the model by name, nz.sample(model=m)")
    model = model_here(model)
    check_counts(draws=(draws, 1), tune=(tune, 0), chains=(chains, 1), thin=(thin, 1))
    cores = _cores(cores)
    structure = read(model)
    if data is not None:
        _check_of_blocks({"var_names": var_names, "idata_kwargs": idata_kwargs})
        check_extend(extend, "with data=", usual=1)
        run = SampleRun(
            keep=keep,
            draws=draws,
            tune=tune,
            thin=thin,
            keep_warmup=not discard_tuned_samples,
            cores=cores,
            progressbar=progressbar and not quiet,
            on_step=on_step,
            max_seconds=max_seconds,
        )
        own: dict[str, Any] = {"initvals": initvals, "constants": constant_data(model), "checkpoint": checkpoint}
        own |= {"entropy": entropy_of(random_seed), "is_seeded": random_seed is not None, "executor": executor}
        own |= {"chains": chains, "start": start, "kept_samples": kept_samples}
        idata = draw_blocks(structure, data, engine, run, store=store, **own)
        if compute_convergence_checks and not quiet:
            with left_out("convergence checks"):
                warn_unconverged(idata, structure, with_components=False)
        return idata
    if kept_samples is not None:
        raise InputError("kept_samples", f"{kept_samples!r} without data=", "None", "leave it out")
    check_executor(executor, on_step)
    chosen, options = resolve_engine(engine, "sample", structure)
    require_support(structure, chosen, options)
    check_possible(structure)
    check_var_names(structure, var_names)
    with_log_likelihood = wants_log_likelihood(idata_kwargs, structure, var_names)
    is_ours = isinstance(chosen, Engine)
    check_stopping(on_step, max_seconds, chosen)
    check_starts(initvals, start, chosen)
    if executor is not None and isinstance(chosen, WholeSampler) and chosen.repeat:
        do = "its chains are side by side by its own means: cores= says how many"
        raise InputError("executor", f"{type(executor).__name__} with {chosen.name}", "None", do)
    keeps = check_keep(keep, store, chosen, with_log_likelihood)
    origins: list[int] = []  # of every chain the optimum that it begins at, once a search has found them
    run = SampleRun(
        keep=keeps,
        too_short=lambda traces, is_full: what_lacks(drawn_invariants(traces), origins, chosen.can_follow, is_full),
        draws=draws,
        tune=tune,
        thin=thin,
        keep_warmup=not discard_tuned_samples,
        cores=cores,
        progressbar=progressbar and not quiet,
        compiles=what_compiles(chosen.name, structure),
        search=chain_search(start, initvals, chosen, structure, tune),
        var_names=None if var_names is None else tuple(var_names),
        on_step=on_step,
        max_seconds=max_seconds,
        executor=executor,
    )
    cant = "with max_seconds=" if max_seconds is not None else "with a store" if store is not None else ""
    cant = cant if is_ours else f"with {chosen.name}, which makes all draws at once"
    usual = usual_extend(structure, run.kept_draws, compute_convergence_checks)
    most, for_ess = (check_extend(extend, cant, times) for times in usual)
    run = replace(run, extend=most, extend_for_ess=for_ess)
    stored = (run.kept_statistics + run.kept_warmup) * chains
    moments = (2.0 if run.extend == 1 else 4.0) if run.keep == "moments" else 0.0  # and those of before
    check_runs("chains", chains, structure, moments, "run fewer")
    check_space(structure, stored, run, store, copies=1 if is_ours else 2)
    starts = check_initvals(structure, starts_of(initvals, structure, chains), chains)
    beginning, searched = beginnings(initvals, starts, run.search, chosen, structure)
    entropy = entropy_of(random_seed)
    began, data = time.perf_counter(), data_groups(structure, observed_data(model), constant_data(model))
    seeded, rows = random_seed is not None, stored * run.written_times if run.keep == "draws" else 0
    with (
        compiled_ahead(chosen, structure, options, cores),
        checkpointed(checkpoint, chosen, options, structure, run, starts, entropy, seeded, rows) as saved,
    ):
        entropy = saved.entropy if saved else entropy
        if run.search is not None:
            key = seed_key(entropy)
            starts, searched[SEARCH] = searched_starts(structure, run.search, run, chains, key, saved)
            origins += searched[SEARCH][OPTIMUM_OF_CHAIN].to_numpy().tolist()
            run = left_of(run, time.perf_counter() - began)
        if isinstance(chosen, WholeSampler):
            groups, stopped = chosen.sample(model, structure, options, run, seed_key(entropy), starts)
            early, length = INTERRUPTED if stopped else "", {"thin": thin}
        else:
            run_id = saved.run_id if saved else None
            with make_traces(structure, run, chains, store, {**searched, **data}, run_id) as traces:
                _, early = run_chains(chosen, structure, options, run, seed_key(entropy), starts, traces, saved)
                one = traces.furthest  # of a stop, others may have come less far
                length = {"thin": thin * one.every} | ({DISCARDED: one.discarded} if one.discarded else {})
                length |= {GATHERED: gathered} if (gathered := max(each.gathered for each in traces.chains)) else {}
                groups = chain_groups(structure, traces, ending(early, saved))
        status = ending(early, saved) or "complete"
        attrs = run_attributes(chosen.name, options, entropy, time.perf_counter() - began, status)
        attrs |= {**beginning, **length, "tune": tune, **model_attributes(structure)}
        attrs[WEIGHS_MODES] = "yes" if verdict(replace(structure, imputed=None), chib.METHOD) else "no"
        attrs |= {DRAWS_ARE: PARTICLES} if isinstance(chosen, WholeSampler) and chosen.has_particles else {}
        with left_out("the share of cells inside predictive intervals"):
            attrs |= coverage_attribute(groups.get("posterior"), structure, seed_key(entropy))
        idata = pack(_with_order({**groups, **searched, **data}, structure), attrs)
        if is_ours:
            has_order = GROUP in _compat.group_names(idata)
            finish_store(traces, attrs, {GROUP: _compat.group(idata, GROUP)} if has_order else {})
    if with_log_likelihood:
        with left_out("log_likelihood"):
            idata = add_log_likelihood(idata, model, finest(structure))
    if compute_convergence_checks and not quiet:
        with left_out("convergence checks"):
            warn_unconverged(idata, structure, with_components=store is None)
    return idata


@names_checked_beside(partial(option_of, verb="fit"))
def fit(
    model: pm.Model | None = None,
    *,
    data: Any = None,
    engine: Any = "em",
    max_iter: int = 2000,
    tol: float = 1e-4,
    restarts: int = 1,
    search: Any = AUTO,
    draws: int = 200,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: Any = None,
    idata_kwargs: Mapping[str, Any] | None = None,
    checkpoint: Path | str | None = None,
    store: Path | str | None = None,
    executor: Any = None,
    on_step: OnStep | None = None,
    max_seconds: float | None = None,
) -> Result:
    """Fit by an optimiser: EM for a point, MCEM for W with H integrated out, VB for an approximate posterior.

    Parameters
    ----------
    model : the model; default the one of the ``with`` context
    data : X in blocks of whole samples, which need not fit into memory, of a model declared with ``X=None, shape=(F,
        1)``: what :func:`~nmf_zoo.open_blocks` opens, an array (a memory map, say), a sparse matrix, or any object with
        ``shape``, ``bounds`` and ``read(number)``. One start of "em" or "vb" for counts, a pass over the blocks per
        iteration. It is random; or W as ``restarts``, or a ``search``, find it best on the samples of some blocks,
        which the seed chooses, in memory. The posterior is one draw: EM's point, the mean of VB's q, whose parameters
        are in ``fit``
    engine : name of an optimising engine, or its options, e.g. ``"em"``, ``nz.EM(mode="log")``, ``"vb"``, or
        ``"mcem"``: maximum marginal likelihood of ``nz.gap``, or of free hyperparameters of ``nz.gamma_nmf``;
        ``"hmm_exact"``: of ``nz.hmm_nmf`` with binary chains; ``"particle_em"``: with chains of every kind
    max_iter : iterations at the most
    tol : stop when the engine's residual (see its ``Info``) falls below; 0 runs all iterations. MCEM's is the relative
        move of W's mean, per iteration, from one window of iterations to the next, so that noise averages out of it
    restarts : number of random starts, in threads; without a search the result has the best first, one chain each
    search : a :class:`~nmf_zoo.Search`: fits that learn from one another, of which the result has the best alone. Its
        group ``search`` tells which optima were found, how often and by what. "auto" is ``nz.Search()``, and
        ``restarts`` then how many of its fits begin anew; but None where ``initvals`` or the engine's ``start`` leave
        no choice, one factor is known and the objective convex in the other, or it has Monte-Carlo error. One factor
        known and no convex objective: 8 random starts, the best alone. None: only ``restarts``
    draws : draws from VB's approximate posterior; a point estimate is one draw
    store : with ``data``, a new Zarr store (``.zarr``) for the result, where H stays; without it H is held in memory
    executor : where iterations are made, of restarts and of the search, in place of threads: a
        ``concurrent.futures.Executor`` of processes or of a cluster, or a ``dask.distributed.Client``. With ``data`` a
        Client whose workers share each pass: they read the blocks, and write H beside ``store`` or into ``checkpoint``,
        on storage that all of them see. The result has the same bits, however many there are, and when some die
    others : as in :func:`sample`

    Returns
    -------
    InferenceData or DataTree with groups posterior, sample_stats (``lp``), fit, observed_data, constant_data. ``fit``
    holds the objective per iteration, the residual, whether it converged, its status, the reason, and VB's parameters.
    A best restart that stopped at ``max_iter`` is worth a warning.
    """
    model = model_here(model)
    check_counts(max_iter=(max_iter, 1), restarts=(restarts, 1), draws=(draws, 1))
    check_tol(tol)
    structure = read(model)
    if data is not None:
        _check_of_blocks({"var_names": var_names, "idata_kwargs": idata_kwargs})
        run = FitRun(
            max_iter=max_iter,
            tol=tol,
            draws=1,
            cores=_cores(cores),
            progressbar=progressbar and not quiet,
            on_step=on_step,
            max_seconds=max_seconds,
        )
        own: dict[str, Any] = {"initvals": initvals, "constants": constant_data(model), "checkpoint": checkpoint}
        own |= {"entropy": entropy_of(random_seed), "is_seeded": random_seed is not None}
        own |= {"restarts": restarts, "search": search, "executor": executor}
        idata, solution = fit_blocks(structure, data, engine, run, store=store, **own)
        _warn_of_end(solution, quiet)
        return idata
    if store is not None:
        raise InputError("store", repr(str(store)), "None without data=", "nz.save(idata, path) writes a result")
    check_executor(executor, on_step)
    chosen, options = resolve_engine(engine, "fit", structure)
    require_support(structure, chosen, options)
    check_possible(structure)
    check_var_names(structure, var_names)
    with_log_likelihood = wants_log_likelihood(idata_kwargs, structure, var_names)
    assert isinstance(chosen, Engine)  # others only sample
    check_stopping(on_step, max_seconds, chosen)
    if chosen.maximise:  # a bound comes with a distribution to draw from, another objective with one point
        copies = 1 if restarts == 1 else 2  # several are stacked
        check_memory(structure, draws * restarts, None, "ask for fewer draws or restarts", copies)
    check_runs("restarts", restarts, structure, 1.0, "run fewer")
    starts = check_initvals(structure, starts_of(initvals, structure, restarts), restarts)
    entropy = entropy_of(random_seed)
    run = FitRun(
        max_iter=max_iter,
        tol=tol,
        draws=draws,
        cores=_cores(cores),
        progressbar=progressbar and not quiet,
        compiles=what_compiles(chosen.name, structure),
        search=search_of(search, restarts, chosen, options, initvals, structure),
        on_step=on_step,
        max_seconds=max_seconds,
        executor=executor,
    )
    began, searched = time.perf_counter(), {}
    seeded = random_seed is not None
    with checkpointed(checkpoint, chosen, options, structure, run, starts, entropy, seeded) as saved:
        entropy = saved.entropy if saved else entropy
        key = seed_key(entropy)
        if run.search is None:
            solutions, _ = run_restarts(chosen, structure, options, run, key, starts, saved)
            early = solutions[0].status if solutions[0].status in EARLY else ""
        else:
            solutions, optima, early = run_search(chosen, structure, options, run, run.search, key, saved)
            searched = {SEARCH: dataset_of(optima.table(), **optima.work)}
    with OneBlasThread():
        lp = [log_joints(structure, solution.values) for solution in solutions]
    groups = solution_groups(structure, solutions, lp, STATUS, var_names)
    status = ending(early, saved) or solutions[0].status
    attrs = run_attributes(chosen.name, options, entropy, time.perf_counter() - began, status)
    attrs |= {"max_iter": max_iter, "tol": tol, **model_attributes(structure)}
    with left_out("the share of cells inside predictive intervals"):
        best = groups["posterior"] if len(solutions) == 1 else groups["posterior"].isel(chain=[0])
        attrs |= coverage_attribute(best, structure, key)
    groups |= searched | data_groups(structure, observed_data(model), constant_data(model))
    idata = pack(_with_order(groups, structure), attrs)
    _warn_of_end(solutions[0], quiet, structure.likelihood.end_of({n: v[0] for n, v in solutions[0].values.items()}))
    if with_log_likelihood:
        with left_out("log_likelihood"):
            idata = add_log_likelihood(idata, model, finest(structure))
    return idata


def _check_of_blocks(given: Mapping[str, Any]) -> None:
    """Refuse what a run over ``data=`` does not do."""
    for name, found in given.items():
        if found is not None:
            raise InputError(name, f"{found!r} with data=", "None: the result has all variables alone", "leave it out")


def _warn_of_end(solution: Solution, quiet: bool, went_to_end: str = "") -> None:
    if went_to_end and not quiet:
        warn_caller(went_to_end)
    if solution.status == "max_iter" and not quiet:
        message = f"the best restart did not converge: {STATUS['max_iter']}"
        warn_caller(message)


def _with_order(groups: dict[str, xr.Dataset], structure: Factorisation) -> dict[str, xr.Dataset]:
    """The groups, and the order that components are shown in, where the dims of W and H say which are theirs."""
    with left_out("the order of the components"):
        order = result_order(_compat.inference_data(groups, {}), structure)
        return groups if order is None else {**groups, GROUP: order}
    return groups


def _cores(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores
