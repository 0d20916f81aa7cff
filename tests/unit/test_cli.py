"""The command line: what it writes, its exit codes, and the one line it says on standard error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.cli import catalogue, main
from nmf_zoo.interfaces.cli.fit import make_options
from nmf_zoo.interfaces.cli.output import check_output
from nmf_zoo.interfaces.cli.parser import make_parser
from nmf_zoo.interfaces.cli.show import print_lines, rounded
from nmf_zoo.interfaces.cli.values import parse_value
from nmf_zoo.interfaces.cli.wording import shell_words

ROOT = Path(__file__).parents[2]
pytest.importorskip("zarr")


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """A small table in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(1).poisson(3.0, (5, 8))
    lines = [",".join(["", *(f"s{n}" for n in range(8))])]
    lines += [",".join([f"g{f}", *map(str, X[f])]) for f in range(5)]
    Path("counts.csv").write_text("\n".join(lines))
    return X


def run(*words: str) -> int:
    """The exit code, also where argparse exits."""
    try:
        return main([*words])
    except SystemExit as stop:
        return stop.code


QUICK = ("--draws", "20", "--tune", "20", "--chains", "2", "--random-seed", "1", "--quiet")


# -- the catalogue -------------------------------------------------------------------------------------------------


def test_the_catalogue_is_what_the_registries_hold():
    from nmf_zoo.interfaces.cli import inventory

    do = "run python -m nmf_zoo.interfaces.cli.inventory"
    assert catalogue.FILE.read_text(encoding="utf-8") == inventory.text(), do


def test_every_argument_is_an_option(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["fit", "--help"])
    text = capsys.readouterr().out
    entries = [*catalogue.models().values(), *catalogue.engines().values(), *catalogue.runs().values()]
    # The matrix, in blocks or not, and its labels come from files, the shape from the matrix, the model and engine from
    # their names, and draws are stored at the output; functions and executors can't be typed.
    elsewhere = {"coords", "data", "shape", "idata_kwargs", "store", "on_step", "executor"}
    for entry in entries:
        for argument in entry.arguments.values():
            assert argument.name in elsewhere or argument.flag in text, (entry.name, argument)


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"]])
def test_help_answers_at_once(words):
    code = f"import sys, nmf_zoo.interfaces.cli as c; sys.argv[0] = 'nmf-zoo'; c.main({words})"
    begun = _seconds_of_children()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    assert _seconds_of_children() - begun < 2.0  # 0.5 s on a quiet machine; what it imports is tested below


def _seconds_of_children():
    """Of the processor: the clock also counts what else the machine does."""
    times = os.times()
    return times.children_user + times.children_system


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "nmf_zoo", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"nmf-zoo {nz.__version__}"


def test_help_imports_nothing_slow():
    code = (
        "import sys\nfrom nmf_zoo.interfaces import cli\n"
        "try: cli.main(['fit', '--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not {"numpy", "scipy", "pandas", "numba", "arviz", "pymc"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("int | None", "3", 3),
        ("int | None", "none", None),
        ("float", "1e-3", 1e-3),
        ("tuple[str, ...]", "scale,shear", ("scale", "shear")),
        ("tuple[str, ...]", "", ()),
        ("Literal['a', 'b']", "b", "b"),
        ("str", "x", "x"),
        ("bool", True, True),
    ],
)
def test_values_follow_annotations(annotation, text, value):
    assert parse_value(catalogue.Argument("x", annotation, "", ""), text) == value


@pytest.mark.parametrize(("annotation", "text"), [("int", "1.5"), ("float", "x"), ("Literal['a', 'b']", "c")])
def test_wrong_values_name_the_option(annotation, text):
    with pytest.raises(InputError, match="--the-option: got"):
        parse_value(catalogue.Argument("the_option", annotation, "", ""), text)


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["out.zarr", "out.nc"])
def test_fit_by_gibbs_keeps_labels_and_options(counts, output, capsys):
    if output == "out.nc":
        pytest.importorskip("h5py")
    words = ("--rank", "2", "--moves", "scale", "--thin", "2", "--alpha-w", "0.5", "--alpha-h", "1,2")
    assert run("fit", "counts.csv", "-o", output, *words, *QUICK) == 0
    idata = nz.load(output)
    posterior = _compat.group(idata, "posterior")
    assert dict(posterior["W"].sizes) == {"chain": 2, "draw": 10, "feature": 5, "component": 2}
    assert list(posterior["feature"].values) == [f"g{f}" for f in range(5)]
    assert list(posterior["obs"].values) == [f"s{n}" for n in range(8)]
    assert '"scale"' in idata.attrs["options"]
    assert "shear" not in idata.attrs["options"]
    capsys.readouterr()
    assert run("summary", output) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("gibbs", "lp", "R-hat", "ESS", "feature 5", "seed 1", "top features", "g0"))


