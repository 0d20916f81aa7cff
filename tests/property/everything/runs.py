"""Runs of engines as lines of Python: options drawn from their dataclasses, run arguments, and what is done after."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from nmf_zoo.inference.registry import is_maximised
from tests.property.everything.models import Model, Suited
from tests.registered import OPTIONS, STREAMS, VERBS

STREAM_OPTIONS = {engine.options.__name__: engine.options for engine in STREAMS}
ENGINES = (*OPTIONS, *STREAM_OPTIONS)

COUNT_MODELS = ("poisson_nmf", "gamma_nmf", "gap")
ALL = (*COUNT_MODELS, "normal_nmf", "is_nmf", "hmm_nmf")
OVERDISPERSED, MEASURED = ("negative_binomial_nmf",), ("normal_nmf with errors",)
DECLARATIONS = {  # that an engine is for; others are drawn now and then, to be refused
    "em": (*COUNT_MODELS, "normal_nmf", "is_nmf"),
    "vb": ("gamma_nmf", "gamma_nmf", "is_nmf"),
    "mcem": ("gap", "gap", "gamma_nmf"),
    "gibbs": ("gamma_nmf", "gamma_nmf", "gap", "is_nmf"),
    "hmm_exact": ("hmm_nmf",),
    "particle_em": ("hmm_nmf",),
    "particle_gibbs": ("hmm_nmf",),
    "smc": ("gamma_nmf",),
    "nuts": ("gamma_nmf", "gap", "is_nmf"),
    "OnlineEM": ("gap",),
    "SimulatedOnlineEM": ("is_nmf",),
    "ChainOnlineEM": ("hmm_nmf",),
    "ParticleOnlineEM": ("hmm_nmf",),
}
SUITED = {
    "em": Suited(unknowns=(), with_edges=True),
    "vb": Suited(unknowns=("free",), with_edges=True),
    "mcem": Suited(unknowns=("free",)),
    "gibbs": Suited(unknowns=("prior",)),
    "hmm_exact": Suited(unknowns=("free",), chains=("basis",)),
    "particle_em": Suited(unknowns=("free",)),
    "particle_gibbs": Suited(unknowns=("prior",), weights=True),
    "smc": Suited(unknowns=()),
    "nuts": Suited(unknowns=("prior",)),
    "OnlineEM": Suited(unknowns=(), with_edges=True),
    "SimulatedOnlineEM": Suited(unknowns=()),
    "ChainOnlineEM": Suited(unknowns=("free",), chains=("basis",)),
    "ParticleOnlineEM": Suited(unknowns=("free",)),
}
OF_KIND = {"update": ("exponential",), "inner": ("poisson",), "order": ("poisson",)}  # options for one likelihood
LIKELY = {  # whole and real numbers that an option is tried with, legal ones first; those of the run's cost are small
    int: ("5", "1", "2", "20", "3"),
    float: ("0.6", "1.0", "0.9", "0.75"),
}
ODD = ("-1", "0", "1.5", "True", "None", "'x'", "np.nan", "10**30")
OTHER = {  # options that are neither words nor numbers
    "moves": ("()", "('scale',)", "('shear',)", "'scale'", "('scale', 'shear')"),
    "temperatures": ("3", "2", "(1.0, 0.3, 0.0)", "1", "(0.5, 1.0)"),
    "smoothing": ("(1.0, 0.1)", "(0.0, 0.0)", "None"),
}
COSTLY = {"particles": ("20", "2", "50"), "sweeps": ("10", "4"), "repeats": ("1", "2"), "explore": ("0", "3")}
COSTLY |= {"keep": ("1", "2"), "first_frames": ("0", "5"), "start_columns": ("0", "2")}


SUITED_TO_MEASURED = SUITED | {"em": Suited(unknowns=("free",), with_edges=True)}
SUITED_TO_OVERDISPERSED = SUITED_TO_MEASURED | {"vb": Suited(unknowns=("free", "prior"), with_edges=True)}


MINIBATCHES = ("batch_size", "exponent", "offset", "inner")  # of VB, which takes them of data in blocks alone
SELDOM = {  # options that newer models are mostly refused with
    "overdispersed": ("inner", "order", "precision", "update", "temperatures", "trajectories"),
    "errors": ("inner", "order", "precision", "update", "temperatures", "trajectories"),
    "blocks": ("inner", "order", "precision", "update", "start"),
    "powers_in_blocks": ("inner", "order", "precision", "start"),
}


def options(pick, name, kind, is_illegal=False, seldom=()):
    """``nz.EM(mode="log")``: options as written."""
    chosen = OPTIONS.get(name) or STREAM_OPTIONS[name]
    assert is_dataclass(chosen)
    hints, given = get_type_hints(chosen), {}
    for field in fields(chosen):
        assert field.default is not MISSING or field.default_factory is not MISSING
        if name == "vb" and field.name in MINIBATCHES and seldom != SELDOM["blocks"]:
            continue
        if field.name in seldom and not pick.once_in(20):
            continue
        is_for = kind in OF_KIND.get(field.name, (kind,)) or pick.once_in(20)
        if field.name in COSTLY or (is_for and pick.once_in(3)):
            given[field.name] = option_values(pick, field.name, hints[field.name])
    if name in ("particle_gibbs", "particle_em", "ParticleOnlineEM"):
        given["particles"] = pick(COSTLY["particles"])
    if name == "smc":  # particles in chains of five
        given = {"particles": pick(["20", "10", "50"]), "ess": pick(["0.5", "0.8"])}
    names = {field.name for field in fields(chosen)}
    given = {key: value for key, value in given.items() if key in names}
    if is_illegal and given:
        key = pick(sorted(given))
        given[key] = pick(ODD)
    if name == "nuts":
        given["sampler"] = pick(["'pymc'", "'nutpie'"])
    if not given and name in OPTIONS and pick((False, True)):
        return repr(name)
    return f"nz.{chosen.__name__}({', '.join(f'{key}={value}' for key, value in given.items())})"


def option_values(pick, name, hint):
    if name in COSTLY:
        return pick(COSTLY[name])
    if name in OTHER:
        return pick(OTHER[name])
    kinds = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    values = []
    for one in kinds:
        if get_origin(one) is Literal:
            values += [repr(word) for word in get_args(one)]
        elif one is NoneType:
            values.append("None")
        elif one is bool:
            values += ["True", "False"]
        else:
            values += LIKELY[one]
    return pick(values)


def seeds(pick):
    return str(pick(range(100)))


def fits(pick):
    """Arguments of nz.fit."""
    given = {
        "max_iter": pick(["4", "1", "2", "15"]),
        "tol": pick(["0", "1e-4", "1e-9", "1e3"]),
        "restarts": pick(["1", "1", "1", "2", "3"]),
        "draws": pick(["3", "1"]),
    }
    if not pick.once_in(4):
        searches = ["nz.Search(fits=9)", "nz.Search(fits=7, starts=2)", "nz.Search(iterations=20)"]
        given["search"] = pick(["None", "None", "'auto'", *searches])
    return given


def samples(pick, name):
    """Arguments of nz.sample. Warm-ups of 100 sweeps and more try trajectories."""
    given = {
        "draws": pick(["4", "1", "2", "9"]),
        "tune": pick(["3", "0", "1", "120" if name == "gibbs" else "2"]),
        "chains": pick(["1", "1", "2", "3"]),
    }
    if name == "nuts":
        given |= {"draws": "5", "tune": "5", "chains": "1"}
    if name == "smc" and not pick.once_in(8):  # to which the others say nothing
        return given
    if pick.once_in(5):
        given["thin"] = pick(["1", "2", "5"])
    if not pick.once_in(4):
        given["start"] = pick(["'random'", "'random'", "'auto'", "nz.Search(fits=6)"])
    if pick.once_in(8):
        given["discard_tuned_samples"] = "False"
    if name != "nuts" and pick.once_in(8):
        given["keep"] = "'moments'"
    return given


def shared(pick):
    given = {"random_seed": seeds(pick), "quiet": "True", "cores": pick(["1", "1", "2"])}
    if pick.once_in(10):
        given["idata_kwargs"] = "{'log_likelihood': True}"
    return given


TOO_MANY = ("draws", "10**15")
ILLEGAL_RUNS = (
    ("max_iter", "0"),
    ("max_iter", "'all'"),
    ("tol", "-1.0"),
    ("tol", "np.nan"),
    ("restarts", "0"),
    ("search", "'all'"),
    ("start", "'nndsvd'"),
    ("draws", "0"),
    ("draws", "1.5"),
    TOO_MANY,
    ("tune", "-1"),
    ("chains", "0"),
    ("chains", "True"),
    ("thin", "0"),
    ("keep", "'all'"),
    ("cores", "0"),
    ("random_seed", "-1"),
    ("random_seed", "'one'"),
    ("var_names", "['Z']"),
    ("var_names", "'W'"),
    ("initvals", "{'W': 1.0}"),
    ("initvals", "{'Z': 1.0}"),
    ("initvals", "3"),
    ("idata_kwargs", "{'x': 1}"),
)
EVERYWHERE = ("var_names", "initvals", "idata_kwargs")


def starts(pick, model: Model):
    """``initvals``: any (W, H) >= 0 will do."""
    F, N = model.shape
    scale = pick(["1.0", "1e-8", "1e8"])
    form = pick(["rng.gamma(1.0, 1.0, {})", "rng.poisson(1.0, {}) + 0.0", "np.ones({})"])
    w, h = (form.format(size) for size in ((F, model.rank), (model.rank, N)))
    which = pick(["both", "W", "H"])
    return {
        "both": f"{{'W': {scale} * {w}, 'H': {h}}}",
        "W": f"{{'W': {scale} * {w}}}",
        "H": f"{{'H': {scale} * {h}}}",
    }[which]


def runs(pick, name, model: Model, engine, is_illegal=False):
    """Lines that run the engine and assign ``idata``, and which argument must be refused, or ""."""
    if name in STREAM_OPTIONS:
        return streams(pick, name, model, engine), ""
    given = fits(pick) if VERBS[name] == "fit" else samples(pick, name)
    given |= shared(pick)
    wrong = ""
    if is_illegal:
        wrongs = [pair for pair in ILLEGAL_RUNS if pair[0] in given or pair[0] in EVERYWHERE]
        if VERBS[name] == "fit" and not is_maximised(name):  # a point, however many draws are asked for
            wrongs.remove(TOO_MANY)
        key, given[key] = pick(wrongs)
        wrong = f"{key}={given[key]}"
    elif model.table and pick.once_in(8):
        given["initvals"] = starts(pick, model)
    call = f"nz.{VERBS[name]}(engine={engine}, {joined(given)}, model=model)"
    lines = [f"idata = {call}"]
    if not is_illegal and "initvals" not in given and pick.once_in(6):
        lines.append(f"check.same(idata, {call})")
    return lines, wrong


NEW_COUNTS = (
    "rng.poisson(3.0, {})",
    "rng.poisson(0.3, {})",
    "rng.gamma(1.0, 1.0, {})",
    "np.eye(*{}) * 1e6",
    "np.ones({}, dtype='int8')",
    "np.where(rng.random({}) < 0.4, np.nan, rng.poisson(3.0, {}))",
    "rng.integers(0, 2**31, {})",
)
NEW_POWERS = (
    "rng.exponential(3.0, {})",
    "rng.gamma(0.05, 1e12, {})",
    "rng.exponential(1e-12, {})",
    "np.where(rng.random({}) < 0.4, np.nan, rng.exponential(1.0, {}))",
    "rng.exponential(1.0, {}) * (rng.random({}) < 0.7)",
    "rng.exponential(1.0, {}) * (rng.random({}[1]) < 0.5)",
)
SPARSE_COUNTS = ("sp.csr_array({})", "sp.csc_matrix({})", "sp.coo_array({})")
ILLEGAL_DATA = (
    "-1 - X",
    "np.full(X.shape, np.inf)",
    "X[:-1]",
    "X.tolist()",
    "X[0]",
    "X[:, :0]",
    "None",
    "X.astype(str)",
    "nz.open_blocks(X, block=0)",
    "'no such file.npy'",
    "check.Blocks(X, [0])",
    "check.Blocks(X, [0, 0, X.shape[1]])",
    "check.Blocks(X, [0, X.shape[1]], np.zeros(X.shape[1]))",
)


def fits_of_blocks(pick, model: Model, engine, is_illegal=False):
    """Lines that fit a model to samples that come in blocks, of odd sizes too, and what in them must be refused."""
    F, N = model.shape[0], pick((1, 2, 3, 5, 7, 16, 17, 33))
    new = NEW_POWERS if model.kind == "exponential" else NEW_COUNTS
    lines = [f"X = {pick(new).replace('{}', str((F, N)))}"]
    if pick.once_in(4):
        lines.append(f"X = {pick(SPARSE_COUNTS).format('np.nan_to_num(X)')}")
    size, bounds = pick((1, 2, 3, 5, 16, 100)), sorted({0, N, *(pick(range(N)) for _ in range(2))})
    exposure = pick(("None", "None", f"rng.gamma(2.0, 1.0, {N})", f"np.full({N}, 1e12)", f"np.full({N}, 1e-12)"))
    data = pick(("X", f"nz.open_blocks(X, block={size})", f"check.Blocks(X, {bounds}, {exposure})"))
    wrong = ""
    if is_illegal:
        lines, data = lines[:1], pick(ILLEGAL_DATA)
        wrong = data
    given = {"max_iter": pick(("4", "1", "2", "15")), "tol": pick(("0", "1e-4", "1e3")), "random_seed": seeds(pick)}
    given |= {"quiet": "True", "cores": pick(("1", "1", "2"))}
    if pick.once_in(8):
        given["initvals"] = f"{{'W': rng.gamma(1.0, 1.0, {(F, model.rank)})}}"
    if pick.once_in(6):
        given["store"] = "folder / 'fit.zarr'"
    lines.append(f"data = {data}")
    call = f"nz.fit(engine={engine}, {joined(given)}, model=model, data=data)"
    lines += [f"idata = {call}", "check.of_blocks(idata, model, X)"]
    if "store" not in given and "initvals" not in given and pick.once_in(6):
        lines.append(f"check.same(idata, {call})")
    return lines, wrong


def after_blocks(pick, model: Model):
    """Lines that do something with such a result."""
    F = model.shape[0]
    return pick(
        [
            None,
            "nz.top_features(idata, 2)",
            "nz.unit_sum(idata)",
            "nz.summarise_components(idata)",
            "check.finite(nz.predict(idata, model, random_seed=1))",
            "nz.save(idata, folder / 'x.nc'); check.same(idata, nz.load(folder / 'x.nc'))",
            f"check.result(nz.project(idata, rng.poisson(2.0, ({F}, 2)), model=model, engine='em', max_iter=3, "
            "random_seed=1, quiet=True, cores=1), None)",
        ]
    )


def streams(pick, name, model: Model, engine):
    lines = [f"stream = nz.stream(model, engine={engine}, random_seed={seeds(pick)}, cores=1)"]
    size = f"({model.shape[0]}, {pick((1, 2, 3, 4))})"
    new = {
        "exponential": [f"rng.gamma(1.0, 1.0, {size})", f"np.zeros({size})", f"rng.gamma(0.05, 1e12, {size})"],
        "normal": [f"rng.gamma(1.0, 1.0, {size})"],
        "poisson": [
            f"rng.poisson(2.0, {size})",
            f"sp.csc_array(rng.poisson(1.0, {size}))",
            f"np.zeros({size})",
            f"np.where(rng.random({size}) < 0.5, rng.poisson(2.0, {size}), np.nan)",
            f"rng.poisson(9.0, {model.shape[0]}).astype('uint8')",
            f"rng.integers(0, 2**31, {size})",
        ],
    }[model.kind]
    own = pick(["", "", "", ", exposure=2.5", ", exposure=1e-12"])
    lines += [f"stream.update({pick(new)}{own})" for _ in range(pick((1, 2, 3)))]
    more = pick([None, None, "activations", "filtered", "saved"])
    if more == "activations":
        lines.append(f"check.activations(stream.activations({pick(new)}{own}))")
    elif more == "filtered":
        lines.append("check.finite(stream.filtered)")
    elif more == "saved":
        lines += [
            "stream.save(folder / 'stream')",
            "again = nz.resume_stream(folder / 'stream', cores=1)",
            f"new = {pick(new)}",
            f"stream.update(new{own}), again.update(new{own})",
            "check.same(stream.result(), again.result())",
        ]
    return [*lines, "idata = stream.result()"]


def afterwards(pick, name, model: Model):
    """Lines that do something with the result."""
    is_stream = name in STREAM_OPTIONS
    seed, (F, N) = seeds(pick), model.shape
    of_result = [
        "nz.top_features(idata, 2)",
        "nz.top_features(idata, 2, by='specificity')",
        "nz.unit_sum(idata)",
        "nz.save(idata, folder / 'x.nc'); check.same(idata, nz.load(folder / 'x.nc'))",
        "nz.describe(model)",
    ]
    new = {
        "poisson": [f"rng.poisson(2.0, ({F}, 2))", f"sp.csr_array(rng.poisson(1.0, ({F}, 2)))", f"np.zeros(({F}, 1))"],
        "normal": [f"rng.gamma(1.0, 1.0, ({F}, 2))"],
        "exponential": [f"rng.gamma(1.0, 1.0, ({F}, 2))"],
        "overdispersed": [f"rng.poisson(2.0, ({F}, 2))", f"np.zeros(({F}, 1))"],
    }[model.kind]
    by = {"em": "max_iter=3", "gibbs": "draws=2, tune=2, chains=1", "hmm_exact": "max_iter=3"}
    by |= {"particle_gibbs": "draws=2, tune=2, chains=1"}
    able = ("hmm_exact", "particle_gibbs") if model.name == "hmm_nmf" else ("em", "gibbs")
    engine = pick(able)
    offsets = "exposure=1.0, background=0.5, " if pick.once_in(3) else ""
    projected = (
        f"check.result(nz.project(idata, {pick(new)}, model=model, engine={engine!r}, {offsets}"
        f"{by[engine]}, random_seed=1, quiet=True, cores=1), None, model)"
    )
    if is_stream:
        return pick([None, *of_result[:4], projected, projected])
    of_draws = [
        f"check.finite(nz.predict(idata, model, random_seed={seed}))",
        f"check.finite(nz.predict(idata, model, random_seed={seed}, cells=([0], [{N - 1}])))",
        f"check.finite(nz.impute(idata, model, random_seed={seed}))",
        f"[check.finite(block) for block in nz.predict_blocks(idata, model, width=2, random_seed={seed})]",
        "check.log_likelihood(nz.log_likelihood(idata, model))",
        "check.log_likelihood(nz.log_likelihood(idata, model, per='cell'))",
        "nz.summarise(idata)",
        "nz.check_convergence(idata)",
        "nz.summarise_components(idata)",
        "nz.align(idata)",
        "nz.moments(idata)",
        "nz.moments(idata, pooled=True)",
        projected,
        projected,
        f"check.finite(nz.simulate(model, random_seed={seed}))",
        f"nz.evidence(model, 'bound', chains=1, random_seed={seed}, quiet=True, cores=1)",
        f"nz.evidence(model, nz.Holdout(engine='em', max_iter=3), chains=1, random_seed={seed}, quiet=True, cores=1)",
    ]
    return pick([None, *of_result, *of_draws, *of_draws])


def joined(given):
    return ", ".join(f"{key}={value}" for key, value in given.items())
