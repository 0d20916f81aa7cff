"""What is said of a wrong name: the nearest that is known, everywhere in the same words."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnknownArgument, did_you_mean, not_one_of, number_of
from nmf_zoo.inference.registry import OURS
from nmf_zoo.interfaces.cli import main
from nmf_zoo.workbench.rank import METHODS

X = [[3, 0, 2], [1, 4, 2]]
PUBLIC = {name: getattr(nz, name) for name in nz.__all__}
HANDS_ON = nz.project  # what it does not know it gives to fit
CALLS = {
    *(entry.options for entry in [*OURS, *METHODS.values()]),
    *(nz.Search, nz.HPF, nz.ARD, nz.Batches, nz.PyMCSampler, nz.tl.nmf),
    *(value for value in PUBLIC.values() if inspect.isfunction(value) and value is not HANDS_ON),
}


def test_methods_say_it_too():
    stream = nz.stream(nz.gap(None, rank=1, shape=(2, 1), alpha_h=1.0, beta_h=1.0))
    calls = {
        "exposure": (lambda: stream.update([1, 2], exposures=1.0), "Stream.update"),
        "path": (lambda: stream.save(paths="x"), "Stream.save"),
        "": (lambda: stream.result(draws=3), "Stream.result"),
        "tune": (lambda: nz.PyMCSampler()(None, tunes=3), "PyMCSampler.__call__"),
        "mask": (lambda: nz.Samples(X, maks=None), "Samples"),
    }
    for near, (call, name) in calls.items():
        hint = f"; did you mean {near!r}" if near else ""
        with pytest.raises(UnknownArgument, match=f"an argument that {name} doesn't have.*{hint}"):
            call()
    assert pickle.loads(pickle.dumps(nz.Samples(X, 2.0))) == nz.Samples(X, exposure=2.0)


@pytest.mark.parametrize(
    ("word", "allowed", "hint"),
    [
        ("gibs", ["gibbs", "em"], "did you mean 'gibbs'?"),
        ("alpha", ["alpha_w", "alpha_h"], "did you mean 'alpha_w' or 'alpha_h'?"),
        ("Gamma-NMF", ["gamma_nmf", "gap"], "did you mean 'gamma_nmf'?"),
        ("--ranc", ["--rank", "--key"], "did you mean '--rank'?"),
        ("n_components", ["X", "rank"], "did you mean 'rank'?"),
        ("random_state", ["draws", "random_seed"], "did you mean 'random_seed'?"),
        ("random_state", ["draws"], ""),  # a synonym of nothing that is here
        ("nutpie", ["em", "vb"], ""),
        (3, ["em", "vb"], ""),
        ("obs", [None, "obs "], "did you mean 'obs '?"),
    ],
)
def test_the_nearest_name_is_said(word, allowed, hint):
    assert did_you_mean(word, allowed) == hint


def test_a_refusal_lists_what_is_allowed_and_ends_with_a_hint():
    near, far = (
        not_one_of("engine", "emm", ["em", "vb"], do="see there"),
        not_one_of("engine", 7, ["em"], do="see there"),
    )
    assert str(near) == "engine: got 'emm'; expected one of ['em', 'vb']; did you mean 'em'?"
    assert str(far) == "engine: got 7; expected one of ['em']; see there"


@pytest.mark.parametrize("call", sorted(CALLS, key=lambda call: call.__name__), ids=lambda call: call.__name__)
def test_an_unknown_argument_is_refused_by_name(call):
    names = [name for name in inspect.signature(call).parameters if len(name) > 3]
    for name in names[-1:]:
        wrong = name[:-1]
        with pytest.raises(
            TypeError, match=f"an argument that {call.__qualname__} doesn't have; .*did you mean .*{name!r}"
        ):
            call(**{wrong: 1})
    with pytest.raises(InputError, match=f"zzz: got an argument that {call.__qualname__} doesn't have"):
        call(zzz=1)


@pytest.mark.parametrize("name", ["report", "plot_components", "save", "separate"])
def test_names_that_are_checked_keep_their_signature(name):
    function = PUBLIC[name]
    assert next(iter(inspect.signature(function).parameters)) in ("idata", "recording")
    assert function.__name__ == name
    assert pickle.loads(pickle.dumps(function)) is function


def test_warnings_are_at_the_line_of_the_caller():
    """Also where a public function warns by way of others: here a recording is listened to."""
    loud = np.where(np.arange(4000) % 100 < 50, 1.0, -1.0)
    with pytest.warns(nz.NmfZooWarning, match="are clipped") as said:
        nz.separate(loud, 1, rate=8000, passes=1, random_seed=1, quiet=True)
    assert {one.filename for one in said} == {__file__}


def test_projection_hands_on_what_fit_takes():
    model, few = nz.gap(X, 1, alpha_h=2.0), {"engine": "em", "max_iter": 2, "tol": 0.0, "search": None, "quiet": True}
    fitted = nz.fit(model=model, random_seed=1, **few)
    assert nz.project(fitted, X, model=model, random_seed=7, **few).attrs["random_seed"] == "7"
    with pytest.raises(UnknownArgument, match=r"an argument that fit doesn't have; .*did you mean 'random_seed'"):
        nz.project(fitted, X, model=model, random_sed=7, **few)


@pytest.mark.parametrize(("verb", "option", "owner"), [("sample", "moves", "Gibbs"), ("fit", "accelerate", "EM")])
def test_options_of_engines_are_not_arguments_of_runs(verb, option, owner):
    said = (
        rf"an argument that {verb} doesn't have; .*it is an option of engines, e.g. engine=nz.{owner}\({option}=...\)"
    )
    with pytest.raises(UnknownArgument, match=said):
        getattr(nz, verb)(model=nz.gamma_nmf(X, 1), **{option: "scale"})


def test_a_class_of_options_is_no_options():
    with pytest.raises(InputError, match=r"engine: got <class .*VB'>; expected .*; write nz\.VB\(\)"):
        nz.fit(nz.gamma_nmf(X, 1), engine=nz.VB)


def test_a_run_without_a_model_says_so():
    for run in (nz.sample, nz.fit, nz.stream, nz.evidence, nz.compare_engines, lambda: nz.weigh_modes(None)):
        with pytest.raises(
            InputError, match=r"model: got none, and no model's context; expected a pm.Model; give it by"
        ):
            run()


def test_the_refusal_of_an_argument_comes_back_from_another_process():
    with pytest.raises(UnknownArgument) as caught:
        nz.EM(mod="log")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.do == "did you mean 'mode'?"


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: nz.sample(engine="gibss", model=nz.gamma_nmf(X, 1)), "gibbs"),
        (lambda: nz.fit(engine="hmm_exakt", model=nz.gamma_nmf(X, 1)), "hmm_exact"),
        (lambda: nz.stream(nz.gap(None, 1, shape=(2, 1)), engine="onlineem"), "online_em"),
        (lambda: nz.evidence(method="smcs", model=nz.gamma_nmf(X, 1)), "smc"),
        (lambda: nz.select_rank(lambda rank: nz.gamma_nmf(X, rank), [1], method="hold_out"), "holdout"),
        (lambda: nz.sample(keep="moment", model=nz.gamma_nmf(X, 1)), "moments"),
        (lambda: nz.sample(var_names=["W", "h"], model=nz.gamma_nmf(X, 1)), "H"),
        (lambda: nz.fit(initvals={"w": [[1], [1]]}, model=nz.gamma_nmf(X, 1)), "W"),
        (lambda: nz.EM(start="nndsv"), "nndsvd"),
        (lambda: nz.free(tie="componnt"), "component"),
        (lambda: nz.gamma_nmf(X, 1, prior="hfp"), "hpf"),
        (lambda: nz.hmm_nmf(X, 1, chain="bases"), "basis"),
        (lambda: nz.compile(["gibs"]), "gibbs"),
    ],
)
def test_words_that_are_wrong(call, near):
    with pytest.raises(InputError, match=f"did you mean {near!r}\\?"):
        call()


def test_a_number_and_its_word():
    said = [number_of(n, "block") for n in (0, 1, 2, 1200)]
    assert said == ["0 blocks", "1 block", "2 blocks", "1,200 blocks"]
    assert [number_of(n, "frequency", "frequencies") for n in (1, 3)] == ["1 frequency", "3 frequencies"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("convert x.csv x.zarr", "2 features x 1 sample, from 1 block\n"),
        ("describe x.csv", "2 features (rows) x 1 sample (columns)"),
        ("describe x.csv", "1 feature and 0 samples without a positive cell"),
    ],
)
def test_one_of_a_thing_has_no_s(line, said, capsys, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("3\n0\n")
    assert main(line.split()) == 0
    assert said in capsys.readouterr().out


def test_a_public_name_that_is_not_there():
    with pytest.raises(AttributeError, match=r"no attribute 'gama_nmf'; did you mean 'gamma_nmf'\?"):
        nz.gama_nmf  # noqa: B018


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("fitt x.csv", "fit"),
        ("fit x.csv -o y.nc --rank 1 --engine gibs", "gibbs"),
        ("fit x.csv -o y.nc --rank 1 --model gama-nmf", "gamma-nmf"),
        ("fit x.csv -o y.nc --rank 1 --drawz 3", "--draws"),
        ("summary x.nc --feature 3", "--features"),
    ],
)
def test_the_parser_says_it_too(line, near, capsys):
    with pytest.raises(SystemExit):
        main(line.split())
    assert f"did you mean {near!r}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ("fit x.csv -o y.nc --rank 1 --engine em --start nndsv", "nndsvd"),
        ("compare x.csv --rank 1 --engines gibs", "gibbs"),
        ("compare x.csv --rank 1 --engines gibbs:move=scale", "moves"),
        ("fit x.csv -o y.nc --rank 1 --model hmm-nmf --chain basiss", "basis"),
    ],
)
def test_the_command_line_says_it_of_values(options, near, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    assert main(options.split()) == 2
    assert f"did you mean {near!r}?" in capsys.readouterr().err