def test_the_shell_draws_what_python_draws(counts):
    assert run("fit", "counts.csv", "-o", "out.zarr", "--rank", "2", *QUICK) == 0
    model = nz.gamma_nmf(counts, 2)
    ours = nz.sample(20, tune=20, chains=2, random_seed=1, quiet=True, model=model)
    for name in ("W", "H"):
        stored = _compat.group(nz.load("out.zarr"), "posterior")[name].values
        np.testing.assert_array_equal(stored, _compat.group(ours, "posterior")[name].values)


def test_summary_of_one_chain(counts, capfd):
    assert run("fit", "counts.csv", "-o", "out.zarr", "--rank", "2", *QUICK, "--chains", "1") == 0
    assert run("summary", "out.zarr") == 0
    said = capfd.readouterr()
    assert "1 chain x 20 draws" in said.out
    assert "it needs two or more" in said.out
    assert "nan" not in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    ("mean", "sd", "text"),
    [
        (-213602.4, 609.0, "-213602"),
        (12.5691, 4.18, "12.6"),
        (1.26812, 0.00999, "1.2681"),
        (4.2618e-07, 2.18e-08, "4.26e-07"),
        (123456789012.0, 1e9, "1.235e+11"),
        (3.0, 0.0, "3"),
        (2.0, float("nan"), "2"),
        (0.0, 1.0, "0"),
    ],
)
def test_means_are_rounded_to_their_sd(mean, sd, text):
    assert rounded(mean, sd) == text


def test_long_lines_are_folded_on_a_terminal_only(monkeypatch, capsys):
    line = "posterior   " + " ".join(["word"] * 30)
    print_lines([line, ""])
    assert capsys.readouterr().out == line + "\n\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_lines([line])
    first, *more = capsys.readouterr().out.splitlines()
    assert len(first) <= 60
    assert more
    assert all(other.startswith(" " * 12 + "word") and len(other) <= 60 for other in more)


def test_fit_by_an_optimiser(counts, capsys):
    words = (
        "--engine",
        "em",
        "--model",
        "poisson-nmf",
        "--rank",
        "2",
        "--max-iter",
        "30",
        "--restarts",
        "2",
        "--search",
        "0",
        "--tol",
        "0",
    )
    assert run("fit", "counts.csv", "-o", "out.zarr", *words, "--random-seed", "1", "--no-progressbar") == 0
    assert run("summary", "out.zarr") == 0
    said = capsys.readouterr().out
    assert "restart 1" in said
    assert "(lower is better) after 30 iterations" in said


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (("--engine", "em", "--max-iter", "3", "--tol", "0", "--search", "3"), 3),
        (("--engine", "em", "--max-iter", "3", "--tol", "0"), "as Python"),
        (("--engine", "em", "--max-iter", "3", "--tol", "0", "--search", "0"), None),
        ((*QUICK, "--search", "2"), 2),
        ((*QUICK, "--search", "0"), None),
    ],
)
def test_how_much_is_searched(counts, words, fits):
    assert run("fit", "counts.csv", "-o", "out.nc", "--rank", "2", "--random-seed", "1", "--quiet", *words) == 0
    found = nz.load("out.nc")
    fits = nz.Search().fits if fits == "as Python" else fits
    assert ("search" in _compat.group_names(found)) == (fits is not None)
    assert fits is None or _compat.group(found, "search").attrs["fits"] == fits


def test_a_search_of_less_than_nothing(counts, capsys):
    assert run("fit", "counts.csv", "-o", "out.nc", "--rank", "2", "--search", "-1") == 2
    assert capsys.readouterr().err == "nmf-zoo: --search: got -1; expected an integer >= 0\n"


