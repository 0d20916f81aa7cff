"""How kernels are compiled: once, the same bits either way; and kept, under names that no change survives."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import warnings
from importlib import import_module
from typing import NamedTuple
from unittest.mock import patch

import numba
import numpy as np
import pytest

from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.interfaces.cli import main
from nmf_zoo.kernels.compile import cache, chosen_by, is_tested, kernel
from nmf_zoo.kernels.compile.apart import address_of, call_at
from nmf_zoo.kernels.hmc import mass
from nmf_zoo.kernels.hmc.poisson_rows import FactorRows, curve_of
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.overdispersed.rows import DispersedRows
from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import child, fold, seed_key

INNER = "from nmf_zoo.kernels.compile import kernel\n\n\n@kernel\ndef add(x):\n    return x + {}\n"
OUTER = """
from nmf_zoo.kernels.compile import kernel
from {}_inner import add


@kernel
def twice(x):
    return 2 * add(x)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(term)``: a kernel 2 (x + term) anew, as another process would import it, its callee in another file."""
    monkeypatch.setenv("NMF_ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one time and size would be taken for one another
    (tmp_path / "outer.py").write_text(OUTER.format("our"))

    def made(term):
        write(tmp_path / "our_inner.py", INNER.format(term))
        write(tmp_path / "outer.py", OUTER.format("our"))
        for name in ("outer", "our_inner"):
            sys.modules.pop(name, None)
        for found in (cache.source_stamp, cache._text, cache._imported, import_module("importlib").invalidate_caches):
            getattr(found, "cache_clear", found)()
        return import_module("outer").twice

    yield made
    for name in ("outer", "our_inner"):
        sys.modules.pop(name, None)


def write(path, text):
    """Before this process began."""
    path.write_text(text)
    os.utime(path, (1e9, 1e9))


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "kernels").glob("*"))


def hits(made):
    return sum(made.stats.cache_hits.values())


# -- once --------------------------------------------------------------------------------------------------------


@kernel
def _half(x):
    return 0.5 * x


@kernel
def _quarter(x):
    return _half(_half(x))


@pytest.mark.skipif(not is_tested or numba.config.DISABLE_JIT, reason="another numba compiles its own way")
def test_a_kernel_that_only_kernels_call_gets_no_machine_code():
    _quarter._cache.flush()  # what an earlier run left is loaded, not compiled
    assert _quarter(2.0) == 0.5
    assert (len(_quarter.overloads), len(_half.overloads), len(_half._plain)) == (1, 0, 1)
    assert _half(2.0) == 1.0  # until Python calls it
    assert len(_half.overloads) == 1


@kernel
def _copied_curve(out, rows, block):
    copy_table(out, curve_of(rows, block))


@pytest.mark.skipif(not is_tested or numba.config.DISABLE_JIT, reason="another numba compiles its own way")
@pytest.mark.parametrize("made", [_copied_curve, mass._keep_known], ids=["a block's precisions", "known components"])
def test_rows_of_a_factor_are_handed_on_without_counting_references(made):
    """Else trajectories and masses are typed twice, in vain the first time, and count at each assignment."""
    tables = [np.ones((1, 3, 8))] * 3
    rows = FactorRows(*tables, np.ones((1, 8)), np.ones((1, 3, 8)), np.array([True, False, True]))
    out = np.zeros((3, 8))
    arguments = (out, rows, 0)
    assert made._part_compiler.plain(tuple(map(numba.typeof, arguments))) is not None
    made(*arguments)
    assert np.array_equal(out[1], np.ones(8))


@kernel
def _following(number):
    return number + 1


@pytest.mark.skipif(not is_tested or numba.config.DISABLE_JIT, reason="another numba compiles its own way")
@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_rests_while_a_kernel_is_compiled_and_is_as_it_was_after(is_on, monkeypatch):
    was_on, seen, compiler = gc.isenabled(), [], import_module("nmf_zoo.kernels.compile.once")._WholeCompiler
    compiled = compiler._without_counts

    def watched(*given, **how):
        seen.append(gc.isenabled())
        return compiled(*given, **how)

    monkeypatch.setattr(compiler, "_without_counts", watched)
    try:
        (gc.enable if is_on else gc.disable)()
        _following._cache.flush()
        _following(np.float64(1.0) if is_on else 1)  # of types of its own
        assert (seen, gc.isenabled()) == ([False], is_on)
    finally:
        (gc.enable if was_on else gc.disable)()


def test_compiled_code_of_others_calls_kernels():
    keys = [child(seed_key(1), i) for i in range(5)]

    @numba.njit
    def drawn(key):
        return draw_gamma(0.3, fold(key, 1))

    assert [drawn(key) for key in keys] == [draw_gamma(0.3, np.uint64(fold(key, 1))) for key in keys]


class Circle(NamedTuple):
    radius: float


class Rectangle(NamedTuple):
    width: float
    height: float


@kernel
def _area_of_circle(power, shape):
    return (3.0 * shape.radius * shape.radius) ** power


@kernel
def _area_of_rectangle(power, shape):
    return (shape.width * shape.height) ** power


@chosen_by("shape", {Circle: _area_of_circle, Rectangle: _area_of_rectangle})
def _area(power, shape):
    """The area to a power."""


@kernel
def _sum_of_areas(one, other):
    return _area(1, one) + _area(2, other)


def test_the_class_of_an_argument_chooses_a_kernel():
    assert (_area(1, Circle(2.0)), _area(2, Rectangle(2.0, 3.0))) == (12.0, 36.0)
    assert _sum_of_areas(Circle(2.0), Rectangle(2.0, 3.0)) == 48.0
    assert _sum_of_areas(Rectangle(2.0, 3.0), Rectangle(1.0, 2.0)) == 10.0
    assert _area.__doc__ == "The area to a power."


@pytest.mark.skipif(not is_tested or numba.config.DISABLE_JIT, reason="another numba compiles its own way")
def test_only_the_chosen_kernel_is_compiled():
    @kernel
    def alone(circle):
        return _area(1, circle)

    before = len(_area_of_rectangle._plain)
    assert alone(Circle(1.0)) == 3.0
    assert len(_area_of_rectangle._plain) == before
    assert not _area._plain


@kernel
def _scaled(shape, by):
    return by * shape.width, shape.height


@kernel
def _height_and_width(scaled, shape, by):
    width, height = call_at(scaled, (shape, by)) if by > 0.0 else (np.nan, np.nan)
    return height, width


SCALED = _scaled, (Rectangle(1.0, 2.0), 1.0), (1.0, 1.0)


def test_a_kernel_that_is_called_by_its_address_gives_what_it_gives():
    address = address_of(*SCALED)
    assert _height_and_width(address, Rectangle(2.0, 3.0), 4.0) == (3.0, 8.0)
    again = pickle.loads(pickle.dumps(address))  # an address is good in one process
    assert again == address != address_of(*SCALED, is_called=False)
    assert _height_and_width(again, Rectangle(2.0, 3.0), 4.0) == (3.0, 8.0)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_a_kernel_whose_address_nobody_calls_is_not_compiled():
    @kernel
    def alone(shape, by):
        return by * shape.width, shape.height

    address = address_of(alone, *SCALED[1:], is_called=False)
    assert np.isnan(_height_and_width(address, Rectangle(2.0, 3.0), 0.0)).all()
    assert (address.value, len(alone.overloads)) == (0, 0)
    address = address_of(alone, *SCALED[1:])
    assert _height_and_width(address, Rectangle(2.0, 3.0), 4.0) == (3.0, 8.0)
    assert len(getattr(alone, "_plain", ())) == 0  # and no part of its caller


@kernel
def _turned(shape, by):
    return shape.height, by * shape.width


def test_a_caller_is_compiled_once_for_all_kernels_that_take_the_same():
    @kernel
    def caller(called, shape):
        return call_at(called, (shape, 2.0))

    shape = Rectangle(2.0, 3.0)
    assert caller(address_of(*SCALED), shape) == (4.0, 3.0)
    assert caller(address_of(_turned, *SCALED[1:]), shape) == (3.0, 4.0)
    assert len(getattr(caller, "overloads", [0])) == 1


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_an_address_is_called_with_its_own_types_alone():
    with pytest.raises(numba.TypingError, match="Address"):
        _height_and_width(address_of(*SCALED), Circle(2.0), 4.0)
    with pytest.raises(TypeError, match=r"_scaled returns UniTuple\(float64 x 2\), not float64"):
        address_of(*SCALED[:2], 1.0)


DRAWS = """
import numba, numpy as np
{}
from nmf_zoo.kernels import compile
from nmf_zoo.kernels.counts.gibbs import GammaRow, draw_shear_step
from nmf_zoo.kernels.counts.newton import sum_logs
from nmf_zoo.kernels.powers.composite import InverseGammaRow
from nmf_zoo.kernels.random.draws import draw_gamma, draw_normal
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
keys = [child(seed_key(1), i) for i in range(50)]
values = np.array([draw_gamma(0.3, key) for key in keys])
ratios, shapes = np.linspace(-0.5, 0.5, 7), np.linspace(0.1, 3.0, 7)
rows = GammaRow(ratios, shapes, np.nan), InverseGammaRow(ratios, shapes, 0.1 * shapes)
steps = [draw_shear_step(-1.5, 1.5, one, other, 0.2, keys[0]) for one in rows for other in rows]
sums = sum_logs(values, values), draw_normal(keys[0])
print(compile.is_tested, *[number.hex() for number in [*steps, *sums]], values.tobytes().hex())
"""


@pytest.mark.skipif(not is_tested, reason="another numba compiles its own way")
def test_a_numba_that_was_not_tested_gives_the_same_bits(tmp_path):
    """Long: it compiles an engine twice."""
    environment, found = os.environ | {"NMF_ZOO_CACHE": str(tmp_path)}, []
    for version in (numba.__version__, "0.99.0"):
        command = [sys.executable, "-c", DRAWS.format(f"numba.__version__ = {version!r}")]
        found.append(
            subprocess.run(command, env=environment, check=True, text=True, capture_output=True).stdout.split()
        )
    assert [one.pop(0) for one in found] == ["True", "False"]
    assert found[0] == found[1]


# -- kept --------------------------------------------------------------------------------------------------------


def test_what_was_compiled_is_found_again(package, tmp_path):
    assert package(1)(2.0) == 6.0
    (file,) = kept(tmp_path)
    again = package(1)
    assert again(2.0) == 6.0
    assert hits(again) == 1
    assert kept(tmp_path) == [file]


def test_who_listens_is_told_what_is_compiled_and_not_what_is_found(package):
    heard = []
    with cache.when_compiling(heard.append):
        package(1)(2.0)
    assert heard == ["outer.twice"]
    with cache.when_compiling(heard.append):
        package(1)(2.0)
    package(3)(2.0)  # nobody listens any more
    assert heard == ["outer.twice"]


def test_an_edited_callee_in_another_file_is_seen(package, tmp_path):
    assert package(1)(2.0) == 6.0
    assert package(3)(2.0) == 10.0
    before = package(1)
    assert before(2.0) == 6.0
    assert hits(before) == 1  # and what was compiled before the edit is still there
    assert len(kept(tmp_path)) == 2


def test_a_file_that_was_written_since_we_started_is_not_trusted(package, tmp_path):
    made = package(1)
    os.utime(tmp_path / "our_inner.py")
    assert made(2.0) == 6.0
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "from nmf_zoo.kernels.random.draws import draw_gamma",
        "from nmf_zoo.kernels.random import (\n    gig,  # a word, another\n    draws,\n)",
        "import math, nmf_zoo.kernels.random.draws as ours",
        "    from ..random import draws",
        "from ..random.draws import draw_gamma",
    ],
)
def test_a_kernel_is_made_of_what_its_file_imports(line, tmp_path, monkeypatch):
    importer, draws = cache.ROOT / "kernels" / "counts" / "new.py", cache.ROOT / "kernels" / "random" / "draws.py"
    monkeypatch.setattr(cache, "_text", lambda path: line.encode() if path == importer else path.read_bytes())
    cache._imported.cache_clear()
    assert draws in cache._imported(importer)
    assert draws.with_name("keyed_rng.py") in cache._sources(importer)
    cache._imported.cache_clear()


def test_a_kernel_is_made_of_the_classes_that_choose_in_it_too():
    """What they choose stands beside them, in files that the kernel's own does not import."""
    rows = DispersedRows(*np.ones((6, 1)))
    kinds = (numba.typeof((rows, 1.0)), numba.typeof(1.0))
    found = {file.name for file in cache._files_of_classes(kinds)}
    assert found == {"rows.py"}


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: raw[:-1] + b"\0"])
def test_a_damaged_file_is_compiled_again(package, tmp_path, damage):
    package(1)(2.0)
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = package(1)
    assert again(2.0) == 6.0
    assert hits(again) == 0
    assert kept(tmp_path) == [file]
    assert len(file.read_bytes()) == pytest.approx(len(whole), rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        patch.object(cache.numba, "__version__", "0.99.0"),
        patch.object(cache.llvmlite, "__version__", "0.99.0"),
        patch.object(cache.numba.config, "BOUNDSCHECK", 1),
        patch("numba.core.codegen.JITCPUCodegen.magic_tuple", lambda self: ("x86_64", "generic", "")),
    ],
    ids=["numba", "llvm", "settings", "processor"],
)
def test_another_numba_or_processor_compiles_anew(package, tmp_path, change):
    package(1)(2.0)
    with change:
        other = package(1)
        assert other(2.0) == 6.0
        assert hits(other) == 0
    assert len(kept(tmp_path)) == 2


