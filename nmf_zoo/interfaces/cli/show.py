"""``nmf-zoo summary`` and ``nmf-zoo plot``: what a result holds."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from math import floor, isfinite, isnan, log10
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError, number_of, under_names
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.interfaces.cli.output import PICTURES, RESULTS, check_output
from nmf_zoo.interfaces.cli.values import parse_shape, read_groups_of

COLUMNS = ("mean", "sd", "rhat", "ess_bulk", "ess_tail")
WORST = 5


def run_summary(arguments: argparse.Namespace) -> int:
    idata = load_result(arguments.input)
    print_lines(summary_lines(idata, arguments.features, arguments.all_cells))
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    check_output(arguments.output, PICTURES, arguments.force)
    shape = parse_shape("--shape", arguments.shape) if arguments.shape else None
    how = _how(arguments)
    idata = load_result(arguments.input)
    from nmf_zoo import _compat, plots

    if arguments.kind == "objective" and "fit" not in _compat.group_names(idata):
        raise InputError("--kind", "objective, of a result of draws", "components, activations or trace")
    if arguments.kind == "components":
        with under_names(feature_groups="--groups"):
            figure = plots.plot_components(idata, chain=arguments.chain, shape=shape, **how)
    elif arguments.kind == "activations":
        with under_names(sample_groups="--groups"):
            figure = plots.plot_activations(idata, chain=arguments.chain, **how)
    else:
        figure = {"trace": plots.plot_trace, "objective": plots.plot_objective}[arguments.kind](idata)
    with replacing(arguments.output, "output") as partial:
        write_figure(figure, partial)
    print(f"wrote {arguments.output}")
    return 0


# option of nmf-zoo plot -> (kinds that have it, the argument of each)
OF_KIND = {
    "layout": {"components": "layout"},
    "groups": {"components": "feature_groups", "activations": "sample_groups"},
    "order": {"activations": "order"},
    "scale": {"activations": "scale"},
}


def _how(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the picture; an option of another kind is refused."""
    found: dict[str, Any] = {}
    for option, kinds in OF_KIND.items():
        given = getattr(arguments, option)
        if given is None:
            continue
        if arguments.kind not in kinds:
            raise InputError(f"--{option}", f"it with --kind {arguments.kind}", f"--kind {' or '.join(kinds)}")
        found[kinds[arguments.kind]] = read_groups_of(given) if option == "groups" else given
    if found.get("layout") == "none":
        found["layout"] = None
    return found


def load_result(path: Path) -> Any:
    """A result that ``nmf-zoo fit`` or ``nz.save`` wrote, as a tree: ArviZ 0.x would take longer than what is asked."""
    if path.suffix not in RESULTS:
        raise InputError("input", str(path), f"a result, {' or '.join(RESULTS)}")
    from nmf_zoo.results.loading import check_result, load_tree

    idata = load_tree(path)
    check_result(str(path), idata)
    return idata


def print_lines(lines: Iterable[str]) -> None:
    """Long lines continue below their second column on a terminal; in a file or a pipe they stay whole."""
    width = shutil.get_terminal_size(fallback=(0, 0)).columns if sys.stdout.isatty() else 0
    for line in lines:
        whole = not 40 < width < len(line)
        print(line if whole else textwrap.fill(line, width, subsequent_indent=" " * 12, break_on_hyphens=False))


def summary_lines(idata: Any, n_features: int, all_cells: bool = False) -> Iterator[str]:
    """The lines of ``nmf-zoo summary``."""
    from nmf_zoo import _compat
    from nmf_zoo.results.posterior import draws_or_means

    groups = _compat.group_names(idata)
    posterior, attrs = draws_or_means(idata), idata.attrs
    has_draws = "posterior" in groups
    sizes = _compat.group(idata, "posterior" if has_draws else "sample_stats").sizes
    yield f"engine      {attrs.get('engine', 'unknown')} {attrs.get('options', '')}"
    yield f"library     {attrs.get('inference_library', '?')} {attrs.get('inference_library_version', '')}"
    yield f"run         {_run_of(attrs)}"
    kept = "posterior " if has_draws else "mean, sd  "
    drawn = _compat.group(idata, "posterior") if has_draws else posterior
    yield f"{kept}  {draws_of(sizes, 'fit' in groups)} of {_sizes(drawn)}"
    means = [name for name in posterior if name not in drawn or drawn[name][0, 0].size < posterior[name][0, 0].size]
    if means:  # over blocks
        yield f"mean, sd    of {_sizes(posterior[means])}"
    if "fit" in groups:
        yield from _fit_lines(_compat.group(idata, "fit"), attrs.get("engine"))
    elif "sample_stats" in groups:
        yield from _convergence_lines(idata, all_cells)
    yield from _verdict_lines(idata)
    yield from _mode_lines(idata)
    yield from _in_use_lines(idata, set(posterior.data_vars))
    if n_features:
        yield from _feature_lines(idata, n_features)


def _verdict_lines(idata: Any) -> Iterator[str]:
    """What the result is good for, and what to do next."""
    from nmf_zoo.diagnostics.convergence import verdict_on
    from nmf_zoo.interfaces.cli.wording import shell_words

    found = verdict_on(idata)
    if found is not None:
        yield ""
        yield f"verdict     {found.text}"
        yield f"next        {shell_words(found.do)}"