def test_an_optimiser_that_stops_early_says_so(counts, capsys):
    words = ("--engine", "em", "--rank", "2", "--max-iter", "2", "--random-seed", "1", "--no-progressbar")
    assert run("fit", "counts.csv", "-o", "out.zarr", *words) == 0
    said = capsys.readouterr()
    assert said.err.startswith("nmf-zoo: warning: the best restart did not converge: stopped at max_iter")
    assert said.out.startswith("wrote out.zarr: 1 restart x 1 draw of gamma-nmf by em")
    assert run("fit", "counts.csv", "-o", "out.zarr", "--force", *words, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_files_that_go_with_the_data(counts):
    np.save("mask.npy", np.arange(40).reshape(5, 8) % 7 != 0)
    np.savetxt("exposure.csv", np.full((5, 8), 2.0), delimiter=",")
    np.savez("start.npz", W=np.ones((5, 2)), H=np.ones((2, 8)))
    Path("words.txt").write_text("\n".join(["ant", "bee", "cat", "dog", "eel"]))
    words = ("--mask", "mask.npy", "--exposure", "exposure.csv", "--vocab", "words.txt", "--initvals", "start.npz")
    assert run("fit", "counts.csv", "-o", "out.zarr", "--rank", "2", *words, *QUICK) == 0
    idata = nz.load("out.zarr")
    assert list(_compat.group(idata, "posterior")["feature"].values) == ["ant", "bee", "cat", "dog", "eel"]
    assert _compat.group(idata, "observed_data")["X"].size == np.sum(np.arange(40) % 7 != 0)


@pytest.mark.parametrize("option", ["--mask", "--exposure", "--background", "--sigma"])
def test_files_beside_the_data_have_its_labels(tmp_path, monkeypatch, capsys, option):
    """Other files in another order are refused, as tables in Python are; labels that are numbers from 0 say nothing."""
    monkeypatch.chdir(tmp_path)
    cells = [f"cell {n}" for n in range(8)]
    table = pd.DataFrame(np.arange(1, 41).reshape(5, 8), index=list("abcde"), columns=cells)
    other = pd.DataFrame(np.arange(40).reshape(5, 8) % 7 != 0, index=list("abcde"), columns=cells).astype(int)
    other = other if option == "--mask" else other + 1
    tables = {"x": table, "same": other, "rows": other[::-1], "columns": other.loc[:, ::-1]}
    tables["numbered"] = other.set_axis(range(8), axis=1).set_axis(range(5))
    if option != "--mask":
        tables["one"] = other.iloc[:1].set_axis(["depth"])
    for name, values in tables.items():
        values.T.to_csv(f"{name}.csv")
    monkeypatch.setattr("nmf_zoo.fit", lambda model, **_: sys.exit(0))
    model = "normal-nmf" if option == "--sigma" else "gamma-nmf"
    words = ("fit", "x.csv", "--transpose", "-o", "out.nc", "--rank", "2", "--engine", "em", "--model", model)
    for name in tables.keys() - {"x", "rows", "columns"}:
        assert run(*words, option, f"{name}.csv") == 0
    for name, dim in {"rows": "feature", "columns": "obs"}.items():
        assert run(*words, option, f"{name}.csv") == 2
        assert f"{option}: got labels of '{dim}' that differ from X's; expected X's" in capsys.readouterr().err


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("option", ["--exposure", "--background"])
def test_a_pair_of_features_and_samples(counts, option, order, monkeypatch):
    of_features, of_samples = np.arange(1.0, 6.0)[:, None], np.arange(1.0, 9.0)[None]
    np.savetxt("features.csv", of_features, delimiter=",")
    np.save("samples.npy", of_samples)
    pair, models = ["features.csv", "samples.npy"][::order], []
    monkeypatch.setattr("nmf_zoo.fit", lambda model, **_: models.append(model) or sys.exit(0))
    words = (option, pair[0], option, pair[1])
    assert run("fit", "counts.csv", "-o", "out.nc", "--rank", "2", "--engine", "em", *words) == 0
    structure = nz.read(models[0])
    table = structure.exposure_table() if option == "--exposure" else structure.background_table()
    np.testing.assert_array_equal(table, of_features * of_samples)


def test_pairs_that_are_none(counts, capsys):
    np.save("table.npy", np.ones((5, 8)))
    np.save("row.npy", np.ones((1, 8)))
    for given, said in (
        (
            ["table.npy", "row.npy"],
            "--exposure: got table.npy of shape (5, 8) and row.npy of shape (1, 8); expected a n",
        ),
        (
            ["row.npy", "row.npy"],
            "--exposure: got row.npy of shape (1, 8) and row.npy of shape (1, 8); expected a number",
        ),
        (["2.0", "row.npy"], "--exposure: got '2.0' and 'row.npy'; expected a number, a file, or a file of one column"),
        (["row.npy"] * 3, "--exposure: got 'row.npy' and 'row.npy' and 'row.npy'; expected a number"),
        (["none.npy", "row.npy"], "none.npy"),
    ):
        words = [word for path in given for word in ("--exposure", path)]
        assert run("fit", "counts.csv", "-o", "out.nc", "--rank", "2", *words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--shape", "1x5"), ("--kind", "trace"), ("--kind", "activations")])
def test_plot(counts, words):
    pytest.importorskip("matplotlib")
    assert run("fit", "counts.csv", "-o", "out.zarr", "--rank", "2", *QUICK) == 0
    assert run("plot", "out.zarr", "-o", "out.png", *words) == 0
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert run("plot", "out.zarr", "-o", "out.png", *words) == 2
    assert run("plot", "out.zarr", "-o", "wrong.png", "--shape", "3x3") == 2


def test_plot_of_many_features(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    model = nz.gamma_nmf(np.random.default_rng(1).poisson(3.0, (150, 6)), 3)
    nz.save(nz.fit(model=model, engine="em", max_iter=5, quiet=True, random_seed=1), "out.zarr")
    assert run("plot", "out.zarr", "-o", "out.svg") == 0


def test_a_run_ends_when_its_time_is_over(counts, capsys):
    pytest.importorskip("h5py")
    words = "fit counts.csv -o out.nc --rank 2 --engine em --max-iter 1000000 --tol 0 --random-seed 1 --no-progressbar"
    assert run(*words.split(), "--max-seconds", "0.2", "--checkpoint", "half") == 0
    ending = "s, when --max-seconds were over; the same command with --force goes on from half"
    assert capsys.readouterr().out.strip().endswith(ending)
    assert nz.load("out.nc").attrs["status"] == "max_seconds reached: the same call goes on from half"


@pytest.mark.parametrize("engine", ["em", "vb", "gibbs"])
def test_powers(tmp_path, monkeypatch, engine, capsys):
    """A spectrogram as text: frequencies in its rows, times in its header."""
    monkeypatch.chdir(tmp_path)
    power = np.random.default_rng(1).exponential(1.0, (4, 6))
    lines = [",".join(["Hz", *(f"{0.016 * n:g}s" for n in range(6))])]
    lines += [",".join([f"{62.5 * f}", *map(str, power[f])]) for f in range(4)]
    Path("power.csv").write_text("\n".join(lines))
    words = ["fit", "power.csv", "--row-labels", "yes", "--model", "is-nmf", "--rank", "2", "--engine", engine]
    words += ["-o", "out.zarr", "--quiet"]
    run_length = ["--draws", "5", "--tune", "5"] if engine == "gibbs" else ["--max-iter", "5"]
    assert run(*words, "--alpha-h", "2,3", "--alpha-w", "2", *run_length) == 0
    posterior = _compat.group(nz.load("out.zarr"), "posterior")
    assert list(posterior["feature"].values) == ["0.0", "62.5", "125.0", "187.5"]
    assert posterior["H"].dims[2:] == ("component", "obs")
    assert run(*words, "--force", "--beta-w", "2") == 2
    assert "--beta-w: got a scale without a shape; expected --alpha-w as well" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.npy", "x.npz"])
def test_simulate_writes_what_fit_reads(tmp_path, monkeypatch, name):
    from nmf_zoo.interfaces.tables import read_matrix

    monkeypatch.chdir(tmp_path)
    words = ("--model", "gamma-nmf", "--shape", "4x6", "--rank", "2", "--random-seed", "3")
    assert run("simulate", *words, "-o", name) == 0
    drawn = nz.simulate(nz.gamma_nmf(None, 2, shape=(4, 6)), random_seed=3)
    X = read_matrix(name, key="X" if name == "x.npz" else None).values
    np.testing.assert_array_equal(X, drawn["X"].values)
    words = ("--model", "is-nmf", "--alpha-w", "2", "--shape", "4x6", "--rank", "2", "--random-seed", "3", "--force")
    assert run("simulate", *words, "-o", name) == 0
    drawn = nz.simulate(nz.is_nmf(None, 2, shape=(4, 6), alpha_w=2.0), random_seed=3)
    X = read_matrix(name, key="X" if name == "x.npz" else None).values
    np.testing.assert_allclose(X, drawn["X"].values, rtol=1e-15)


def test_simulate_with_given_factors(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--model", "gap", "--shape", "4x6", "--rank", "2", "-o", "x.npy")
    assert run("simulate", *words) == 2
    assert "W" in capsys.readouterr().err
    np.savez("given.npz", W=np.ones((4, 2)))
    assert run("simulate", *words, "--given", "given.npz") == 0


def test_lists(capsys):
    assert run("models") == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()[::2]] == list(catalogue.models())  # and no word runs into it
    assert "--alpha-h" in said
    assert run("engines") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in [*catalogue.models(), *catalogue.engines()])


def test_the_table_says_what_depends_on_the_data(capsys):
    assert run("engines") == 0
    said = capsys.readouterr().out
    line, of_others = (line for line in said.splitlines() if line.startswith("gap "))
    notes = {line.split(". ")[0]: line.split(". ", 1)[1] for line in said.splitlines() if ". " in line[:4]}
    answers = re.findall(r"(yes|no)(?: *\((\d+)\))?", line)
    assert [word for word, _ in answers] == ["yes", "no", "yes", "yes", "no", "no", "no", "no", "yes"]
    assert answers[3] == answers[8]  # Gibbs and NUTS
    assert notes[answers[3][1]].startswith("not for every X, e.g. of 5 features x 2 samples: W has no prior")
    (note,) = (
        line.split(".")[0] for line in said.splitlines() if "no: W has no prior, so that p(X) is known up" in line
    )
    assert of_others.split()[1:] == ["yes", *("no", f"({note})") * 4]
    assert "online_em (stream)" in said


def test_the_table_of_the_guide_is_the_registry_s(capsys):
    assert run("engines", "--markdown") == 0
    text = (ROOT / "docs" / "guide" / "engines.md").read_text(encoding="utf-8")
    inside = text.partition("<!-- engines: nmf-zoo engines --markdown -->")[2].partition("<!-- end -->")[0]
    assert inside.strip() == capsys.readouterr().out.strip()


# -- the shell's own words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "tune: got -1; expected an integer >= 0; e.g. tune=1",
            "--tune: got -1; expected an integer >= 0; e.g. --tune 1",
        ),
        ("Draw longer (tune=, draws=), or look", "Draw longer (--tune, --draws), or look"),
        ("X: got a; expected b; use mask= or NaN", "counts.csv: got a; expected b; use --mask or NaN"),
        ("X: 1 feature has\n  no cell", "counts.csv: 1 feature has no cell"),
        (
            "no; engines that can: nz.fit(engine='em'), nz.sample(engine='nuts')",
            "no; engines that can: --engine em, --engine nuts",
        ),
        ("e.g. engine=nz.SMC(particles=2000)", "e.g. --particles 2000"),
        ("Take more particles (engine=nz.SMC(particles=)).", "Take more particles (--particles)."),
        ("tune=3.csv: got no such file; expected a file", "tune=3.csv: got no such file; expected a file"),
        ("a.csv, line 2: got 'tune=1'; expected a number", "a.csv, line 2: got 'tune=1'; expected a number"),
        ("use nz.Holdout(engine='em') or wait", "use --method holdout --engine em or wait"),
        ("sigma: got 1; expected 2; use sigma=nz.free()", "--sigma: got 1; expected 2; use --sigma free"),
        ("no: give alpha=nz.free(tie='obs'), or none", "no: give --alpha free:obs, or none"),
        ("row_labels: got 3; expected nothing", "--row-labels: got 3; expected nothing"),
        ("no; options follow a colon, e.g. gibbs:moves=scale", "no; options follow a colon, e.g. gibbs:moves=scale"),
    ],
)
def test_messages_speak_of_options_and_files(said, meant):
    assert shell_words(said, Path("counts.csv")) == meant


