"""Declarations as lines of Python: every model, its hyperparameters known, free or with priors, its offsets."""

from __future__ import annotations

from dataclasses import dataclass

from tests.property.everything.tables import Table, tables

KINDS = {
    "poisson_nmf": "poisson",
    "gamma_nmf": "poisson",
    "gap": "poisson",
    "hmm_nmf": "poisson",
    "normal_nmf": "normal",
    "is_nmf": "exponential",
    "negative_binomial_nmf": "overdispersed",
    "normal_nmf with errors": "normal",
}
NUMBERS = ("1.0", "0.5", "2.0", "0.1", "0.01", "30.0", "1e3", "1e-3")
WILD = ("1e-12", "1e12", "1e-8", "1e6")
ILLEGAL_NUMBERS = ("0.0", "-1.0", "np.nan", "np.inf", "'one'", "np.ones(97)", "1j", "[[1.0], [2.0, 3.0]]")
PRIORS = (  # the name, then the shape
    'pm.Gamma("{}", 2.0, 1.0{})',
    'pm.Exponential("{}", 1.0{})',
    'pm.LogNormal("{}", 0.0, 1.0{})',
    'pm.HalfNormal("{}", 2.0{})',
    'pm.InverseGamma("{}", 3.0, 2.0{})',
    'pm.Uniform("{}", 0.1, 5.0{})',
    'pm.HalfFlat("{}"{})',
    'pm.Normal("{}", 0.0, 1.0{})',
    'pm.Beta("{}", 2.0, 2.0{})',
    'pm.HalfCauchy("{}", 1.0{})',
)
PROBABILITIES = ("0.9", "0.5", "0.02", "0.999999", "1e-9")
REALS = ("0.0", "-1.0", "3.0", "30.0")
SYMMETRIC = ("0.5", "0.0", "-0.9", "0.999")
SPREADS = ("0.5", "1.0", "0.01", "5.0")


@dataclass(frozen=True)
class Suited:
    """What an engine is for.

    ``unknowns`` : forms of unknown hyperparameters ("free", "prior"); ``chains`` : names of chains; ``weights`` : W of
    a chain has a prior; ``with_edges`` : quick enough for tables with a long side
    """

    unknowns: tuple[str, ...] = ("free", "prior")
    chains: tuple[str, ...] = ("basis", "unit", "log-normal")
    weights: bool = False
    with_edges: bool = False


SUITED_TO_ALL = Suited()


@dataclass
class Model:
    """Lines that declare ``model``; ``illegal`` : why it must be refused, or ""."""

    name: str
    table: Table | None
    rank: int
    shape: tuple[int, int]
    lines: list[str]
    illegal: str = ""

    @property
    def kind(self) -> str:
        return KINDS[self.name]


