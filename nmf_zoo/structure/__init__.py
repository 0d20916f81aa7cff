"""What a factorisation model is once it has been read: frozen dataclasses that know nothing of PyMC.

Shapes, used everywhere in this package::

    X  (F, N)   data: F features, N samples
    W  (F, K)   weights: K components (``rank``)
    H  (K, N)   activations
    mean of X = exposure * (W @ H) + background

A :class:`Factorisation` can be built by hand (to test an engine without PyMC) or read from a ``pm.Model`` by
:func:`nmf_zoo.read`. Engines read it and nothing else. Parameters of priors are in ``parameters``, the factors that
have them in ``factors`` and ``chains``, X in ``data``, its law given its mean in ``likelihoods``, exposures and
backgrounds in ``offsets``, covariates of samples, which the prior of H may depend on, in ``covariates``, what differs
between the cells of X's law in ``cell_parameters`` (multipliers of batches of samples in ``multipliers``), and all of
it together in ``factorisation``. Pieces of rows, cells or times: ``spans``.
"""

from nmf_zoo.structure.cell_parameters import CellParameter, KnownAtCells, is_shared
from nmf_zoo.structure.chains import (
    CHAINS,
    BasisChainPrior,
    BGARPrior,
    ChainPrior,
    GammaChainPrior,
    LogNormalARPrior,
    UnitChainPrior,
)
from nmf_zoo.structure.covariates import Covariates, UnknownOfCovariates
from nmf_zoo.structure.data import Blocked, Cells, Data, Dense, Imputed, is_rising
from nmf_zoo.structure.factorisation import CHUNK, Factorisation
from nmf_zoo.structure.factors import (
    Factor,
    Fixed,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    KnownComponents,
    LogLinearGammaPrior,
    Prior,
    Proper,
    TruncatedNormalPrior,
)
from nmf_zoo.structure.likelihoods import (
    BatchedPoisson,
    Exponential,
    Likelihood,
    NegativeBinomial,
    Normal,
    Poisson,
    log_factorial,
)
from nmf_zoo.structure.multipliers import Multipliers, UnknownOfBatches
from nmf_zoo.structure.offsets import (
    InBlocks,
    Listed,
    Offset,
    OffsetsOfSamples,
    Outer,
    ends_of,
    of_sides,
    offset_at,
    offset_table,
    scaled_offset,
    shared_column,
    side_by_side,
    sides_of,
    total_of,
)
from nmf_zoo.structure.parameters import (
    HYPER_PRIORS,
    Array,
    HyperPrior,
    Known,
    Parameter,
    PartlyKnown,
    Unknown,
    broadcast,
)
from nmf_zoo.structure.spans import even_bounds, slices, spans

__all__ = [
    "CHAINS",
    "CHUNK",
    "HYPER_PRIORS",
    "Array",
    "BGARPrior",
    "BasisChainPrior",
    "BatchedPoisson",
    "Blocked",
    "CellParameter",
    "Cells",
    "ChainPrior",
    "Covariates",
    "Data",
    "Dense",
    "Exponential",
    "Factor",
    "Factorisation",
    "Fixed",
    "Flat",
    "GammaChainPrior",
    "GammaPrior",
    "HalfNormalPrior",
    "HyperPrior",
    "Imputed",
    "InBlocks",
    "InverseGammaPrior",
    "Known",
    "KnownAtCells",
    "KnownComponents",
    "Likelihood",
    "Listed",
    "LogLinearGammaPrior",
    "LogNormalARPrior",
    "Multipliers",
    "NegativeBinomial",
    "Normal",
    "Offset",
    "OffsetsOfSamples",
    "Outer",
    "Parameter",
    "PartlyKnown",
    "Poisson",
    "Prior",
    "Proper",
    "TruncatedNormalPrior",
    "UnitChainPrior",
    "Unknown",
    "UnknownOfBatches",
    "UnknownOfCovariates",
    "broadcast",
    "ends_of",
    "even_bounds",
    "is_rising",
    "is_shared",
    "log_factorial",
    "of_sides",
    "offset_at",
    "offset_table",
    "scaled_offset",
    "shared_column",
    "side_by_side",
    "sides_of",
    "slices",
    "spans",
    "total_of",
]
