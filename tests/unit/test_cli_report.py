"""``nmf-zoo report`` and ``nmf-zoo compare``: what they write, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.cli.parser import make_parser

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("unarranged_pictures")


def run(*words: str) -> int:
    """The exit code, also where argparse exits."""
    try:
        return main([*words])
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table, and draws and a fit of it."""
    folder = tmp_path_factory.mktemp("report")
    X = np.random.default_rng(1).poisson(3.0, (5, 8))
    for name, table in (("counts", X), ("turned", X.T), ("negative", X - 2)):
        np.savetxt(folder / f"{name}.csv", table, delimiter=",", fmt="%d")
    model = nz.gamma_nmf(X, rank=2, alpha_w=0.5)
    nz.save(nz.sample(20, tune=20, chains=2, random_seed=1, quiet=True, model=model), folder / "draws.nc")
    nz.save(nz.fit(model=model, engine="vb", max_iter=5, random_seed=1, quiet=True), folder / "fit.nc")
    return folder


@pytest.fixture
def folder(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_report_of_a_result(folder, capsys):
    assert run("report", "draws.nc", "-o", "out.html", "--title", "Counts") == 0
    assert capsys.readouterr().out == "wrote out.html\n"
    text = Path("out.html").read_text(encoding="utf-8")
    assert "<h1>Counts</h1>" in text
    assert "Graph of the model: X ~ Poisson(W @ H), rank 2" in " ".join(text.split())
    assert run("report", "draws.nc", "-o", "out.html") == 2
    assert "--force to overwrite" in capsys.readouterr().err
    assert run("report", "fit.nc", "-o", "out.html", "--force") == 0


@pytest.mark.parametrize(
    ("alpha_w", "words"), [("0.5", "is that of this model"), ("2", "it came from another model, or from other data")]
)
def test_report_with_the_model(folder, alpha_w, words):
    how = ("--data", "counts.csv", "--model", "gamma-nmf", "--alpha-w", alpha_w, "--header", "no", "--row-labels", "no")
    assert run("report", "draws.nc", "-o", "out.html", *how) == 0
    text = Path("out.html").read_text(encoding="utf-8")
    assert f"Gamma(shape={alpha_w}, rate=1)" in text
    assert words in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report draws.nc -o out.pdf", "ends in .html"),
        ("report none.nc -o out.html", "no such file"),
        ("report draws.nc -o out.html --model gap", "--model: got an option of the model; expected --data FILE"),
        ("report draws.nc -o out.html --alpha-w 2", "--alpha-w: got an option of the model"),
        ("report draws.nc -o out.html --transpose", "--transpose: got an option of the model"),
        ("report draws.nc -o out.html --data turned.csv", "the rows of the file want --transpose"),
        ("report draws.nc -o out.html --data counts.csv --transpose", "leave --transpose out"),
        ("report draws.nc -o out.html --data negative.csv", "negative.csv: got the negative cell"),
        ("plot draws.nc -o out.png --kind objective", "--kind: got objective, of a result of draws"),
        ("compare counts.csv --rank 2 --engines gibbs,mcmc", "--engines: got 'mcmc'"),
        ("compare counts.csv --rank 2 --engines gibbs,gibbs", "engines separated by commas, each once"),
        ("compare counts.csv --rank 2 --engines mcmc:moves=scale", "--engines: got 'mcmc'"),
        ("compare counts.csv --rank 2 --engines gibbs:steps=3", "options of gibbs, each once: moves, trajectories"),
        ("compare counts.csv --rank 2 --engines nuts,gibbs:scale", "expected options of gibbs"),
        ("compare counts.csv --rank 2 --engines gibbs:moves=scale,moves=shear", "each once"),
        ("compare counts.csv --rank 2 --engines gibbs:moves=turn", "--moves: got ['turn']"),
        ("compare counts.csv --rank 2 --engines nuts:target_accept=high", "--target-accept: got 'high'"),
        ("compare counts.csv --rank 2 --engines gibbs,vb --reference em", "one of ['gibbs', 'vb']"),
        ("compare counts.csv --rank 2 -o out.nc", "ends in .csv"),
    ],
)
def test_refusals(folder, capsys, words, message):
    assert run(*words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(folder.glob("out.*"))


def test_pictures_of_a_fit(folder):
    for kind in ("objective", "activations"):
        assert run("plot", "fit.nc", "-o", f"{kind}.png", "--kind", kind) == 0
        assert Path(f"{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_by_groups_and_in_an_order(folder, capsys):
    posterior = nz.load("fit.nc").posterior
    features, samples = (posterior[dim].to_numpy() for dim in ("feature", "obs"))
    rows = [f"{label}\tgroup {n % 2}\n" for n, label in enumerate(features)]
    Path("features.tsv").write_text("".join(reversed(rows)), encoding="utf-8")
    Path("samples.txt").write_text("".join(f"group {n % 2}\n" for n in range(len(samples))), encoding="utf-8")
    for words in (
        "--groups features.tsv",
        "--layout none",
        "--kind activations --groups samples.txt --order size --scale log",
    ):
        assert run("plot", "fit.nc", "-o", "how.svg", "--force", *words.split()) == 0
        assert ("group 1" in Path("how.svg").read_text(encoding="utf-8")) == ("--groups" in words)
    Path("twice.csv").write_text("a,x\na,y\n", encoding="utf-8")
    Path("three.csv").write_text("a,x\nb,y,z\n", encoding="utf-8")
    Path("mixed.csv").write_text("a,x\nb\n", encoding="utf-8")
    Path("few.csv").write_text("a,x\nb,y\n", encoding="utf-8")
    capsys.readouterr()
    for words, message in (
        ("--groups twice.csv", "twice.csv: got the label 'a' more than once; expected each label once"),
        ("--groups three.csv", "three.csv: got 3 columns in line 2; expected in each line a label and its group"),
        ("--groups mixed.csv", "mixed.csv: got lines of one and two"),
        ("--groups none.csv", "none.csv: got no such file"),
        ("--groups few.csv", "--groups: got no group of"),
        ("--groups samples.txt", f"--groups: got {len(samples)} groups; expected {len(features)} groups"),
        ("--order size", "--order: got it with --kind components; expected --kind activations"),
        ("--kind activations --layout sbs96", "--layout: got it with --kind activations"),
        ("--kind trace --groups few.csv", "--groups: got it with --kind trace"),
        ("--layout sbs96", "layout: got"),
    ):
        assert run("plot", "fit.nc", "-o", "out.svg", *words.split()) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_compare(folder, capsys):
    lengths = ("--draws", "50", "--tune", "20", "--chains", "2", "--max-iter", "50", "--random-seed", "1", "--quiet")
    outputs = ("-o", "table.csv", "-o", "picture.png")
    assert run("compare", "counts.csv", "--rank", "2", "--engines", "gibbs,vb", *outputs, *lengths) == 0
    table = pd.read_csv("table.csv", index_col="engine")
    assert list(table.index) == ["gibbs", "vb"]
    assert table.loc["gibbs", "ess_bulk"] > 0
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["seconds", "compiling"]
    assert [line.split()[0] for line in lines[1:3]] == ["gibbs", "vb"]
    assert "those of gibbs" in lines[3]


def test_compare_with_options(folder, capsys):
    engines = "gibbs,gibbs:moves=scale,shear,trajectories=never,gibbs:moves=,vb"
    how = ("--draws", "20", "--tune", "20", "--chains", "2", "--max-iter", "9", "--random-seed", "1", "--quiet")
    words = ("compare", "counts.csv", "--rank", "2", "--engines", engines, "--reference", "gibbs:moves=")
    assert run(*words, *how) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "gibbs",
        "Gibbs(trajectories='never')",
        "Gibbs(moves=())",
        "vb",
    ]
    assert "those of Gibbs(moves=())" in lines[5]


@pytest.mark.parametrize(
    ("plot", "name"),
    [(nz.plot_components, "layout"), (nz.plot_activations, "order"), (nz.plot_activations, "scale")],
)
def test_the_shell_has_the_words_of_the_pictures(plot, name):
    """The parser imports no pictures."""
    allowed = [word for part in get_args(get_type_hints(plot)[name]) for word in get_args(part) or [part]]
    allowed = ["none" if word is type(None) else word for word in allowed]
    of_plot = make_parser()._subparsers._group_actions[0].choices["plot"]
    (action,) = (action for action in of_plot._actions if action.dest == name)
    assert set(action.choices) == set(allowed)