def models(pick, names, suited=SUITED_TO_ALL, illegal="", data="always"):
    """A declaration.

    ``illegal`` : which part is: "table", "rank", "hyperparameter", "offset", "known", "keyword", or ""; ``data`` :
    "always", "mostly" or "never", where it comes later, in blocks of samples
    """
    name = pick(names)
    has_data = data == "always" or (data == "mostly" and not pick.once_in(3))
    table = tables(pick, KINDS[name], suited.with_edges, illegal == "table") if has_data else None
    shape = table.shape if table else (pick((1, 2, 3, 4, 5)), pick((1,) if data == "never" else (1, 2, 3, 4, 5)))
    rank = pick([1, 2, 2, 3, 4])
    if name == "is_nmf" and not pick.once_in(10):
        rank = min(rank, shape[0])
    keywords = dict(table.keywords) if table else {"shape": str(shape)}
    wrong = table.illegal if table else ""
    if table and table.is_empty and name != "hmm_nmf":  # in time there may be silence
        wrong = wrong or "X[:] = 0"
    keywords |= offsets(pick, shape, table is not None and table.is_sparse)
    known, n_new = known_components(pick, name, shape, rank) if pick.once_in(8) else ({}, rank)
    keywords |= known
    is_listed = table is not None and table.is_sparse
    keywords |= hyperparameters(pick, name, shape, rank, suited, n_new, is_listed)
    if known and "prior" in keywords and not pick.once_in(4):
        keywords["prior"] = "'hpf'"
    given_rank = str(rank)
    if illegal == "rank":
        given_rank = wrong = pick(["0", "-1", "1.5", "'two'", "None", "True", "[2]"])
    elif illegal == "offset":
        which = pick(["exposure", "background"])
        values = [*ILLEGAL_NUMBERS[1:], "rng.random((3, 4, 5))"] + (["0.0"] if which == "exposure" else [])
        keywords[which] = wrong = pick(values)
    elif illegal == "hyperparameter":
        own = own_hyperparameters(name)
        if own:
            chosen = pick(own)
            keywords[chosen] = wrong = pick([*ILLEGAL_NUMBERS, "pm.Gamma.dist(1.0, 1.0)"])
            keywords = without_other(keywords, chosen)
    elif illegal == "known":
        keywords["known"] = wrong = pick(illegal_components(shape, rank))
        if name == "gamma_nmf" and pick((False, True)):
            keywords["known"] = f"np.ones(({shape[0]}, 1))"
            keywords["known_strength"] = wrong = pick(["0.0", "-1.0", "np.nan", "np.inf", "'one'", "[1.0]"])
    elif illegal == "keyword":
        key, wrong = pick(
            [
                ("mask", f"[[True] * {shape[1] + 1}]"),
                ("mask", f"np.ones({shape})"),
                ("mask", f"np.zeros({shape}, dtype=bool)"),
                ("observed", "'all'"),
                ("coords", "{'feature': ['one label too many'] * 99}"),
                ("coords", "{'row': [1]}"),
                ("coords", "[1, 2]"),
                ("shape", "(1, 2, 3)"),
                ("shape", "(0, 5)"),
                ("shape", "'small'"),
            ]
        )
        keywords[key] = wrong
    elif pick.once_in(12):
        dim, size = pick([("component", rank), ("feature", shape[0]), ("obs", shape[1])])
        keywords["coords"] = f"{{{dim!r}: {[f'{dim[0]}{i}' for i in range(size)]}}}"
    given = ", ".join(["X" if table else "None", given_rank, *(f"{key}={value}" for key, value in keywords.items())])
    lines = [*(table.lines if table else []), "with pm.Model() as model:", f"    nz.{name.split()[0]}({given})"]
    if not illegal and pick.once_in(12):
        lines.append(known_factor(pick, shape, rank, name == "hmm_nmf", bool(known)))
    return Model(name, table, rank, shape, lines, wrong)


def known_components(pick, name, shape, rank):
    """``known=``, fixed or believed, and how many components of W have hyperparameters beside them."""
    count = pick(range(1, rank + 1))
    form = pick(
        ["rng.gamma(1.0, 1.0, {})", "np.ones({})", "1.0 * (rng.random({}) < 0.7) + np.eye({})", "1e-9 + rng.random({})"]
    )
    found = {"known": form.replace("{}", str((shape[0], count)), 1).replace("{}", f"{shape[0]}, {count}")}
    if name != "gamma_nmf" or not pick.once_in(3):
        return found, rank - count or rank
    return found | {"known_strength": pick(["50.0", "1.0", "0.3", "1e6"])}, rank - count or rank


def illegal_components(shape, rank):
    """What ``known=`` refuses."""
    sizes = [(shape[0] + 1, 1), (shape[0], rank + 1), (shape[0],), (shape[0], 0)]
    return [f"np.ones({size})" for size in sizes] + [
        *(f"{sign} * np.ones(({shape[0]}, 1))" for sign in ("0.0", "-1.0", "np.nan", "np.inf")),
        "'one'",
        "xr.Dataset()",
    ]


def known_factor(pick, shape, rank, is_chain, is_partly_known):
    """One of the factors known; zeros among it may make data impossible. A chain's H may be of integers."""
    sides = [("W", (shape[0], rank)), ("H", (rank, shape[1]))]
    side, size = pick(sides[1:] if is_partly_known and not is_chain else sides[: 1 if is_chain else 2])
    value = pick(["rng.gamma(1.0, 1.0, {})", "np.ones({})", "rng.poisson(0.7, {}).astype(float)"])
    return f'model = pm.do(model, {{"{side}": {value.format(size)}}})'


