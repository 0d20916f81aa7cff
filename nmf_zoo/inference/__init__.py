"""The engines by name, and others of the same names for other likelihoods. NUTS, which hands the model to PyMC, is in
:mod:`nmf_zoo.nuts`.
"""

from nmf_zoo.inference import em, em_by_slopes, gibbs, mcem, vb
from nmf_zoo.inference.engine import Engine
from nmf_zoo.inference.hmm import exact, particle_em, particle_gibbs
from nmf_zoo.inference.itakura_saito import em as divergence_em
from nmf_zoo.inference.itakura_saito import gibbs as composite_gibbs
from nmf_zoo.inference.itakura_saito import vb as composite_vb
from nmf_zoo.structure import Factorisation

ENGINES: dict[str, Engine] = {
    module.ENGINE.name: module.ENGINE for module in (em, vb, mcem, gibbs, exact, particle_em, particle_gibbs)
}
OTHERS: list[Engine] = [module.ENGINE for module in (divergence_em, composite_vb, composite_gibbs, em_by_slopes)]


def engine_for(name: str, structure: Factorisation) -> Engine:
    """The engine of this name for the structure's likelihood; where it has none, the one that will refuse it."""
    named = [ENGINES[name], *(engine for engine in OTHERS if engine.name == name)]
    return next((engine for engine in named if type(structure.likelihood) in engine.likelihoods), named[0])
