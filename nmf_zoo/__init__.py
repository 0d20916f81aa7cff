"""nmf_zoo: probabilistic non-negative matrix factorisation, X ~ W H, declared once as PyMC models.

Builders make a plain ``pm.Model``; :func:`sample` and :func:`fit` read it and return ArviZ InferenceData.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "nmf_zoo.models": (
        *("poisson_nmf", "normal_nmf", "gamma_nmf", "negative_binomial_nmf", "gap", "is_nmf", "hmm_nmf"),
        *("free", "HPF", "ARD", "Batches"),
    ),
    "nmf_zoo.distributions": ("BasisChain", "UnitChain", "LogNormalAR", "GammaChain", "BGAR"),
    "nmf_zoo.reading": ("read", "describe"),
    "nmf_zoo.verbs.check": ("check",),
    "nmf_zoo.verbs.sample_and_fit": ("sample", "fit"),
    "nmf_zoo.verbs.block_source": ("Samples",),
    "nmf_zoo.interfaces.blocks": ("open_blocks",),
    "nmf_zoo.interfaces.blocks.store": ("write_blocks",),
    "nmf_zoo.runtime.stopping": ("Step",),
    "nmf_zoo.search.options": ("Search",),
    "nmf_zoo.inference.counts.em": ("EM",),
    "nmf_zoo.inference.counts.vb": ("VB",),
    "nmf_zoo.inference.counts.mcem": ("MCEM",),
    "nmf_zoo.inference.counts.gibbs": ("Gibbs",),
    "nmf_zoo.inference.counts.online_em": ("OnlineEM",),
    "nmf_zoo.inference.powers.online_em": ("SimulatedOnlineEM",),
    "nmf_zoo.inference.hmm.exact": ("HMMExact",),
    "nmf_zoo.inference.hmm.particle_gibbs": ("ParticleGibbs",),
    "nmf_zoo.inference.hmm.particle_em": ("ParticleEM",),
    "nmf_zoo.inference.hmm.online": ("ChainOnlineEM",),
    "nmf_zoo.inference.hmm.particle_online": ("ParticleOnlineEM",),
    "nmf_zoo.inference.nuts": ("NUTS",),
    "nmf_zoo.interfaces.step_methods": ("ConjugateGibbs",),
    "nmf_zoo.interfaces.pymc_sampler": ("PyMCSampler",),
    "nmf_zoo.interfaces.annotated": ("tl",),
    "nmf_zoo.interfaces.compiling": ("compile",),
    "nmf_zoo.inference.registry": ("register_engine", "register_likelihood"),
    "nmf_zoo.streaming.stream": ("stream", "resume_stream"),
    "nmf_zoo.diagnostics.invariants": ("summarise",),
    "nmf_zoo.results.means": ("moments",),
    "nmf_zoo.plots": (
        "plot_components",
        "plot_activations",
        "plot_reconstruction",
        "plot_trace",
        "plot_objective",
        "plot_rank",
        "plot_stability",
        "plot_comparison",
        "plot_calibration",
        "plot_filter",
        "plot_modes",
        "plot_match",
    ),
    "nmf_zoo.prediction.simulation": ("simulate",),
    "nmf_zoo.prediction.predictive": ("predict", "predict_blocks", "impute"),
    "nmf_zoo.prediction.forecasts": ("forecast",),
    "nmf_zoo.prediction.pointwise": ("log_likelihood",),
    "nmf_zoo.verbs.projection": ("project", "projection_model"),
    "nmf_zoo.workbench.filtering": ("filter",),
    "nmf_zoo.workbench.evidence": ("evidence", "compare_evidence"),
    "nmf_zoo.inference.evidence.bound": ("Bound",),
    "nmf_zoo.inference.evidence.chib": ("Chib",),
    "nmf_zoo.inference.evidence.smc": ("SMC",),
    "nmf_zoo.inference.evidence.enumeration": ("Enumeration",),
    "nmf_zoo.workbench.modes": ("weigh_modes",),
    "nmf_zoo.workbench.pooling": ("pool",),
    "nmf_zoo.workbench.rank": ("select_rank",),
    "nmf_zoo.workbench.stability": ("stability",),
    "nmf_zoo.workbench.bounds": ("RankBound",),
    "nmf_zoo.workbench.holdout": ("Holdout",),
    "nmf_zoo.workbench.marginal": (
        "marginal_log_likelihood",
        "marginal_expectations",
        "marginal_terms",
        "rescale_columns",
    ),
    "nmf_zoo.diagnostics.align": ("align",),
    "nmf_zoo.diagnostics.catalogues": ("match",),
    "nmf_zoo.diagnostics.export": ("export",),
    "nmf_zoo.workbench.compare_engines": ("compare_engines",),
    "nmf_zoo.workbench.calibrate": ("calibrate",),
    "nmf_zoo.diagnostics.convergence": ("check_convergence", "summarise_components"),
    "nmf_zoo.reports": ("report",),
    "nmf_zoo.reports.model_graph": ("plot_model",),
    "nmf_zoo.results.components": ("top_features", "unit_sum"),
    "nmf_zoo.results.component_order": ("name_components",),
    "nmf_zoo.results.components_in_use": ("components_in_use",),
    "nmf_zoo.diagnostics.measures": ("snr", "sparseness"),
    "nmf_zoo.audio.separation": ("separate",),
    "nmf_zoo.audio.spectra": ("power_spectrogram",),
    "nmf_zoo._compat": ("save", "Result"),
    "nmf_zoo.results.loading": ("load",),
    "nmf_zoo.errors": (
        "InputError",
        "UnknownArgument",
        "UnreadableModel",
        "UnsupportedModel",
        "NotWritten",
        "RunFailed",
        "NmfZooWarning",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that ``import nmf_zoo`` and the command line start at once."""
    if name not in _HOME_OF:
        from nmf_zoo.errors import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)  # Python itself asks for such
        raise AttributeError(f"module 'nmf_zoo' has no attribute {name!r}{hint and f'; {hint}'}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