def offsets(pick, shape, is_sparse):
    """Exposure and background, of every broadcasting shape, a pair, and of sparse data also a sparse matrix."""
    found = {}
    for name in ("exposure", "background"):
        if not pick.once_in(4):
            continue
        numbers = ["1.0", "0.5", "1e12", "1e-12", "1e-3"] + (["0.0"] if name == "background" else [])
        scale = pick(numbers)
        of_features, of_samples = (shape[0], 1), (1, shape[1])
        form = pick(
            [None, (1, 1), (shape[1],), of_samples, of_features, shape, "pair", "sparse" if is_sparse else None]
        )
        if form == "pair":
            found[name] = f"({scale} * rng.gamma(2.0, 1.0, {of_features}), rng.gamma(2.0, 1.0, {of_samples}))"
        elif form == "sparse":
            found[name] = f"sp.csr_array({scale} * rng.gamma(2.0, 1.0, {shape}))"
        else:
            found[name] = scale if form is None else f"{scale} * rng.gamma(2.0, 1.0, {form})"
    return found


def own_hyperparameters(name):
    """The names that a model's hyperparameters have."""
    of_w, of_h = ["alpha_w", "beta_w", "mean_w"], ["alpha_h", "beta_h", "mean_h"]
    sigmas = ["sigma_w", "sigma_h"]
    return {
        "poisson_nmf": sigmas,
        "gamma_nmf": of_w + of_h,
        "gap": of_h,
        "hmm_nmf": of_w,
        "normal_nmf": ["sigma", *sigmas],
        "is_nmf": ["alpha_h", "beta_h", "alpha_w", "beta_w"],
        "negative_binomial_nmf": ["alpha", "alpha", *of_w, *of_h],
        "normal_nmf with errors": ["sigma"],
    }.get(name, [])


def without_other(keywords, chosen):
    """Rate and mean exclude each other, and W of a chain has a shape or nothing."""
    other = chosen.replace("beta", "mean") if chosen.startswith("beta") else chosen.replace("mean", "beta")
    return {key: value for key, value in keywords.items() if key == chosen or key != other}


def hyperparameters(pick, name, shape, rank, suited, n_new, is_sparse=False):
    """Of W those of ``n_new`` components."""
    (F, N), found = shape, {}
    of_w, of_h = (("feature", F), ("component", n_new)), (("component", rank), ("obs", N))
    if name in ("poisson_nmf", "normal_nmf"):
        if name == "normal_nmf" and pick((False, True)):
            found["sigma"] = values(pick, "sigma", (), suited.unknowns)
        for key, dims in (("sigma_w", of_w), ("sigma_h", of_h)):
            if pick.once_in(3):
                found[key] = values(pick, key, dims, suited.unknowns)
        return found
    if name == "normal_nmf with errors":
        found["sigma"] = deviations(pick, shape, suited.unknowns, is_sparse)
        return found | positive(pick, "w", of_w, suited) | positive(pick, "h", of_h, suited)
    if name == "is_nmf":
        for key, dims in (("alpha_h", of_h), ("beta_h", of_h), ("alpha_w", of_w), ("beta_w", of_w)):
            if pick((False, True)) and (key != "beta_w" or "alpha_w" in found or pick.once_in(10)):
                found[key] = values(pick, key, dims, suited.unknowns)
        return found
    if name == "hmm_nmf":
        found["chain"] = chains(pick, rank, suited)
    if name == "gamma_nmf" and pick.once_in(8):
        recipes = ["nz.HPF(shape=1e-2, mean=1e3)", "nz.ARD(shape=2.5, scale=1e-3)", "nz.ARD(law='gamma')"]
        of_half_normals = ["nz.ARD(cells='half-normal')", "nz.ARD(shape=1.5, cells='half-normal', law='gamma')"]
        found["prior"] = pick(["'hpf'", "'ard'", *recipes, *of_half_normals])
        if found["prior"] in of_half_normals and not pick.once_in(10):
            return found
    if name == "negative_binomial_nmf" and not pick.once_in(3):
        found["alpha"] = values(pick, "alpha", (("feature", F), ("obs", N)), suited.unknowns)
    sides = {"gamma_nmf": "wh", "gap": "h", "hmm_nmf": "w", "negative_binomial_nmf": "wh"}.get(name, "")
    for side in sides:
        dims = of_w if side == "w" else of_h
        if suited.weights or pick((False, True)):
            found[f"alpha_{side}"] = values(pick, f"alpha_{side}", dims, suited.unknowns)
        second = None if "prior" in found and not pick.once_in(10) else pick([None, "beta", "mean"])
        if second and (name != "hmm_nmf" or "alpha_w" in found or pick.once_in(10)):
            found[f"{second}_{side}"] = values(pick, f"{second}_{side}", dims, suited.unknowns)
    return found


