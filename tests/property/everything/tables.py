"""Data as people hand them in, as lines of Python: every type, layout and container, legal and illegal ones."""

from __future__ import annotations

from dataclasses import dataclass, field

SMALL = (1, 1, 2, 2, 3, 4, 5, 7)
EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)  # of blocks, chunks and vectors
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64", "longdouble")
SPARSE = ("csr_array", "csc_array", "coo_array", "csr_matrix", "csc_matrix", "coo_matrix")

COUNTS = (
    "rng.poisson(3.0, {shape})",
    "rng.poisson(0.4, {shape})",
    "rng.poisson(60.0, {shape})",
    "rng.poisson(rng.gamma(0.1, 10.0, {shape}))",
    "np.ones({shape}, dtype=int)",
)
LARGE_COUNTS = (
    "rng.poisson(3.0, {shape}) * 10**6",
    "rng.integers(0, 2**31, {shape})",
    "rng.choice([0, 1, 2**31 - 1], {shape})",
    "np.full({shape}, 2**31 - 1)",
    "rng.integers(0, 2**53, {shape})",
    "rng.integers(0, 2**64, {shape}, dtype=np.uint64)",
)
REALS = (
    "rng.gamma(1.0, 1.0, {shape})",
    "rng.gamma(0.05, 1.0, {shape})",
    "rng.gamma(5.0, 1e12, {shape})",
    "rng.gamma(5.0, 1e-12, {shape})",
    "rng.gamma(1.0, 10.0 ** rng.uniform(-12, 12, {shape}))",
    "rng.exponential(1.0, {shape}) + 0.5",
    "np.full({shape}, 0.1)",
)
EXTREME = (
    "rng.gamma(5.0, 1e-200, {shape})",
    "rng.gamma(5.0, 1e100, {shape})",
    "np.full({shape}, 5e-324)",
    "rng.choice([0.0, 1e-300, 1.0, 1e150], {shape})",
)
ILLEGAL = (
    "X = X.astype(float); X[0, 0] = -1",
    "X = X.astype(float); X[0, 0] = np.inf",
    "X = X.astype(float); X[0, 0] = -np.inf",
    "X = X.astype(object); X[0, 0] = 'many'",
    "X = X.astype(complex)",
    "X = X.astype(str)",
    "X = np.zeros(X.shape, dtype='datetime64[s]')",
    "X = X[0]",
    "X = X[None]",
    "X = X[:0]",
    "X = X[:, :0]",
    "X = X[0, 0]",
    "X = [[1, 2], [3]]",
    "X = 'table'",
    "X = {'a': 1}",
    "X = np.full(X.shape, np.nan)",
    "X = np.ma.masked_array(X, True)",
    "X = sp.csr_array(-1.0 - X)",
    "X = sp.csr_array(np.where(X >= 0, np.nan, 1.0))",
    "X = sp.csr_array(X.astype(complex) * 1j + 1j)",
)


@dataclass
class Table:
    """Lines that make X, the keywords that go with it, and what is known of it.

    ``is_sparse``, ``is_labelled`` : as handed in. ``is_empty`` : of zeros. ``illegal`` : why it must be refused, or ""
    """

    shape: tuple[int, int]
    lines: list[str]
    keywords: dict[str, str] = field(default_factory=dict)
    is_sparse: bool = False
    is_labelled: bool = False
    is_empty: bool = False
    illegal: str = ""


def shapes(pick, with_edges):
    """(F, N), small; with one long side now and then where engines are quick."""
    sides = [pick(SMALL), pick(SMALL)]
    if with_edges and pick.once_in(8):
        sides[pick((0, 1))] = pick(EDGES)
    return tuple(sides)


def tables(pick, kind, with_edges=False, is_illegal=False):
    """A table for a likelihood ("poisson", "overdispersed", "normal" or "exponential")."""
    shape = shapes(pick, with_edges)
    is_count = (kind == "poisson" and not pick.once_in(6)) or (kind == "overdispersed" and not pick.once_in(30))
    family = pick("aaaaaaaab" if is_count else "ccccccccbad")
    texts = {"a": COUNTS, "b": LARGE_COUNTS, "c": REALS, "d": EXTREME}[family]
    table = Table(shape, [f"X = {pick(texts).format(shape=shape)}"])
    empties(pick, table)
    if is_illegal:
        table.illegal = pick(ILLEGAL)
        table.lines += table.illegal.split("; ")
        return table
    types(pick, table, family)
    container = pick(["array"] * 4 + ["list", "frame", "dataarray", "nan", "masked", "mask", "sparse"])
    {
        "array": arrays,
        "list": lists,
        "frame": frames,
        "dataarray": dataarrays,
        "nan": gaps,
        "masked": masked_arrays,
        "mask": masks,
        "sparse": sparse_matrices,
    }[container](pick, table)
    return table