def _mode_lines(idata: Any) -> Iterator[str]:
    """What the modes weigh, where they have been weighed."""
    from nmf_zoo.results.modes import describe_modes, weighed_modes

    modes = weighed_modes(idata)
    if modes is not None:
        yield f"modes       {describe_modes(modes)}"


def _in_use_lines(idata: Any, names: set[Any]) -> Iterator[str]:
    """How many components are in use, where a relevance shrinks those that are not."""
    from nmf_zoo.results.components_in_use import components_in_use
    from nmf_zoo.results.factor_draws import relevances_in

    if relevances_in(names) and {"W", "H"} <= names:
        yield f"in use      {components_in_use(idata).attrs['answer']}"


def draws_of(sizes: Any, is_fit: bool) -> str:
    """``4 chains x 1000 draws``, ``1 restart x 1 draw``"""
    words = (("restart" if is_fit else "chain", sizes["chain"]), ("draw", sizes["draw"]))
    return " x ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in words)


def _run_of(attrs: Any) -> str:
    seconds = f"{float(attrs['seconds']):.1f} s, " if "seconds" in attrs else ""
    return f"{seconds}seed {attrs.get('random_seed', '?')}, {attrs.get('status', 'status unknown')}"


def _sizes(posterior: Any) -> str:
    return ", ".join(
        f"{name} ({', '.join(f'{dim} {size}' for dim, size in zip(array.dims[2:], array.shape[2:], strict=True))})"
        for name, array in posterior.data_vars.items()
    )


def _fit_lines(fit: Any, engine: str | None) -> Iterator[str]:
    from nmf_zoo.diagnostics.invariants import last_objectives
    from nmf_zoo.inference.registry import is_maximised, named

    if "objective" not in fit:
        yield f"stream      {number_of(int(fit['columns'].max()), 'column')} seen"
        return
    better = f" ({'higher' if is_maximised(engine) else 'lower'} is better)" if engine and named(engine, "fit") else ""
    for chain, objective in enumerate(last_objectives(fit)):
        one = fit.isel(chain=chain)
        after = f"{number_of(int(one['iterations']), 'iteration')}, residual {float(one['residual']):.2g}"
        yield f"restart {chain}   objective {objective:.6g}{better} after {after}"
        yield f"            {one['status'].item()}: {one['reason'].item()}"
        if "divergence" in one:
            yield f"            divergence of X from its mean {float(one['divergence']):.6g}"


def _convergence_lines(idata: Any, all_cells: bool) -> Iterator[str]:
    """R-hat and effective sample size of what doesn't depend on labels: lp, and cells of W H (the worst, or all)."""
    from nmf_zoo.diagnostics.invariants import summarise

    table = summarise(idata)[list(COLUMNS)]
    cells = table.drop(index="lp", errors="ignore").sort_values("ess_bulk")
    shown = table if all_cells else table.loc[[*table.index.intersection(["lp"]), *cells.index[:WORST]]]
    yield ""
    names = max(16, *(len(name) for name in shown.index))
    yield f"{'':{names}}{'mean':>12}{'sd':>10}{'R-hat':>8}{'ESS bulk':>10}{'ESS tail':>10}"
    for name, row in shown.iterrows():
        yield f"{name:{names}}{rounded(row['mean'], row['sd']):>12}" + "".join(
            f"{'-' if isnan(row[column]) else f'{row[column]:{form}}':>{width}}"
            for column, width, form in (
                ("sd", 10, ".3g"),
                ("rhat", 8, ".3f"),
                ("ess_bulk", 10, ".0f"),
                ("ess_tail", 10, ".0f"),
            )
        )
    worst = table["rhat"].max()
    if len(table) > len(shown):
        largest = "" if isnan(worst) else f"; largest R-hat of all: {worst:.3f}"
        yield f"... and {len(table) - len(shown)} more cells of W H with larger ESS{largest}"
    if isnan(worst):
        yield "R-hat compares chains: it needs two or more, of four draws or more"


def rounded(mean: float, sd: float) -> str:
    """``mean`` to the digits that ``sd`` leaves meaningful: two of them uncertain, integers up to nine digits whole."""
    if not (isfinite(mean) and isfinite(sd)) or mean == 0 or sd == 0:
        return f"{mean:.5g}"
    size = floor(log10(abs(mean)))
    digits = min(max(size - floor(log10(sd)) + 2, 3), 9)
    return f"{mean:.{max(digits, size + 1) if size < 9 else digits}g}"


def _feature_lines(idata: Any, n_features: int) -> Iterator[str]:
    import nmf_zoo as nz
    from nmf_zoo.results.component_order import component_order, describe_shown

    order = component_order(idata)
    if order is None:
        return
    yield ""
    yield f"components of {describe_shown(order, idata)}: share of W H, top features (posterior mean share)"
    tables = nz.top_features(idata, n_features).groupby("component", sort=False)
    for (component, rows), size in zip(tables, order["share"].to_numpy(), strict=True):
        pairs = zip(rows["feature"], rows["share"], strict=True)
        yield f"{component!s:>9}   {size:6.1%}   " + ", ".join(f"{feature} {share:.3f}" for feature, share in pairs)