def deviations(pick, shape, unknowns, is_sparse):
    """Errors of measurement: of every broadcasting shape, a pair, those of the stored cells, or unknown ones."""
    (F, N), scale = shape, pick(("1.0", "0.1", "1e-3", "1e3", "1e12", "1e-12"))
    form = pick(["values", "values", "cells", "cells", "pair", "nan", *(["sparse"] if is_sparse else [])])
    if form == "values":
        return values(pick, "sigma", (("feature", F), ("obs", N)), unknowns)
    if form == "pair":
        return f"({scale} * rng.gamma(2.0, 1.0, {(F, 1)}), rng.gamma(2.0, 1.0, {(1, N)}))"
    if form == "sparse":
        return f"abs(X) * {scale} + (X != 0) * {scale}"
    table = f"{scale} * rng.gamma(2.0, 1.0, {shape}) + 1e-200"
    return f"np.where(rng.random({shape}) < 0.2, np.nan, {table})" if form == "nan" else table


def positive(pick, side, dims, suited):
    """The prior of a factor under a normal likelihood: none, gamma, exponential, half-normal or truncated normal."""
    form, found = pick(("none", "exponential", "gamma", "half-normal", "truncated")), {}
    if form in ("exponential", "gamma"):
        found[f"{pick(('beta', 'mean'))}_{side}"] = values(pick, f"rate_{side}", dims, suited.unknowns)
    if form == "gamma":
        found[f"alpha_{side}"] = values(pick, f"alpha_{side}", dims, suited.unknowns)
    if form in ("half-normal", "truncated"):
        found[f"sigma_{side}"] = values(pick, f"sigma_{side}", dims, suited.unknowns)
    if form == "truncated":
        found[f"mu_{side}"] = pick(("0.0", "1.0", "-1.0", "-30.0", "1e3", f"rng.normal(size={dims[0][1], dims[1][1]})"))
    return found


def values(pick, name, dims, unknowns):
    """A number, an array, free, or a variable with a prior; ``dims`` : names and sizes of what it belongs to."""
    numbers = NUMBERS + (WILD if pick.once_in(10) else ())
    form = pick(["number"] * 6 + ["array", "array", *unknowns])
    sizes = [tuple(size for _, size in dims)]
    if dims:
        sizes += [(dims[0][1], 1), (1, dims[1][1]), (dims[1][1],), (1, 1), ()]
    if form == "number":
        return pick(numbers)
    if form == "free":
        ties = ["all"] + ([name for name, _ in dims] + [None] if dims else [])
        return f"nz.free(tie={pick(ties)!r})"
    size = pick(sizes)
    if form == "array":
        pair = [pick(numbers) for _ in range(2)]
        return f"rng.choice([{', '.join(pair)}], {size})"
    return pick(PRIORS).format(name, f", shape={size}" if size else "")


def chains(pick, rank, suited):
    name = pick(suited.chains)
    if "free" in suited.unknowns and pick.once_in(4):
        return repr(name)
    parts = {
        "basis": ("BasisChain", {"p": PROBABILITIES, "q": PROBABILITIES, "initial": (*PROBABILITIES, "'stationary'")}),
        "unit": ("UnitChain", {"alpha": PROBABILITIES}),
        "log-normal": ("LogNormalAR", {"mean": REALS, "persistence": SYMMETRIC, "scale": SPREADS}),
    }
    recipe, roles = parts[name]
    given = {role: chain_values(pick, role, numbers, rank, suited.unknowns) for role, numbers in roles.items()}
    if name == "log-normal" and pick((False, True)):
        given["initial"] = f"({pick(REALS)}, {pick(SPREADS)})"
    if name == "basis" and pick((False, True)):
        del given["initial"]
    return f"nz.{recipe}({', '.join(f'{role}={value}' for role, value in given.items())})"


def chain_values(pick, role, numbers, rank, unknowns):
    form = pick(["number"] * 4 + ["vector", *unknowns])
    if form == "number":
        return pick(numbers)
    if form == "vector":
        plain = [number for number in numbers if "'" not in number]
        return f"[{', '.join(pick(plain) for _ in range(rank))}]"
    if form == "free":
        return f"nz.free(tie={pick(['all', 'obs'])!r})"
    priors = {
        "mean": 'pm.Normal("{}", 0.0, 1.0{})',
        "scale": 'pm.HalfNormal("{}", 1.0{})',
        "persistence": 'pm.Uniform("{}", -1.0, 1.0{})',
    }
    size = pick(["", f", shape={rank}"])
    return priors.get(role, 'pm.Beta("{}", 2.0, 2.0{})').format(role, size)