# -- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit none.csv --rank 2 -o x.zarr", "none.csv: got no such file"),
        ("fit none --rank 2 -o x.nc", "none: got no such file; expected a file or a folder that exists"),
        ("describe none.zarr", "none.zarr: got no such file"),
        ("fit counts.csv --rank 2 -o x.txt", "ends in .nc, .zarr"),
        ("fit counts.csv --rank 2 -o none/x.zarr", "a folder that exists"),
        ("fit counts.csv --rank 2 -o counts.csv/x.zarr", "a folder that exists"),
        ("fit counts.csv --rank 0 -o x.zarr", "rank: got 0"),
        ("fit counts.csv --rank -1 -o x.zarr", "rank"),
        ("fit counts.csv --rank x -o x.zarr", "--rank"),
        ("fit counts.csv -o x.zarr", "--rank"),
        ("fit counts.csv --rank 2 -o x.zarr --engine none", "--engine"),
        ("fit counts.csv --rank 2 -o x.zarr --model none", "--model"),
        ("fit counts.csv --rank 2 -o x.zarr --engine em --tune 5", "--tune: got an option that em (fit) doesn't have"),
        ("fit counts.csv --rank 2 -o x.zarr --inner 2", "--inner: got an option that gibbs doesn't have"),
        ("fit counts.csv --rank 2 -o x.zarr --sigma 2", "--sigma: got an option that gamma-nmf doesn't have"),
        ("fit counts.csv --rank 2 -o x.zarr --moves wrong", "--moves: got ['wrong']; expected a selection"),
        ("fit counts.csv --rank 2 -o x.zarr --draws many", "--draws: got 'many'; expected an integer"),
        ("fit counts.csv --rank 2 -o x.zarr --draws 0", "--draws: got 0; expected an integer >= 1; e.g. --draws 1"),
        ("fit counts.csv --rank 2 -o x.zarr --alpha-w wrong", "--alpha-w: got 'wrong'"),
        ("fit counts.csv --rank 2 -o x.zarr --alpha-w -1", "--alpha-w: got values"),
        ("fit counts.csv --rank 2 -o x.zarr --header maybe", "--header: got 'maybe'"),
        ("fit counts.csv --rank 2 -o x.zarr --model poisson-nmf", "engines that can: --engine em"),
        ("fit counts.csv --rank 2 -o x.zarr --labels short.txt", "short.txt: got 2 lines; expected 5"),
        ("fit negative.csv --rank 2 -o x.zarr", "negative.csv: got the negative cell -4.0 at feature 1 (g2), obs 0"),
        ("fit counts.csv --rank 2 -o x.zarr --mask half.npy", "half.npy: got the cell 0.5; expected 1 (observed) or 0"),
        ("fit counts.csv --rank 2 -o x.zarr --key X", "--key: got 'X'"),
        ("fit counts.csv --rank 2 -o x.zarr --exposure words.csv", "words.csv, line 2, column 3"),
        ("fit counts.csv --rank 2 -o x.zarr --exposure negative.csv", "--exposure: got shape (2, 2)"),
        ("fit words.csv --rank 2 -o x.zarr", "words.csv, line 2, column 3: got 'abc'"),
        ("summary none.zarr", "no such file"),
        ("summary counts.csv", "a result, .nc or .zarr"),
        ("summary folder.nc", "folder.nc: got a folder"),
        ("plot none.zarr -o x.png", "no such file"),
        ("plot none.zarr -o x.gif", "ends in .png"),
        ("simulate --model gamma-nmf --rank 2 --shape 4 -o x.npy", "--shape: got '4'"),
        ("simulate --model gamma-nmf --rank 2 --shape 4x5 --random-seed -4 -o x.npy", "--random-seed: got -4"),
        ("simulate --model gamma-nmf --rank 2 --shape 4x5 -o x.exe", "ends in .csv"),
        ("demo --folder counts.csv", "--folder"),
        ("nonsense", "nonsense"),
        ("fit counts.csv --rank 99999999999 -o x.zarr", "rank: got 99999999999"),
        (f"fit counts.csv --rank {'9' * 30} -o x.zarr", "rank: got an integer of 100 bits"),
        (f"fit counts.csv --rank 2 -o {'x' * 5000}.zarr", "File name too long"),
        ("fit counts.csv --rank 2 -o x.zarr --chains 100000000", "--chains: got 100000000 chains"),
        ("fit counts.csv --rank 2 -o x.zarr --engine em --restarts 1000000000", "--restarts: got 1000000000"),
        ("fit counts.csv --rank 2 -o x.zarr --draws 1000000000000 --keep moments", "--draws: got the statistics"),
        ("rank counts.csv --ranks 1:99999999999", "--ranks: got '1:99999999999'; expected at most 10,000 ranks"),
        ("simulate --model gamma-nmf --rank 2 --shape 2x1099511627776 -o x.npy", "shape: got (2, 1099511627776)"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(counts, words, said, capsys):
    Path("short.txt").write_text("a\nb\n")
    Path("negative.csv").write_text("g1,1,2\ng2,-4,3\n")
    Path("folder.nc").mkdir()
    np.save("half.npy", np.full((5, 8), 0.5))
    Path("words.csv").write_text("g1,1,2\ng2,3,abc\n")
    assert run(*words.split()) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1, message
    assert not list(Path().glob("x.*"))


def test_result_of_a_stream(counts, capsys):
    """It has no objective and does not converge."""
    stream = nz.stream(nz.gap(np.arange(20).reshape(4, 5), rank=2), random_seed=1)
    stream.update(np.arange(20).reshape(4, 5))
    nz.save(stream.result(), "stream.nc")
    assert run("summary", "stream.nc") == 0
    said = capsys.readouterr().out
    assert f"stream      {stream.columns_seen} columns seen" in said
    assert "verdict" not in said
    assert run("plot", "stream.nc", "-o", "out.png", "--kind", "objective") == 2
    assert "idata: got no objective, as of a stream; expected" in capsys.readouterr().err


def test_damaged_result(counts, capsys):
    pytest.importorskip("h5py")
    Path("x.nc").write_bytes(b"\x89HDF" + bytes(500))
    assert run("summary", "x.nc") == 2
    assert "x.nc: got something else, not netCDF 4" in capsys.readouterr().err


def test_existing_output_needs_force(counts, capsys):
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "2", *QUICK) == 0
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "3", *QUICK) == 2
    assert "--force" in capsys.readouterr().err
    assert _compat.group(nz.load("x.zarr"), "posterior").sizes["component"] == 2
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "3", "--force", *QUICK) == 0
    assert _compat.group(nz.load("x.zarr"), "posterior").sizes["component"] == 3
    Path("folder.zarr").mkdir()
    assert run("fit", "counts.csv", "-o", "folder.zarr", "--rank", "2", "--force", *QUICK) == 2