def test_tuples_of_two_classes_of_one_name_are_two_types(package, tmp_path):
    from collections import namedtuple

    made, classes = package(1), [namedtuple("Room", names) for names in ("a b", "b a")]
    paths = {made._cache._path((numba.typeof(cls(1, 2.0)),), made.targetctx.codegen()) for cls in classes}
    assert len(paths) == 2


def test_two_processes_at_once(package, tmp_path):
    package(1)
    command = [sys.executable, "-c", "import outer; print(outer.twice(2.0), outer.twice(2))"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate()[0].split() for run in runs] == [["6.0", "6"]] * 2
    assert [path.suffix for path in kept(tmp_path)] == [cache.SUFFIX] * 2


def test_a_folder_that_cannot_be_written(package, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NMF_ZOO_CACHE", str(tmp_path / "file"))
    made = package(1)
    with pytest.warns(
        NmfZooWarning, match=r"kernels cannot be kept in .*/file/kernels .*: they go to .*NMF_ZOO_CACHE"
    ) as found:
        assert made(2.0) == 6.0
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(2) == 6  # said once
    assert len(list(cache.folder().glob("outer.twice-*"))) == 2


def test_a_disk_that_is_full_costs_no_run(package, tmp_path):
    with patch("pathlib.Path.write_bytes", side_effect=OSError(28, "No space left on device")):
        assert package(1)(2.0) == 6.0
    assert kept(tmp_path) == []


def test_files_that_nobody_reads_go(package, tmp_path):
    package(1)(2.0)
    (file,) = kept(tmp_path)
    os.utime(file, (1e9, 1e9))
    cache._remove_old.cache_clear()
    package(3)(2.0)
    assert file not in kept(tmp_path)
    assert len(kept(tmp_path)) == 1


def test_the_command_shows_and_clears(package, tmp_path, capsys):
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"no compiled kernels in {tmp_path}/cache/kernels\n"
    package(1)(2.0)
    package(1)(2)
    assert main(["cache"]) == 0
    assert re.fullmatch(rf"2 compiled kernels, 0.0 MB, in {tmp_path}/cache/kernels\n", capsys.readouterr().out)
    (tmp_path / "cache" / "kernels" / "notes").touch()  # of somebody else
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"removed 2 compiled kernels, 0.0 MB, from {tmp_path}/cache/kernels\n"
    assert [path.name for path in kept(tmp_path)] == ["notes"]
    assert package(1)(2.0) == 6.0


@pytest.mark.parametrize(
    ("platform", "environment", "end"),
    [
        ("linux", {}, ".cache/nmf_zoo/kernels"),
        ("linux", {"XDG_CACHE_HOME": "/somewhere"}, "/somewhere/nmf_zoo/kernels"),
        ("darwin", {"XDG_CACHE_HOME": "/somewhere"}, "Library/Caches/nmf_zoo/kernels"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/nmf_zoo/kernels"),
        ("linux", {"NMF_ZOO_CACHE": "/mine", "XDG_CACHE_HOME": "/somewhere"}, "/mine/kernels"),
    ],
)
def test_where_compiled_kernels_belong(platform, environment, end, monkeypatch):
    for name in ("NMF_ZOO_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache.chosen_folder().as_posix().endswith(end)
