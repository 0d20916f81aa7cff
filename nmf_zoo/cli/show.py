"""``nmf-zoo summary`` and ``nmf-zoo plot``: what a result holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmf_zoo.cli.output import PICTURES, RESULTS, check_output, complete_or_absent
from nmf_zoo.cli.values import parse_shape
from nmf_zoo.errors import InputError

COLUMNS = ("mean", "sd", "rhat", "ess_bulk", "ess_tail")
WORST = 5


def run_summary(arguments: argparse.Namespace) -> int:
    idata = load_result(arguments.input)
    for line in summary_lines(idata, arguments.features, arguments.all_cells):
        print(line)
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    check_output(arguments.output, PICTURES, arguments.force)
    image_shape = parse_shape("--image-shape", arguments.image_shape) if arguments.image_shape else None
    idata = load_result(arguments.input)
    from nmf_zoo.plots import plot_components, plot_trace

    is_trace = arguments.kind == "trace"
    figure = plot_trace(idata) if is_trace else plot_components(idata, chain=arguments.chain, image_shape=image_shape)
    with complete_or_absent(arguments.output) as partial:
        figure.savefig(partial, dpi=150)
    print(f"wrote {arguments.output}")
    return 0


def load_result(path: Path) -> Any:
    """A result that ``nmf-zoo fit`` or ``nz.save`` wrote."""
    if path.suffix not in RESULTS:
        raise InputError("input", str(path), f"a result, {' or '.join(RESULTS)}")
    if not path.exists():
        raise InputError("input", f"{path}, which doesn't exist", "a result that exists")
    import nmf_zoo as nz
    from nmf_zoo import _compat

    try:
        idata = nz.load(path)
    except Exception as error:  # whatever HDF5, Zarr and xarray raise on damaged files
        raise InputError(
            str(path), f"a file that can't be read ({error})", "a complete result of nmf-zoo fit"
        ) from error
    if "posterior" not in _compat.group_names(idata):
        raise InputError(str(path), "a file without a posterior group", "a result of nmf-zoo fit")
    return idata


def summary_lines(idata: Any, n_features: int, all_cells: bool = False) -> Iterator[str]:
    """The lines of ``nmf-zoo summary``."""
    from nmf_zoo import _compat

    groups = _compat.group_names(idata)
    posterior, attrs = _compat.group(idata, "posterior"), idata.attrs
    yield f"engine      {attrs.get('engine', 'unknown')} {attrs.get('options', '')}"
    yield f"library     {attrs.get('inference_library', '?')} {attrs.get('inference_library_version', '')}"
    yield f"run         {_run_of(attrs)}"
    yield f"posterior   {posterior.sizes['chain']} chains x {posterior.sizes['draw']} draws of {_sizes(posterior)}"
    if "fit" in groups:
        yield from _fit_lines(_compat.group(idata, "fit"))
    elif "sample_stats" in groups:
        yield from _convergence_lines(idata, all_cells)
    if n_features and "W" in posterior:
        yield from _feature_lines(idata, n_features)


def _run_of(attrs: Any) -> str:
    seconds = f"{float(attrs['seconds']):.1f} s, " if "seconds" in attrs else ""
    return f"{seconds}seed {attrs.get('random_seed', '?')}, {attrs.get('status', 'status unknown')}"


def _sizes(posterior: Any) -> str:
    return ", ".join(
        f"{name} ({', '.join(f'{dim} {size}' for dim, size in zip(array.dims[2:], array.shape[2:], strict=True))})"
        for name, array in posterior.data_vars.items()
    )


def _fit_lines(fit: Any) -> Iterator[str]:
    for chain in range(fit.sizes["chain"]):
        one = fit.isel(chain=chain)
        iterations = int(one["iterations"])
        objective = float(one["objective"].isel(iteration=iterations - 1))
        residual = float(one["residual"])
        yield f"restart {chain}   objective {objective:.6g} after {iterations} iterations, residual {residual:.2g}"
        yield f"            {one['status'].item()}: {one['reason'].item()}"


def _convergence_lines(idata: Any, all_cells: bool) -> Iterator[str]:
    """R-hat and effective sample size of what doesn't depend on labels: lp, and cells of W H (the worst, or all)."""
    from nmf_zoo.diagnostics import summarise

    table = summarise(idata)[list(COLUMNS)]
    cells = table.drop(index="lp", errors="ignore").sort_values("ess_bulk")
    shown = table if all_cells else table.loc[[*table.index.intersection(["lp"]), *cells.index[:WORST]]]
    yield ""
    yield f"{'':16}{'mean':>12}{'sd':>10}{'R-hat':>8}{'ESS bulk':>10}{'ESS tail':>10}"
    for name, row in shown.iterrows():
        numbers = zip(row, ("12.5g", "10.3g", "8.3f", "10.0f", "10.0f"), strict=True)
        yield f"{name:16}" + "".join(f"{number:>{form}}" for number, form in numbers)
    if len(table) > len(shown):
        rest = len(table) - len(shown)
        yield f"... and {rest} more cells of W H with larger ESS; largest R-hat of all: {table['rhat'].max():.3f}"


def _feature_lines(idata: Any, n_features: int) -> Iterator[str]:
    import nmf_zoo as nz

    yield ""
    yield "top features of chain 0 (posterior mean share of the component)"
    for component, rows in nz.top_features(idata, n_features).groupby("component", sort=False):
        pairs = zip(rows["feature"], rows["share"], strict=True)
        yield f"{component!s:>9}   " + ", ".join(f"{feature} {share:.3f}" for feature, share in pairs)