def test_the_output_is_checked_before_the_data_are_read(counts, capsys):
    assert run("fit", "none.csv", "-o", "none/x.zarr", "--rank", "2") == 2
    assert "a folder that exists" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="can be written to"):
        check_output(tmp_path / "x.npy", {".npy": ((), "")}, force=False)


def test_a_missing_writer_is_found_before_the_run(tmp_path):
    with pytest.raises(InputError, match=r"no_such_module installed; pip install it"):
        check_output(tmp_path / "x.nc", {".nc": (("no_such_module",), "it")}, force=False)


def test_options_that_an_engine_refuses_are_bad_input():
    with pytest.raises(InputError, match=r"^--target-accept: got 2.0; expected a number between 0 and 1$"):
        make_options(nz.NUTS, {"target_accept": 2.0})


def use_step(monkeypatch, step):
    from nmf_zoo.inference import registry
    from nmf_zoo.inference.counts.gibbs import ENGINE
    from tests.registered import with_changed

    step_by_step = with_changed(ENGINE, step=step(ENGINE.step), tune=None, run=None)
    monkeypatch.setattr(registry, "REGISTRY", step_by_step)


def test_a_failing_run_is_exit_code_1(counts, monkeypatch, capsys):
    def failing(step):
        def fail(*args):
            raise nz.RunFailed("gibbs: the numbers ran out")

        return fail

    use_step(monkeypatch, failing)
    words = ("fit", "counts.csv", "-o", "x.zarr", "--rank", "2", *QUICK)
    assert run(*words) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("x.zarr").exists()
    with pytest.raises(nz.RunFailed):
        main([*words, "--debug"])


