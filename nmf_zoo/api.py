"""The two verbs: read the model, check that the engine can run it, run, pack the result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pymc as pm

from nmf_zoo import nuts
from nmf_zoo.engines import require_support, resolve_engine
from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.checkpoint import Checkpoint
from nmf_zoo.inference.driver import STATUS, FitRun, SampleRun, available_cores, run_chains, run_restarts
from nmf_zoo.inference.joint import log_joints
from nmf_zoo.inference.workers import OneBlasThread
from nmf_zoo.kernels.streams import seed_key
from nmf_zoo.pointwise import finest, log_likelihood
from nmf_zoo.reading import constant_data, observed_data, read
from nmf_zoo.results import data_groups, pack, solution_groups
from nmf_zoo.results.checkpoints import checkpointed
from nmf_zoo.results.keeping import chain_groups, finish_store, make_traces
from nmf_zoo.run_arguments import (
    check_counts,
    check_initvals,
    check_keep,
    check_memory,
    check_possible,
    check_room,
    check_runs,
    check_tol,
    check_var_names,
    entropy_of,
    wants_log_likelihood,
)
from nmf_zoo.run_attributes import model_attributes, run_attributes
from nmf_zoo.structure import Array
from nmf_zoo.workbench.convergence import warn_unconverged


def sample(
    draws: int = 1000,
    *,
    engine: Any = "gibbs",
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    random_seed: Any = None,
    thin: int = 1,
    progressbar: bool = True,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: Mapping[str, Array] | Sequence[Mapping[str, Array]] | None = None,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    idata_kwargs: Mapping[str, Any] | None = None,
    keep: Literal["draws", "moments"] = "draws",
    store: Path | str | None = None,
    checkpoint: Path | str | None = None,
    model: pm.Model | None = None,
) -> Any:
    """Draw from the posterior of a factorisation model.

    Parameters
    ----------
    draws, tune : sweeps kept and warm-up sweeps of each chain
    engine : name of a sampling engine, or its options, e.g. ``"gibbs"``, ``nz.Gibbs(moves="scale")``, ``"nuts"``
    chains : number of chains, in threads
    cores : threads in all; default every core. Draws do not depend on it
    random_seed : integer, sequence of integers or NumPy Generator; None for a new one, which the attributes record
    thin : keep every ``thin``-th of the ``draws``
    progressbar : one bar per chain, on standard error
    quiet : no bars and no convergence warnings
    var_names : variables to keep; default all
    initvals : starting values by variable name, for all chains or a list with one mapping per chain; what is not given
        is random. Any (W, H) will do, scikit-learn's too
    discard_tuned_samples : False keeps the warm-up in ``warmup_posterior`` and ``warmup_sample_stats``
    compute_convergence_checks : warn when R-hat or the effective sample size is poor, of invariants and, unless the
        draws go to a ``store``, of aligned components; see :func:`~nmf_zoo.check_convergence`
    idata_kwargs : ``{"log_likelihood": True}`` adds that group: per cell, or per sample where sparse data hold zeros
    keep : "draws", or "moments": only the means and standard deviations of the variables, in ``posterior_moments``, and
        the statistics of every draw; see :func:`~nmf_zoo.moments`. It takes the memory of a few draws
    store : new Zarr store (``.zarr``) that the draws go to while they are made; the result reads them from there when
        they are used. For posteriors larger than memory. Not for ``"nuts"``
    checkpoint : folder to save the run in every few seconds, from which the same call goes on after a kill. The draws
        are those of a run that was not stopped, bit for bit (same machine and versions). After the end the same call
        returns the result at once, and one with more ``draws`` (or ``max_iter``) makes those that are missing. Other
        calls are refused. Delete the folder when it is no longer wanted. Not for ``"nuts"``
    model : the model; default the one of the ``with`` context

    Returns
    -------
    InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x) with groups posterior, sample_stats, observed_data, constant_data.
    ``sample_stats`` holds ``lp``, the log joint density, and ``mean``, some cells of W H. After Ctrl-C it holds what
    was drawn, and ``attrs["status"]`` says so; with a ``checkpoint`` it also says how to go on.

    Raises
    ------
    UnreadableModel : the model is no factorisation we know
    UnsupportedModel : the engine can't run it; the message names those that can
    InputError : an argument is wrong
    """
    model = pm.modelcontext(model)
    check_counts(draws=(draws, 1), tune=(tune, 0), chains=(chains, 1), thin=(thin, 1))
    cores = _cores(cores)
    structure = read(model)
    name, options, chosen = resolve_engine(engine, "sample", structure)
    require_support(structure, name, options)
    check_possible(structure)
    check_var_names(structure, var_names)
    with_log_likelihood = wants_log_likelihood(idata_kwargs, structure, var_names)
    run = SampleRun(
        keep=check_keep(keep, store, chosen is not None, with_log_likelihood),
        draws=draws,
        tune=tune,
        thin=thin,
        keep_warmup=not discard_tuned_samples,
        cores=cores,
        progressbar=progressbar and not quiet,
        var_names=None if var_names is None else tuple(var_names),
    )
    stored = (run.kept_draws + run.kept_warmup) * chains
    check_runs("chains", chains, structure, 2.0 if run.keep == "moments" else 0.0, "run fewer")
    check_room(structure, stored, run, store, copies=2 if chosen is None else 1)
    starts = check_initvals(structure, initvals, chains)
    entropy = entropy_of(random_seed)
    began, data = time.perf_counter(), data_groups(structure, observed_data(model), constant_data(model))
    seeded, rows = random_seed is not None, stored if run.keep == "draws" else 0
    with checkpointed(checkpoint, chosen, options, structure, run, starts, entropy, seeded, rows) as saved:
        entropy = saved.entropy if saved else entropy
        if chosen is None:
            groups, stopped = nuts.sample(model, structure, options, run, seed_key(entropy), starts)
        else:
            run_id = saved.run_id if saved else None
            with make_traces(structure, run, chains, store, data, run_id) as traces:
                _, stopped = run_chains(chosen, structure, options, run, seed_key(entropy), starts, traces, saved)
                groups = chain_groups(structure, traces)
        attrs = run_attributes(name, options, entropy, time.perf_counter() - began, _status(stopped, "complete", saved))
        attrs |= {"thin": thin, "tune": tune, **model_attributes(structure)}
        if chosen is not None:
            finish_store(traces, attrs)
    idata = pack({**groups, **data}, attrs)
    if with_log_likelihood:
        with _left_out("log_likelihood"):
            idata = log_likelihood(idata, model, per=finest(structure))
    if compute_convergence_checks and not quiet:
        with _left_out("convergence checks"):
            warn_unconverged(idata, structure, with_components=store is None)
    return idata


def fit(
    *,
    engine: Any = "em",
    max_iter: int = 2000,
    tol: float = 1e-4,
    restarts: int = 1,
    draws: int = 200,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: Mapping[str, Array] | Sequence[Mapping[str, Array]] | None = None,
    idata_kwargs: Mapping[str, Any] | None = None,
    checkpoint: Path | str | None = None,
    model: pm.Model | None = None,
) -> Any:
    """Fit by an optimiser: EM for a point, MCEM for W with H integrated out, VB for an approximate posterior.

    Parameters
    ----------
    engine : name of an optimising engine, or its options, e.g. ``"em"``, ``nz.EM(mode="log")``, ``"vb"``, or
        ``"mcem"``: maximum marginal likelihood of ``nz.gap``, or of free hyperparameters of ``nz.gamma_nmf``;
        ``"hmm_exact"``: of ``nz.hmm_nmf`` with binary chains; ``"smc"``: with chains of every kind, by particles
    max_iter : iterations at the most
    tol : stop when the engine's residual (see its ``Info``) falls below; 0 runs all iterations. MCEM's is the relative
        move of W's mean, per iteration, from one window of iterations to the next, so that noise averages out of it
    restarts : number of random starts, in threads; the result has the best first, one chain each
    draws : draws from VB's approximate posterior; a point estimate is one draw
    others : as in :func:`sample`

    Returns
    -------
    InferenceData or DataTree with groups posterior, sample_stats (``lp``), fit, observed_data, constant_data. ``fit``
    holds the objective per iteration, the residual, whether it converged, its status, the reason, and VB's parameters.
    A best restart that stopped at ``max_iter`` is worth a warning.
    """
    model = pm.modelcontext(model)
    check_counts(max_iter=(max_iter, 1), restarts=(restarts, 1), draws=(draws, 1))
    check_tol(tol)
    structure = read(model)
    name, options, chosen = resolve_engine(engine, "fit", structure)
    require_support(structure, name, options)
    check_possible(structure)
    check_var_names(structure, var_names)
    with_log_likelihood = wants_log_likelihood(idata_kwargs, structure, var_names)
    assert chosen is not None  # only NUTS, which samples, has no engine of ours
    if chosen.maximise:  # a bound comes with a distribution to draw from, another objective with one point
        copies = 1 if restarts == 1 else 2  # several are stacked
        check_memory(structure, draws * restarts, None, "ask for fewer draws or restarts", copies)
    check_runs("restarts", restarts, structure, 1.0, "run fewer")
    starts = check_initvals(structure, initvals, restarts)
    entropy = entropy_of(random_seed)
    run = FitRun(max_iter=max_iter, tol=tol, draws=draws, cores=_cores(cores), progressbar=progressbar and not quiet)
    began = time.perf_counter()
    seeded = random_seed is not None
    with checkpointed(checkpoint, chosen, options, structure, run, starts, entropy, seeded) as saved:
        entropy = saved.entropy if saved else entropy
        solutions, _ = run_restarts(chosen, structure, options, run, seed_key(entropy), starts, saved)
    with OneBlasThread():
        lp = [log_joints(structure, solution.values) for solution in solutions]
    groups = solution_groups(structure, solutions, lp, STATUS, var_names)
    status = _status(solutions[0].status == "interrupted", solutions[0].status, saved)
    attrs = run_attributes(name, options, entropy, time.perf_counter() - began, status)
    attrs |= {"max_iter": max_iter, "tol": tol, **model_attributes(structure)}
    idata = pack({**groups, **data_groups(structure, observed_data(model), constant_data(model))}, attrs)
    if solutions[0].status == "max_iter" and not quiet:
        message = f"the best restart did not converge: {STATUS['max_iter']}"
        warnings.warn(message, NmfZooWarning, stacklevel=2)
    if with_log_likelihood:
        with _left_out("log_likelihood"):
            idata = log_likelihood(idata, model, per=finest(structure))
    return idata


@contextmanager
def _left_out(what: str) -> Iterator[None]:
    """Ctrl-C in what follows a run stops that alone: the result is there and stays."""
    try:
        yield
    except KeyboardInterrupt:
        warnings.warn(f"{what}: stopped by the user and left out; the result is kept", NmfZooWarning, stacklevel=4)


def _status(stopped: bool, otherwise: str, saved: Checkpoint | None) -> str:
    """How the run ended; after Ctrl-C, how to go on."""
    if not stopped:
        return otherwise
    return "interrupted" if saved is None else f"interrupted: the same call goes on from {saved.path}"


def _cores(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores
