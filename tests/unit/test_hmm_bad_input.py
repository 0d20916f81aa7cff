"""What can't be right about a factorisation in time, one clear line each, and the edges that are right."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed, UnsupportedModel
from nmf_zoo.inference.registry import verdict
from nmf_zoo.interfaces.cli import main
from nmf_zoo.reading import read

F, K, T = 4, 2, 9
X = np.random.default_rng(0).poisson(3.0, (F, T)) + 1


def declare(chain="basis", x=X, rank=K, **arguments):
    return nz.hmm_nmf(x, rank, **{"chain": chain, "background": 0.1, **arguments})


def changed(row, col, value):
    out = X.astype(float)
    out[row, col] = value
    return out


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


# -- parameters of a chain -----------------------------------------------------------------------------------------

OUTSIDE = [0.0, 1.0, -0.1, 1.2, np.nan, np.inf, -np.inf, [0.5, 1.0], True]


@pytest.mark.parametrize("value", OUTSIDE, ids=str)
@pytest.mark.parametrize("name", ["p", "q", "initial", "alpha"])
def test_probabilities_outside_the_open_interval(name, value):
    given = {"p": 0.9, "q": 0.8} | {name: value}
    chain = nz.UnitChain(value) if name == "alpha" else nz.BasisChain(**given)
    with pytest.raises(InputError, match=rf"^{name}: got .*; expected numbers inside \(0, 1\)") as error:
        declare(chain)
    one_line(error)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"persistence": -1.0}, r"persistence: got .* inside \(-1, 1\)"),
        ({"persistence": 1.0}, r"persistence: got .* inside \(-1, 1\)"),
        ({"mean": np.inf}, "mean: got values that are NaN or infinite .*expected finite numbers"),
        ({"scale": 0.0}, r"scale: got .* inside \(0, inf\)"),
        ({"scale": np.nan}, "scale: got values that are NaN"),
        ({"initial": (0.0, -1.0)}, "initial_scale: got values from -1.0"),
        ({"initial": ("stationary", 1.0)}, "initial_mean: got 'stationary'"),
    ],
)
def test_parameters_of_a_log_normal_chain(arguments, expected):
    chain = nz.LogNormalAR(**({"mean": 0.0, "persistence": 0.5, "scale": 1.0} | arguments))
    with pytest.raises(InputError, match=expected) as error:
        declare(chain)
    one_line(error)


@pytest.mark.parametrize("initial", ["steady", 1.0, (1.0,), (1.0, 2.0, 3.0), None, np.array(0.5), {"mean": 0.0}])
def test_the_beginning_of_a_log_normal_chain_is_two_numbers(initial):
    with pytest.raises(InputError, match=r"initial: got .* expected two numbers \(mean, standard deviation\)"):
        nz.LogNormalAR(0.0, 0.5, 1.0, initial=initial)
    nz.LogNormalAR(0.0, 0.5, 1.0, initial=np.array([0.0, 1.0]))


@pytest.mark.parametrize("value", [[0.5] * 3, [0.5], [], np.full((K, 1), 0.5), np.full((K, T), 0.5)], ids=str)
def test_as_many_parameters_as_components(value):
    with pytest.raises(InputError, match=rf"p: got shape .*; expected \(\) or \({K},\): one number, or one for each"):
        declare(nz.BasisChain(value, 0.5))


def test_a_variable_with_another_number_of_components():
    with pm.Model(), pytest.raises(InputError, match=r"alpha: got shape \(3,\)"):
        declare(nz.UnitChain(pm.Beta("alpha", 1.0, 1.0, shape=3)))


@pytest.mark.parametrize(
    "value", ["often", ["a", "b"], 0.5 + 1j, {"p": 0.5}, None, object()], ids=lambda value: type(value).__name__
)
def test_parameters_that_are_no_numbers(value):
    with pytest.raises(InputError, match=r"^q: got") as error:
        declare(nz.BasisChain(0.9, value))
    one_line(error)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nz.BasisChain("0.9", 0.5),
            "got '0.9' outside a model; expected numbers, or a name inside",
        ),
        (lambda: nz.UnitChain("stationary"), "UnitChain: got 'stationary' outside a model"),
        (lambda: nz.BasisChain(0.9), r"BasisChain: missing .* 'q'; expected BasisChain\(p, q, initial\)"),
        (lambda: nz.BasisChain(0.9, 0.8, 0.5, 0.5), "BasisChain: too many positional arguments; expected BasisChain"),
        (lambda: nz.UnitChain(rate=0.9), r"UnitChain: .*; expected UnitChain\(alpha\)"),
    ],
)
def test_recipes_with_the_wrong_arguments(make, message):
    with pytest.raises((InputError, TypeError), match=message) as error:
        make()
    one_line(error)


@pytest.mark.parametrize(
    "chain",
    [None, 3, "Basis", "lognormal", "", {"p": 0.9}, nz.BasisChain, nz.free(), [nz.UnitChain(0.9)] * 2],
    ids=str,
)
def test_chains_that_are_none(chain):
    with pytest.raises(InputError, match=r"^chain: got .*; expected a chain such as nz.BasisChain") as error:
        declare(chain)
    one_line(error)


def test_a_distribution_is_no_recipe():
    with pytest.raises(InputError, match=r"chain: got .*; give it its parameters, no name, and no \.dist") as error:
        declare(nz.BasisChain.dist(0.9, 0.8, shape=(K, T)))
    one_line(error)


@pytest.mark.parametrize("tie", ["feature", "component", None])
def test_ties_that_a_chain_does_not_have(tie):
    with pytest.raises(InputError, match=r"p: got free.*; expected tie 'all', or 'obs'"):
        declare(nz.BasisChain(nz.free(tie=tie), 0.5))


# -- data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (-X, "X: got the negative cell"),
        (changed(1, 2, np.inf), "X: got the infinite cell inf at feature 1, obs 2"),
        (np.full((F, T), np.nan), "X: got only missing cells"),
        ("x", "X: got the text 'x'"),
        ([["a", "b"], ["c", "d"]], "X: got the non-numeric cell 'a'"),
        ([], "X: got 1 axes"),
        (np.zeros((0, T)), "X: got shape .*; expected at least one feature and one sample"),
        (np.zeros((F, 0)), "X: got shape .*; expected at least one feature and one sample"),
        (scipy.sparse.csr_array((F, 0)), "X: got shape|at least one"),
        (X[0], "X: got 1 axes"),
        (X + 1j, "X: got the non-numeric cell"),
        (X * 1e10, "X: got the count .*; expected counts up to"),
        (None, "X: got None without a size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_that_hold_no_series(x, message):
    with pytest.raises(InputError, match=message) as error:
        declare(x=x, background=None)
    one_line(error)


@pytest.mark.parametrize("rank", [0, -1, 2.0, "2", None, True])
def test_ranks(rank):
    with pytest.raises(InputError, match=r"rank: got .*; expected a positive integer"):
        declare(rank=rank)


def fit(model, **run):
    return nz.fit(
        model=model, **{"engine": "hmm_exact", "quiet": True, "random_seed": 1, "max_iter": 6, "tol": 0, **run}
    )


@pytest.mark.engines
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")  # the rank is above the one time
@pytest.mark.parametrize(
    "x",
    [X[:, :1], X[:1, :1], X[:1], np.zeros((F, T), int), changed(slice(None), slice(1, 8), np.nan), X + 0.5, X * 10**8],
    ids=["one time", "one cell", "one feature", "only zeros", "two times far apart", "fractions", "large counts"],
)
@pytest.mark.parametrize("chain", ["basis", nz.BasisChain(nz.free(), nz.free(tie="obs"), "stationary")], ids=str)
def test_edges_that_are_right(chain, x):
    """Exact EM takes them: all finite, and the log-likelihood never falls."""
    found = fit(declare(chain, x))
    for group in (found.posterior, found.fit):
        for name, values in group.data_vars.items():
            if np.issubdtype(values.dtype, np.floating):
                assert np.all(np.isfinite(values)), name
    objective = found.fit["objective"].to_numpy().ravel()
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:]))


def test_a_known_dictionary_that_can_not_make_the_counts():
    model = pm.do(declare(nz.BasisChain(0.9, 0.8), background=None), {"W": np.zeros((F, K))})
    with pytest.raises(InputError, match="X: got 36 positive cells, the first at feature 0, where W is 0"):
        fit(model)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"p": 2.0}, r"initvals\['p'\]: got values from 2.0"),
        ({"W": np.full((F, K), -1.0)}, r"initvals\['W'\]: got values that are negative"),
        ({"W": np.full((F, K), np.nan)}, r"initvals\['W'\]: got values that are negative, not finite"),
        ({"W": np.ones((K, F))}, r"initvals\['W'\]: got"),
        ({"z": 1.0}, "initvals: got"),
    ],
)
def test_starts(start, message):
    with pytest.raises(InputError, match=message) as error:
        fit(declare(), initvals=start)
    one_line(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [nz.ParticleEM(particles=20), nz.NUTS(sampler="pymc")], ids=["particle_em", "nuts"])
def test_a_mean_of_logarithms_may_start_below_zero(engine):
    with pm.Model() as model:
        mean, persistence = pm.Normal("mean", -1.0, 0.1), pm.Normal("persistence", 0.0, 0.1)
        nz.hmm_nmf(X, K, chain=nz.LogNormalAR(mean, persistence, 0.5), alpha_w=2.0, background=0.1)
    start = {"mean": np.asarray(-1.0), "persistence": np.asarray(-0.1)}
    run = {"model": model, "engine": engine, "initvals": start, "random_seed": 1, "quiet": True}
    if isinstance(engine, nz.NUTS):
        found = nz.sample(20, tune=20, chains=1, **run)
    else:
        found = nz.fit(max_iter=2, tol=0, draws=1, **run)
    assert found.posterior["mean"].to_numpy().max() < 0
    with pytest.raises(InputError, match=r"initvals\['mean'\]: got values that are not finite") as error:
        nz.sample(**(run | {"engine": "nuts", "initvals": {"mean": np.nan}}))
    one_line(error)


# -- too many states -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:rank. got")
@pytest.mark.parametrize("rank", [17, 24, 40])
def test_too_many_states_for_exact_sums(rank):
    model = declare(rank=rank)
    reason = verdict(read(model), "hmm_exact").reason
    assert f"{rank} components have 2^{rank} states" in reason
    assert "engine='particle_em'" in reason
    memory = float(reason.split("which take ")[1].split(" GB")[0]) * 1e9
    assert 8 * F * 2**rank < memory < 8 * (4 * F + 3 * T + rank + 20) * 2**rank  # two tables and the rows of a block
    with pytest.raises(UnsupportedModel, match=r"engine 'hmm_exact' can't run this model: .*'particle_em'"):
        fit(model)


@pytest.mark.filterwarnings("ignore:rank. got")
def test_many_features_need_memory_too():
    few, many = (declare(x=np.ones((n, 20), int), rank=16) for n in (4, 3000))
    assert verdict(read(few), "hmm_exact")
    assert "GB" in verdict(read(many), "hmm_exact").reason


# -- streams -------------------------------------------------------------------------------------------------------

FREE = nz.BasisChain(nz.free(), nz.free())


def stream(chain=FREE, rank=K, **arguments):
    return nz.stream(declare(chain, None, rank, shape=(F, 1)), random_seed=1, **arguments)


@pytest.mark.engines
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X + 0.5, "x: got the non-integer cell 3.5 at feature 0, obs 0"),
        (-X, "x: got the negative cell"),
        (changed(0, 0, np.inf), "x: got the infinite cell"),
        ("x", "x: got 'x'; expected one column"),
        (None, "x: got None; expected one column"),
        (np.zeros((F, 0)), r"x: got shape \(4, 0\)"),
        (X[:3], "x: got 3 features; expected 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_that_no_stream_takes(x, message):
    s = stream()
    with pytest.raises(InputError, match=message) as error:
        s.update(x)
    one_line(error)
    s.update(X)
    assert s.columns_seen == T


@pytest.mark.parametrize("x", [X[:, :1], X[:, 0], np.full((F, T), np.nan), changed(0, 3, np.nan)])
def test_columns_that_a_stream_takes(x):
    s = stream()
    s.update(x)
    result = s.result()
    assert all(np.all(np.isfinite(values)) for values in result.posterior.data_vars.values())


def test_a_stream_of_too_many_states():
    with pytest.raises(UnsupportedModel, match=r"30 components have 2\^30 states"):
        stream(rank=30, engine=nz.ChainOnlineEM())


BAD_STEPS = [
    {"exponent": 0.5},
    {"exponent": 1.1},
    {"exponent": "fast"},
    {"exponent": np.nan},
    {"exponent": True},
    {"exponent": np.array([0.6, 0.7])},
    {"burn_in": 0},
    {"burn_in": 2.5},
    {"burn_in": None},
    {"burn_in": False},
    {"batch": 0},
    {"batch": "all"},
]


@pytest.mark.parametrize("option", BAD_STEPS, ids=str)
@pytest.mark.parametrize("kind", [nz.ChainOnlineEM, nz.ParticleOnlineEM])
def test_steps(kind, option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"^{name}: got .*; expected"):
        kind(**option)


@pytest.mark.parametrize("engine", ["hmm_exact", nz.Gibbs(), 3, None], ids=str)
def test_engines_that_are_no_streams(engine):
    with pytest.raises(InputError, match=r"engine: got .*; expected one of \['online_em'\]"):
        stream(engine=engine)


# -- particles -----------------------------------------------------------------------------------------------------

CHAINS = {
    "basis": nz.BasisChain(nz.free(), nz.free()),
    "unit": nz.UnitChain(nz.free()),
    "log-normal": nz.LogNormalAR(0.0, nz.free(), 1.0),
}
EDGES = {
    "one time": X[:, :1],
    "one cell": X[:1, :1],
    "only zeros": np.zeros((F, T), int),
    "missing times": changed(slice(None), slice(1, 8), np.nan),
    "large counts": X * 10**8,
}


def all_are_finite(idata):
    return all(np.all(np.isfinite(values)) for values in idata.posterior.data_vars.values())


@pytest.mark.engines
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", CHAINS)
def test_particles_at_the_edges(name, edge):
    x = EDGES[edge]
    few = nz.ParticleEM(particles=20, repeats=2)
    assert all_are_finite(fit(declare(CHAINS[name], x), engine=few, max_iter=3, tol=1e-6, draws=5))
    stream = nz.stream(
        declare(CHAINS[name], None, shape=(len(x), 1)), engine=nz.ParticleOnlineEM(particles=20, burn_in=2)
    )
    stream.update(x)
    assert all_are_finite(stream.result())
    drawn = nz.sample(
        3,
        model=declare(CHAINS[name], x, alpha_w=1.0),
        engine=nz.ParticleGibbs(particles=5),
        tune=3,
        chains=1,
        quiet=True,
    )
    assert all_are_finite(drawn)


@pytest.mark.parametrize("name", CHAINS)
def test_fractions_are_no_counts_where_counts_are_shared_out(name):
    assert all_are_finite(fit(declare(CHAINS[name], X + 0.5), engine="particle_em", max_iter=2, draws=5))
    with pytest.raises(UnsupportedModel, match=r"values that are not integers \(36 of them\), the first 3.5") as error:
        nz.sample(model=declare(CHAINS[name], X + 0.5, alpha_w=1.0), engine="particle_gibbs")
    one_line(error)
    stream = nz.stream(declare(CHAINS[name], None, shape=(F, 1)), engine=nz.ParticleOnlineEM())
    with pytest.raises(InputError, match=r"x: got the non-integer cell 3.5"):
        stream.update(X + 0.5)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["basis", "unit", "log-normal"])
def test_all_particles_at_zero_weight(name):
    """A clear end, never NaN: and the stream stays where it was."""
    free = declare(CHAINS[name], None, shape=(F, 1), background=None)
    stream = nz.stream(pm.do(free, {"W": np.zeros((F, K))}), engine=nz.ParticleOnlineEM(particles=20))
    stream.update(np.zeros((F, 2)))
    with pytest.raises(
        RunFailed, match=r"no particle can make the counts of column 2: give the model a background"
    ) as e:
        stream.update(X)
    one_line(e)
    assert stream.columns_seen == 2
    assert all_are_finite(stream.result())


@pytest.mark.parametrize(
    "option",
    [
        *({"particles": value} for value in (1, 0, -5, 2.5, "many", None, True, 10**9)),
        *({"proposal": value} for value in ("best", None, 1)),
        *({"resampling": value} for value in ("often", None)),
        *({"ess": value} for value in (-0.1, 1.1, np.nan, "half", None)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nz.ParticleEM, nz.ParticleOnlineEM, nz.ParticleGibbs])
def test_options_of_particles(kind, option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=rf"^{name}: got .*; expected") as error:
        kind(**option)
    one_line(error)


def test_more_particles_than_memory():
    reason = verdict(read(declare("unit")), "particle_em", nz.ParticleEM(particles=9_000_000)).reason
    assert "9000000 particles would take" in reason
    assert "take fewer" in reason


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", fmt="%d")
    return tmp_path


def fit_from_a_shell(*arguments):
    words = ["--model", "hmm-nmf", "--rank", "2", "--engine", "hmm_exact", "--quiet", "--max-iter", "2", "-o", "o.nc"]
    return main(["fit", "x.csv", *words, *arguments])


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("wavy", "--chain: got 'wavy'; expected basis, unit, log-normal"),
        ("", "--chain: got ''; expected basis"),
        ("basis:p=1.5", "p: got values from 1.5 to 1.5; expected numbers inside (0, 1)"),
        ("basis:p=abc", "--chain: got 'abc'; expected a number for p"),
        ("basis:p", "--chain: got ''; expected a number for p"),
        ("basis:p=0.9,p=0.8", "--chain: got p twice"),
        ("basis:rate=1", "expected parameters of basis: p, q, initial"),
        ("log-normal:scale=-1", "scale: got values from -1.0"),
        ("unit", "engine 'hmm_exact' can't run this model: H is a bounded chain"),
    ],
)
def test_command_line(folder, capsys, chain, message):
    assert fit_from_a_shell("--chain", chain) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_a_background_of_one_number(folder, capsys):
    pytest.importorskip("h5netcdf")
    assert fit_from_a_shell("--background", "0.1") == 0
    assert fit_from_a_shell("--background", "-1", "--force") == 2
    assert "background: got values from -1.0" in capsys.readouterr().err
    assert fit_from_a_shell("--background", "absent.csv", "--force") == 2
    assert "absent.csv: got no such file" in capsys.readouterr().err


def test_a_rank_above_the_table_is_said_once():
    with pytest.warns(NmfZooWarning, match="rank: got 5, above min"):
        declare(rank=5)