def test_ctrl_c_saves_what_was_drawn(counts, monkeypatch, capsys):
    calls = iter(range(10**9))

    def stopping(step):
        def stop(*args):
            if next(calls) == 100:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(1e-3)
            return step(*args)

        return stop

    use_step(monkeypatch, stopping)
    words = ("--draws", "100000", "--tune", "5", "--chains", "1", "--no-progressbar", "--random-seed", "1")
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "2", *words) == 130
    said = capsys.readouterr().err
    assert "interrupted; x.zarr holds what was there: 1 chain x " in said
    posterior = _compat.group(nz.load("x.zarr"), "posterior")
    assert 50 < posterior.sizes["draw"] < 5000


def test_ctrl_c_before_the_first_draw(counts, monkeypatch, capsys):
    def stopping(step):
        def stop(*args):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.05)
            return step(*args)

        return stop

    use_step(monkeypatch, stopping)
    words = ("--tune", "1000", "--chains", "1", "--no-progressbar")
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "2", *words) == 130
    assert "outputs are whole or absent" in capsys.readouterr().err
    assert not Path("x.zarr").exists()


def test_sigterm_saves_like_ctrl_c(counts, monkeypatch, capsys):
    calls = iter(range(10**9))

    def stopping(step):
        def stop(*args):
            if next(calls) == 100:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
            time.sleep(1e-3)
            return step(*args)

        return stop

    use_step(monkeypatch, stopping)
    before = signal.getsignal(signal.SIGTERM)
    words = ("--draws", "100000", "--tune", "5", "--chains", "1", "--no-progressbar", "--random-seed", "1")
    assert run("fit", "counts.csv", "-o", "x.zarr", "--rank", "2", *words) == 143
    assert "interrupted; x.zarr holds what was there: 1 chain x " in capsys.readouterr().err
    assert 50 < _compat.group(nz.load("x.zarr"), "posterior").sizes["draw"] < 5000
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("error", [None, ImportError("what an import made of it")])
def test_a_signal_at_any_time(counts, monkeypatch, capsys, number, code, error):
    """While it imports, reads or draws a picture."""

    def stopped(*args, **kwargs):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise error or KeyboardInterrupt from None

    monkeypatch.setattr(nz, "simulate", stopped)
    words = ("simulate", "--model", "gamma-nmf", "--rank", "2", "--shape", "4x5", "-o", "x.npy")
    assert run(*words) == code
    assert capsys.readouterr().err == "nmf-zoo: interrupted; outputs are whole or absent\n"
    assert not Path("x.npy").exists()


