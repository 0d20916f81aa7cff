"""``nmf-zoo models`` and ``nmf-zoo engines``: what there is, from the registries."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.parser import NOT_HYPERPARAMETERS

if TYPE_CHECKING:
    from nmf_zoo.structure import Factorisation

OTHERS = ("stream", "evidence")  # verbs beside those of `engine=`
WIDE = [[3, 0, 5, 1, 2], [1, 4, 0, 2, 6]]  # more samples than features, so that a flat W has a proper posterior


def run_models(arguments: argparse.Namespace) -> int:
    models = catalogue.models()
    width = max(map(len, models)) + 2
    for name, entry in models.items():
        own = [argument for argument in entry.arguments.values() if argument.name not in NOT_HYPERPARAMETERS]
        print(f"{name:{width}}{entry.summary.replace('``', '')}")
        print(f"{'':{width}}{' '.join(argument.flag for argument in own) or 'no hyperparameters'}")
    return 0


def run_engines(arguments: argparse.Namespace) -> int:
    print(engine_table(arguments.markdown))
    return 0


def engine_table(markdown: bool = False) -> str:
    """Model x engine, then x stream and method, by their verdicts on small complete matrices; reasons stand below."""
    import numpy as np

    from nmf_zoo.inference.registry import fitting, named, names, verb_of, verdict
    from nmf_zoo.models import MODELS
    from nmf_zoo.reading import read

    def reason(name: str, verb: str, structure: Factorisation) -> str:
        """Why none of this name runs it; "" when one does."""
        reasons = [verdict(structure, entry).reason for entry in fitting(named(name, verb), structure)]
        return "" if "" in reasons else reasons[0]

    def structures(data: Any) -> dict[str, Factorisation]:
        found = {}
        for (name, form), declare in declarations().items():
            structure = read(declare(MODELS[name], data))
            is_discrete = structure.likelihood.is_discrete
            structure = structure if is_discrete else read(declare(MODELS[name], data + 0.5))
            found[f"{name}, {form}" if form else name] = structure
        return found

    wide, tall = structures(np.array(WIDE)), structures(np.transpose(WIDE))
    notes: list[str] = []
    lines: list[str] = []
    # Those of `engine=`, then streams and methods for the evidence.
    for columns in ([(name, verb_of(name)) for name in names()], [(name, v) for v in OTHERS for name in names(v)]):
        rows = [["model", *(f"{name} ({verb})" for name, verb in columns)]]
        for model in wide:
            reasons = ((reason(*column, wide[model]), reason(*column, tall[model])) for column in columns)
            rows.append([model, *(_mark(*pair, notes) for pair in reasons)])
        lines += [*(_as_markdown(rows) if markdown else _as_text(rows)), ""]
    return "\n".join([*lines, *(f"{number}. {note}" for number, note in enumerate(notes, start=1))])


def declarations() -> dict[tuple[str, str], Callable[[Any, Any], Any]]:
    """(model, form) -> a declaration by its builder, of a table: every model as it is, then other forms of some."""
    import numpy as np
    import scipy.sparse as sp

    from nmf_zoo.distributions import BGAR, GammaChain
    from nmf_zoo.models import MODELS, free
    from nmf_zoo.models.hierarchies import ARD

    def plain(**options: Any) -> Callable[[Any, Any], Any]:
        return lambda build, X: build(X, **options)

    def known(**options: Any) -> Callable[[Any, Any], Any]:
        """The first component of W known."""
        return lambda build, X: build(X, known=np.ones((len(X), 1)), **options)

    def known_h(**options: Any) -> Callable[[Any, Any], Any]:
        """The first component of H known."""
        return lambda build, X: build(X, known_h=np.ones((1, np.shape(X)[1])), **options)

    def errors(**options: Any) -> Callable[[Any, Any], Any]:
        """Known ones that differ between cells."""
        return lambda build, X: build(X, 1, sigma=0.1 + 0.1 * np.asarray(X), **options)

    def batches(build: Any, X: Any) -> Any:
        return build(X, 1, batch=np.arange(X.shape[1]) % 2)

    def covariates(build: Any, X: Any) -> Any:
        return build(X, 1, design=np.linspace(-1.0, 1.0, np.shape(X)[1]))

    def sparse(**options: Any) -> Callable[[Any, Any], Any]:
        """With an exposure of features and of samples, and a background."""

        def declare(build: Any, X: Any) -> Any:
            exposure = np.ones((len(X), 1)), 1.0 + np.arange(X.shape[1])[None]
            return build(sp.csr_array(X), 1, exposure=exposure, background=0.5, **options)

        return declare

    found: dict[tuple[str, str], Callable[[Any, Any], Any]] = {(name, ""): plain(rank=1) for name in MODELS}
    found |= {("gamma-nmf", word): plain(rank=1, prior=word) for word in ("hpf", "ard")}
    found |= {("gamma-nmf", "ard, half-normal"): plain(rank=1, prior=ARD(cells="half-normal"))}
    found |= {("gamma-nmf", "batches"): batches, ("gamma-nmf", "covariates"): covariates}
    halves, half_normal = ("poisson-nmf", "normal-nmf"), {"sigma_w": 1.0, "sigma_h": 1.0}
    found |= {(name, "half-normal"): plain(rank=1, **half_normal) for name in halves}
    found |= {("normal-nmf", "exponential, errors per cell"): errors(beta_w=1.0, beta_h=1.0)}
    found |= {("normal-nmf", "gamma, errors per cell"): errors(alpha_w=2.0, alpha_h=0.5)}
    found |= {("normal-nmf", "truncated normal"): plain(rank=1, mu_w=1.0, sigma_w=1.0, mu_h=1.0, sigma_h=1.0)}
    found |= {("negative-binomial-nmf", "free alpha"): plain(rank=1, alpha=free())}
    for word, chain in (("gamma chain", GammaChain(9.0, 9.0)), ("BGAR", BGAR(2.0, 1.0, 0.9))):
        found |= {(name, word): plain(rank=1, alpha_w=2.0, chain=chain) for name in ("hmm-nmf", "is-nmf")}
    found |= {(name, "known beside new"): known(rank=2) for name in MODELS}
    found |= {(name, "all known"): known(rank=1) for name in MODELS}
    found |= {("gamma-nmf", "ard, known beside new"): known(rank=2, prior="ard")}
    found |= {("gamma-nmf", "known_strength"): known(rank=2, known_strength=9.0)}
    of_counts = "poisson-nmf", "gamma-nmf", "negative-binomial-nmf", "gap", "hmm-nmf"
    found |= {(name, "sparse, with offsets"): sparse() for name in of_counts}
    found |= {("gamma-nmf", "stored cells, with offsets"): sparse(observed="stored")}
    found |= {("normal-nmf", "half-normal, stored cells, with offsets"): sparse(observed="stored", **half_normal)}
    gamma_law = {"ard": ARD(law="gamma"), "ard, half-normal": ARD(cells="half-normal", law="gamma")}
    found |= {("gamma-nmf", f"{form}, gamma law"): plain(rank=1, prior=prior) for form, prior in gamma_law.items()}
    found |= {("gamma-nmf", "hpf, shapes of 1"): plain(rank=1, prior="hpf", alpha_w=1.0, alpha_h=1.0)}
    found |= {("gamma-nmf", "hpf, known beside new"): known(rank=2, prior="hpf")}
    found |= {(name, "half-normal, known beside new"): known(rank=2, **half_normal) for name in halves}
    return found | {(name, "known of H beside new"): known_h(rank=2) for name in MODELS if name != "hmm-nmf"}


def _mark(on_wide: str, on_tall: str, notes: list[str]) -> str:
    """yes or no, with the number of the note that says why not; ``on_...`` are the reasons of a refusal, or ""."""
    if not (on_wide or on_tall):
        return "yes"
    note = (
        f"no: {on_wide}"
        if on_wide
        else f"not for every X, e.g. of {len(WIDE[0])} features x {len(WIDE)} samples: {on_tall}"
    )
    if note not in notes:
        notes.append(note)
    return f"{'no' if on_wide else 'yes'} ({notes.index(note) + 1})"


def _as_text(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    return ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _as_markdown(rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