def empties(pick, table):
    """Rows, columns or everything without a positive cell."""
    wipes = {"rows": "X[0] = 0", "columns": "X[:, -1] = 0", "all": "X[:] = 0", "but one": "X[:] = 0; X[-1, 0] = 7"}
    chosen = pick([None] * 12 + ["rows", "columns", "all", "but one"])
    table.is_empty = chosen == "all"
    table.lines += wipes[chosen].split("; ") if chosen else []


def types(pick, table, family):
    """The dtype, among those that hold the numbers."""
    small = [*INTEGERS, *FLOATS, "object", "bool", ">i4", ">f8"]
    allowed = {"a": small, "b": ["float64", "uint64", "object", ">f8"], "c": ["longdouble", "object", ">f8"], "d": []}
    dtype = pick([None, None, *allowed[family]])
    if dtype:
        table.lines.append(f'X = X.astype("{dtype}")')


def arrays(pick, table):
    """Orders, strides, and arrays that may not be written."""
    layouts = (
        None,
        "X = np.asfortranarray(X)",
        "X = np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1]",
        "X = np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]",
        "X = np.ascontiguousarray(X.T).T",
        "X.setflags(write=False)",
    )
    layout = pick(layouts)
    table.lines += [layout] if layout else []


def lists(pick, table):
    table.lines.append("X = X.tolist()")


def frames(pick, table):
    F, N = table.shape
    rows = pick([f"[f'g{{i}}' for i in range({F})]", f"range(10, {10 + F})", f"['same'] * {F}"])
    cols = pick(
        [
            f"[f's{{i}}' for i in range({N})]",
            f"pd.date_range('2020-01-01', periods={N})",
            f"pd.MultiIndex.from_product([['a'], range({N})])",
            f"np.linspace(0, 1, {N})",
        ]
    )
    table.lines.append(f"X = pd.DataFrame(X, index={rows}, columns={cols})")
    table.is_labelled = True


def dataarrays(pick, table):
    dims = pick(['("feature", "obs")', '("gene", "cell")', '("Hz", "s")'])
    turned = ', dims=("obs", "feature")).T' if pick.once_in(4) else f", dims={dims})"
    table.lines.append(f"X = xr.DataArray(X.T{turned}" if turned.endswith(".T") else f"X = xr.DataArray(X{turned}")
    table.is_labelled = True


def gaps(pick, table):
    """Missing cells as NaN."""
    table.lines += ["X = np.array(X, dtype=float)", f"X[rng.random({table.shape}) < {pick(SHARES)}] = np.nan"]


def masked_arrays(pick, table):
    table.lines.append(f"X = np.ma.masked_array(X, rng.random({table.shape}) < {pick(SHARES)})")


SHARES = (0.0, 0.2, 0.6)


def masks(pick, table):
    mask = f"rng.random({table.shape}) >= {pick(SHARES)}"
    table.keywords["mask"] = pick([mask, mask, f"sp.csr_array({mask})"])


def sparse_matrices(pick, table):
    """Zeros that are stored, cells listed twice, long indices, and tables whose other cells are missing."""
    maker = pick(SPARSE)
    table.is_sparse = True
    table.lines.append(f"X = sp.{maker}(np.array(X, dtype=float))")
    change = pick([None, None, "zeros", "twice", "long"])
    if change == "zeros":
        table.lines.append("X.data[::2] = 0.0")
    elif change == "twice":
        table.lines.append("X = sp.coo_array(X)")
        table.lines.append(
            "X = sp.coo_array((np.tile(X.data, 2), (np.tile(X.coords[0], 2), np.tile(X.coords[1], 2))), shape=X.shape)"
        )
    elif change == "long" and maker.startswith("cs"):
        table.lines.append("X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)")
    missing = pick([None, None, "stored", "mask", "both"])
    if missing in ("stored", "both"):
        table.keywords["observed"] = '"stored"'
    if missing in ("mask", "both"):
        mask = f"rng.random({table.shape}) >= {pick(SHARES)}"
        table.keywords["mask"] = pick([mask, f"sp.csr_array({mask})", f"sp.coo_matrix({mask})"])
