"""The page: from a result to a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pymc as pm

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.files import check_result, replacing
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.reports.convergence import Findings, check_convergence, run_parts
from nmf_zoo.reports.data import data_parts
from nmf_zoo.reports.declaration import model_parts
from nmf_zoo.reports.page import advice, page, paragraph
from nmf_zoo.reports.pictures import activation_parts, component_parts, course_parts, reconstruction_parts
from nmf_zoo.reports.source import Source
from nmf_zoo.results.block_store import as_fitted
from nmf_zoo.results.posterior import draws_or_means


@names_checked
def report(
    idata: Any,
    path: str | Path,
    model: pm.Model | None = None,
    *,
    title: str | None = None,
    shape: tuple[int, int] | None = None,
    weights: str | None = None,
    activations: str | None = None,
) -> Path:
    """Write one self-contained web page on a result: data, model, run, convergence, components, reconstruction.

    The page needs no network and no other file, runs no script, and is drawn for narrow and wide windows alike.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample`, :func:`~nmf_zoo.fit` or a stream, or anyone's InferenceData with W and H
    path : where to write, a name that ends in .html; what is there is replaced
    model : the model it came from, which adds predictive intervals, and a check that the draws are its own; what the
        model says in words is in results of :func:`~nmf_zoo.sample` and :func:`~nmf_zoo.fit` already. Of a fit over
        ``data=``, which no result holds, the model adds the check alone
    title : of the page
    shape : (rows, columns) when the features are the pixels of an image, row by row
    weights, activations : names of the factors; default those of the model, or W and H

    Returns
    -------
    The path. Convergence is judged as by :func:`~nmf_zoo.check_convergence`, and what that means is said first; the
    components that are shown are those of :func:`~nmf_zoo.align`

    Raises
    ------
    InputError : no result, a name that doesn't end in .html, or one that can't be written to
    NotWritten : the disk is full, or the system refuses for another reason; what was there before still is

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=2)
    >>> idata = nz.sample(50, tune=50, chains=2, random_seed=1, quiet=True, model=model)
    >>> nz.report(idata, "report.html", model).name  # doctest: +SKIP
    'report.html'
    """
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise InputError("path", repr(str(path)), "a name that ends in .html")
    check_result(path)
    group = draws_or_means(idata)  # says what is missing
    structure = None if model is None else as_fitted(read(model), idata, group)
    names = ("W", "H") if structure is None else (structure.W.name, structure.H.name)
    source = Source(idata, model, structure, weights or names[0], activations or names[1], shape)
    source.check_model()
    if source.came_in_blocks and structure is not None and structure.data is None:
        source = replace(source, model=None, structure=None)  # the result says more of the data
    text = compose(source, title or _title(source))
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def compose(source: Source, title: str) -> str:
    """The page as HTML."""
    found = check_convergence(source)
    sections = [
        ("data", "Data", data_parts(source)),
        ("model", "Model", model_parts(source)),
        ("run", "Run", run_parts(source)),
        ("convergence", "Convergence", found.html),
        ("components", "Components", component_parts(source)),
        ("activations", "Activations", activation_parts(source)),
        ("reconstruction", "Reconstruction", reconstruction_parts(source)),
        ("course", "Course of the run", course_parts(source)),
    ]
    return page(title, _lead(source, found), sections, "Written by nmf_zoo; one file, no scripts, nothing fetched.")


def _title(source: Source) -> str:
    rank = source.shape[2]
    into = f" into {number_of(rank, 'component')}" if rank else ""
    return f"Factorisation{into} by {source.attrs.get('engine', 'a sampler')}"


def _lead(source: Source, found: Findings) -> list[str]:
    """What a reader in a hurry should know."""
    features, samples, rank = source.shape
    size = f"{number_of(features, 'feature')} x {number_of(samples, 'sample')}, " if features and samples else ""
    seen = (
        f"{number_of(int(source.group('fit')['columns'].item()), 'column')} seen"
        if source.is_stream
        else source.draws_text
    )
    components = number_of(rank, "component") if rank else "? components"
    about = paragraph(f"{size}{components}; {seen}.")
    if found.verdict is None:
        return [about]
    verdict = found.verdict
    return [about, advice(verdict.text, verdict.is_warning), paragraph(f"What to do next: {verdict.do}.")]