def test_out_of_memory_is_one_line(counts, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise MemoryError("Unable to allocate 745. GiB")

    monkeypatch.setattr(nz, "simulate", fail)
    assert run("simulate", "--model", "gamma-nmf", "--rank", "2", "--shape", "4x5", "-o", "x.npy") == 1
    assert "out of memory: Unable to allocate 745. GiB; ask for a smaller rank" in capsys.readouterr().err


def test_priors_that_shrink(counts, capsys):
    assert (
        run("fit", "counts.csv", "--rank", "2", "--engine", "vb", "--prior", "ard:shape=4,scale=2", "-o", "r.nc") == 0
    )
    assert dict(_compat.group(nz.load("r.nc"), "posterior")["relevance"].sizes)["component"] == 2
    words = "ard:cells=half-normal,law=gamma"
    assert run("fit", "counts.csv", "--rank", "2", "--engine", "em", "--prior", words, "-o", "h.nc") == 0
    assert "relevance_precision" in _compat.group(nz.load("h.nc"), "posterior")
    capsys.readouterr()
    for text, said in (
        ("ard:cells=normal", "--prior: got cells='normal'; expected"),
        ("hfp", "--prior: got 'hfp'; expected hpf, ard, or with parameters, e.g. ard:shape=5,scale=2"),
        ("ard:shape=1", "--prior: got shape=1.0; expected a number > 2"),
        ("hpf:rate=1", "--prior: got 'hpf:rate=1'; expected parameters of hpf: shape, mean"),
        ("hpf:shape=1,shape=2", "--prior: got shape twice; expected each parameter once"),
    ):
        assert run("fit", "counts.csv", "--rank", "2", "--prior", text, "-o", "s.nc") == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--labels", "--mask", "--exposure", "--alpha-h", "--initvals"])
def test_a_name_that_is_too_long_for_the_system_is_bad_input(counts, option, capsys):
    assert run("fit", "counts.csv", "--rank", "2", option, "a" * 300 + ".nc", "-o", "r.nc") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 500


def test_recordings_and_stores_of_such_names_are_bad_input(counts, capsys):
    assert run("separate", "a" * 300 + ".wav", "--rank", "2", "-o", "out") == 2
    assert run("fit", "counts.csv", "--rank", "2", "-o", "a" * 300 + ".zarr") == 2
    assert run("fit", "counts.csv", "--rank", "2", "-o", "b" * 300 + "/x.zarr") == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_a_demo_with_a_bad_seed_makes_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--folder", "out", "--random-seed", "-1") == 2
    assert "--random-seed: got -1; expected a non-negative integer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_said_of_a_result_imports_neither_pymc_nor_pictures(counts):
    """Tables of the shell import no more than they are made of; nz.load makes what ArviZ 0.x has of its own."""
    assert run("fit", "counts.csv", "-o", "x.nc", "--rank", "2", *QUICK) == 0
    code = (
        "import sys, nmf_zoo as nz\nfrom nmf_zoo.interfaces import cli\n"
        "assert cli.main(['summary', 'x.nc']) == 0\nprint('by summary:', *sys.modules, 'by export:')\n"
        "assert cli.main(['export', 'x.nc', '-o', 'tables']) == 0\nprint(*sys.modules, 'by tables:')\n"
        "idata = nz.load('x.nc')\n"
        "nz.top_features(idata); nz.summarise(idata); nz.summarise_components(nz.align(idata))\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    by_summary, rest = done.stdout.partition("by summary:")[2].split("by export:")
    by_export, by_tables = rest.split("by tables:")
    assert not {"arviz", "arviz_stats", "matplotlib", "scipy.stats", "scipy.optimize"} & set(by_summary.split())
    assert not {"pymc", "pytensor", "arviz", "arviz_stats", "matplotlib"} & set(by_export.split())
    assert not {"pymc", "pytensor", *(("matplotlib",) if _compat.IS_TREE else ())} & set(by_tables.split())
