"""Our samplers as PyMC's drafted interface of external samplers has them: ``nz.PyMCSampler``.

The drafts (pull requests 7880 and 8353 of PyMC) hand a sampler the model and the run arguments of ``pm.sample``, under
its names, and take an InferenceData or DataTree. How it will be called is not settled; when it is, this file follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError
from nmf_zoo.inference.registry import require_verb
from nmf_zoo.options import names_checked
from nmf_zoo.verbs.sample_and_fit import sample

DRAWS, TUNE, CHAINS = 1000, 1000, 4  # where PyMC leaves them to the sampler


@names_checked
@dataclass(frozen=True)
class PyMCSampler:
    """A sampling engine as a callable that takes a model and the run arguments of ``pm.sample``.

    ``nz.sample`` has the same arguments and more of its own; this is for what calls samplers by PyMC's conventions.

    Parameters
    ----------
    engine : name of a sampling engine, or its options, as in :func:`nmf_zoo.sample`

    Raises
    ------
    InputError : there is no such engine, or it doesn't sample

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> sampler = nz.PyMCSampler("gibbs")
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> sampler(model, draws=5, tune=5, chains=1, random_seed=1, quiet=True).posterior.sizes["draw"]
    5
    """

    engine: Any = "gibbs"

    def __post_init__(self) -> None:
        require_verb(self.engine, "sample")

    @names_checked
    def __call__(
        self,
        model: pm.Model | None = None,
        *,
        draws: int | None = DRAWS,
        tune: int | None = TUNE,
        chains: int | None = CHAINS,
        cores: int | None = None,
        random_seed: Any = None,
        progressbar: bool | str = True,
        quiet: bool = False,
        initvals: Any = None,
        var_names: Sequence[str] | None = None,
        discard_tuned_samples: bool = True,
        compute_convergence_checks: bool = True,
        idata_kwargs: Mapping[str, Any] | None = None,
        keep_warning_stat: bool = False,
        compile_kwargs: Mapping[str, Any] | None = None,
    ) -> Result:
        """Draw from the posterior.

        Parameters
        ----------
        model : the model; default the one of the ``with`` context
        draws, tune, chains : None for 1000, 1000 and 4
        cores, quiet, var_names, discard_tuned_samples, compute_convergence_checks, idata_kwargs : as in
            :func:`nmf_zoo.sample`
        random_seed : as there, or a ``numpy.random.RandomState``, which moves on
        progressbar : one of PyMC's words is True
        initvals : mapping of variables or their names to arrays, or one (or None) for each chain
        keep_warning_stat, compile_kwargs : of PyMC's own samplers; not for ours

        Returns
        -------
        InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x), as of :func:`nmf_zoo.sample`

        Raises
        ------
        UnreadableModel, UnsupportedModel, InputError : as :func:`nmf_zoo.sample`, before anything runs
        """
        _check_not_ours(keep_warning_stat=keep_warning_stat, compile_kwargs=compile_kwargs)
        return sample(
            DRAWS if draws is None else draws,
            engine=self.engine,
            tune=TUNE if tune is None else tune,
            chains=CHAINS if chains is None else chains,
            extend=1,
            cores=cores,
            random_seed=_as_seed(random_seed),
            progressbar=bool(progressbar),
            quiet=quiet,
            initvals=_as_arrays(initvals),
            var_names=var_names,
            discard_tuned_samples=discard_tuned_samples,
            compute_convergence_checks=compute_convergence_checks,
            idata_kwargs=idata_kwargs,
            model=pm.modelcontext(model),
        )

    sample_from_init = __call__  # as the second draft calls it


def _check_not_ours(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise InputError(name, repr(value), "nothing: kernels of nmf_zoo are compiled once for all", "leave it out")


def _as_seed(random_seed: Any) -> Any:
    if isinstance(random_seed, np.random.RandomState):
        return int(random_seed.randint(2**31 - 1))
    return random_seed


def _as_arrays(initvals: Any) -> Any:
    """PyMC's starting values; a word such as "prior", or a symbolic expression, is refused by the variable's name."""
    if initvals is None or isinstance(initvals, Mapping):
        return initvals
    if isinstance(initvals, Sequence) and not isinstance(initvals, str):
        return None if all(start is None for start in initvals) else list(initvals)
    raise InputError("initvals", repr(initvals), "a mapping of variables to arrays, or one for each chain")
