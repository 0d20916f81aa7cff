from nmf_zoo._compat import Result, save
from nmf_zoo.audio.separation import separate
from nmf_zoo.audio.spectra import power_spectrogram
from nmf_zoo.diagnostics.align import align
from nmf_zoo.diagnostics.catalogues import match
from nmf_zoo.diagnostics.convergence import check_convergence, summarise_components
from nmf_zoo.diagnostics.export import export
from nmf_zoo.diagnostics.invariants import summarise
from nmf_zoo.diagnostics.measures import snr, sparseness
from nmf_zoo.distributions import BGAR, BasisChain, GammaChain, LogNormalAR, UnitChain
from nmf_zoo.errors import (
    InputError,
    NmfZooWarning,
    NotWritten,
    RunFailed,
    UnknownArgument,
    UnreadableModel,
    UnsupportedModel,
)
from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.counts.mcem import MCEM
from nmf_zoo.inference.counts.online_em import OnlineEM
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.evidence.bound import Bound
from nmf_zoo.inference.evidence.chib import Chib
from nmf_zoo.inference.evidence.enumeration import Enumeration
from nmf_zoo.inference.evidence.smc import SMC
from nmf_zoo.inference.hmm.exact import HMMExact
from nmf_zoo.inference.hmm.online import ChainOnlineEM
from nmf_zoo.inference.hmm.particle_em import ParticleEM
from nmf_zoo.inference.hmm.particle_gibbs import ParticleGibbs
from nmf_zoo.inference.hmm.particle_online import ParticleOnlineEM
from nmf_zoo.inference.nuts import NUTS
from nmf_zoo.inference.powers.online_em import SimulatedOnlineEM
from nmf_zoo.inference.registry import register_engine, register_likelihood
from nmf_zoo.interfaces.annotated import tl
from nmf_zoo.interfaces.blocks import open_blocks
from nmf_zoo.interfaces.blocks.store import write_blocks
from nmf_zoo.interfaces.compiling import compile
from nmf_zoo.interfaces.pymc_sampler import PyMCSampler
from nmf_zoo.interfaces.step_methods import ConjugateGibbs
from nmf_zoo.models import (
    ARD,
    HPF,
    Batches,
    free,
    gamma_nmf,
    gap,
    hmm_nmf,
    is_nmf,
    negative_binomial_nmf,
    normal_nmf,
    poisson_nmf,
)
from nmf_zoo.plots import (
    plot_activations,
    plot_calibration,
    plot_comparison,
    plot_components,
    plot_filter,
    plot_match,
    plot_modes,
    plot_objective,
    plot_rank,
    plot_reconstruction,
    plot_stability,
    plot_trace,
)
from nmf_zoo.prediction.forecasts import forecast
from nmf_zoo.prediction.pointwise import log_likelihood
from nmf_zoo.prediction.predictive import impute, predict, predict_blocks
from nmf_zoo.prediction.simulation import simulate
from nmf_zoo.reading import describe, read
from nmf_zoo.reports import report
from nmf_zoo.reports.model_graph import plot_model
from nmf_zoo.results.component_order import name_components
from nmf_zoo.results.components import top_features, unit_sum
from nmf_zoo.results.components_in_use import components_in_use
from nmf_zoo.results.loading import load
from nmf_zoo.results.means import moments
from nmf_zoo.runtime.stopping import Step
from nmf_zoo.search.options import Search
from nmf_zoo.streaming.stream import resume_stream, stream
from nmf_zoo.verbs.block_source import Samples
from nmf_zoo.verbs.check import check
from nmf_zoo.verbs.projection import project, projection_model
from nmf_zoo.verbs.sample_and_fit import fit, sample
from nmf_zoo.workbench.bounds import RankBound
from nmf_zoo.workbench.calibrate import calibrate
from nmf_zoo.workbench.compare_engines import compare_engines
from nmf_zoo.workbench.evidence import compare_evidence, evidence
from nmf_zoo.workbench.filtering import filter
from nmf_zoo.workbench.holdout import Holdout
from nmf_zoo.workbench.marginal import marginal_expectations, marginal_log_likelihood, marginal_terms, rescale_columns
from nmf_zoo.workbench.modes import weigh_modes
from nmf_zoo.workbench.pooling import pool
from nmf_zoo.workbench.rank import select_rank
from nmf_zoo.workbench.stability import stability

__version__: str
__all__ = [
    "__version__",
    "poisson_nmf",
    "normal_nmf",
    "gamma_nmf",
    "negative_binomial_nmf",
    "gap",
    "is_nmf",
    "hmm_nmf",
    "free",
    "HPF",
    "ARD",
    "Batches",
    "BasisChain",
    "UnitChain",
    "LogNormalAR",
    "GammaChain",
    "BGAR",
    "read",
    "describe",
    "check",
    "sample",
    "fit",
    "Samples",
    "open_blocks",
    "write_blocks",
    "Step",
    "Search",
    "EM",
    "VB",
    "MCEM",
    "Gibbs",
    "OnlineEM",
    "SimulatedOnlineEM",
    "HMMExact",
    "ParticleGibbs",
    "ParticleEM",
    "ChainOnlineEM",
    "ParticleOnlineEM",
    "NUTS",
    "ConjugateGibbs",
    "PyMCSampler",
    "tl",
    "compile",
    "register_engine",
    "register_likelihood",
    "stream",
    "resume_stream",
    "summarise",
    "moments",
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
    "simulate",
    "predict",
    "predict_blocks",
    "impute",
    "forecast",
    "log_likelihood",
    "project",
    "projection_model",
    "filter",
    "evidence",
    "compare_evidence",
    "Bound",
    "Chib",
    "SMC",
    "Enumeration",
    "weigh_modes",
    "pool",
    "select_rank",
    "stability",
    "RankBound",
    "Holdout",
    "marginal_log_likelihood",
    "marginal_expectations",
    "marginal_terms",
    "rescale_columns",
    "align",
    "match",
    "export",
    "compare_engines",
    "calibrate",
    "check_convergence",
    "summarise_components",
    "report",
    "plot_model",
    "top_features",
    "unit_sum",
    "name_components",
    "components_in_use",
    "snr",
    "sparseness",
    "separate",
    "power_spectrogram",
    "save",
    "Result",
    "load",
    "InputError",
    "UnknownArgument",
    "UnreadableModel",
    "UnsupportedModel",
    "NotWritten",
    "RunFailed",
    "NmfZooWarning",
]
