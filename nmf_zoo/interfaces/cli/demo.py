"""``nmf-zoo demo``."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from nmf_zoo.errors import InputError
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.interfaces.cli.output import PICTURES, RESULTS, check_output
from nmf_zoo.interfaces.cli.show import print_lines, summary_lines


def run_demo(arguments: argparse.Namespace) -> int:
    from nmf_zoo.runtime.arguments import entropy_of

    entropy_of(arguments.random_seed)  # refused before a folder is made
    result, picture = make_places(arguments.folder, arguments.force)
    print(
        "The 1797 handwritten digits of scikit-learn, 64 pixels each; gamma-nmf of rank 10; Gibbs, 4 chains", flush=True
    )

    import nmf_zoo as nz
    from nmf_zoo.interfaces.demo import compiled_for, digits, run_digits, thin_factors

    X = digits()
    with compiled_for(X):
        idata = run_digits(X, arguments.random_seed)
    if str(idata.attrs["status"]).startswith("interrupted"):
        raise KeyboardInterrupt  # a part of the draws is no demonstration
    print_lines(summary_lines(idata, n_features=0))
    kept = thin_factors(idata)
    with replacing(picture, "output") as partial:
        write_figure(nz.plot_components(nz.align(kept), chain=None, shape=(8, 8)), partial)
    with replacing(result, "output") as partial:
        nz.save(kept, partial)
    print(f"\nwrote {picture} and {result}; next: nmf-zoo summary {result}")
    return 0


def make_places(folder: Path, force: bool) -> tuple[Path, Path]:
    """The two files, in a folder that is made when it isn't there."""
    for module in ("sklearn", "matplotlib"):
        if find_spec(module) is None:
            raise InputError("demo", f"no {module}", "scikit-learn and matplotlib", "pip install 'nmf_zoo[demo]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--folder", str(folder), f"a folder that can be made ({error.strerror})") from error
    result, picture = folder / "posterior.nc", folder / "templates.png"
    check_output(result, RESULTS, force)
    check_output(picture, PICTURES, force)
    return result, picture
