"""What a campaign needs, imported in the set-up of the tests: PyTensor without a compiler, one BLAS thread."""

import tests.conftest  # noqa: F401, I001  first: it sets the environment
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ says once a day what will change
    from tests.property.everything.cases import EARLIER, FAMILIES, NEWER, Case, case_of
    from tests.property.everything.outcome import Outcome, run
    from tests.property.everything.runs import ENGINES

__all__ = ["EARLIER", "ENGINES", "FAMILIES", "NEWER", "Case", "Outcome", "case_of", "run"]
