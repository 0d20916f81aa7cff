"""nz.load: what isn't a result, or not a whole one, is refused in one line that names the file; so do commands."""

import json
import shutil
import warnings
import zipfile
from types import MappingProxyType

import h5py
import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.interfaces.cli import main
from nmf_zoo.netcdf import SEAL_BYTES, SEALED
from nmf_zoo.results import loading
from nmf_zoo.results.loading import HDF5
from tests.property.files.readers import result

STATS = "sample_stats"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a sound result in either format, to be copied."""
    folder = tmp_path_factory.mktemp("saved") / "results"
    folder.mkdir()
    for name in ("x.nc", "x.zarr"):
        nz.save(result(), folder / name)
    return folder


@pytest.fixture
def folder(saved, tmp_path, monkeypatch):
    """The same, to be damaged."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def group_of(idata, name):
    return _compat.group(idata, name)


def test_what_is_whole_is_read(folder):
    for name in ("x.nc", "x.zarr"):
        found = nz.load(name)
        for group in _compat.group_names(result()):
            xr.testing.assert_equal(group_of(found, group), group_of(result(), group))
        assert dict(found.attrs) == dict(result().attrs)


def test_other_bytes_are_refused_before_hdf5_sees_them(folder):
    """A flipped bit in a number is another number to HDF5, and one in a heading may keep it busy for ever."""
    whole = (folder / "x.nc").read_bytes()
    for place in range(len(HDF5), len(whole) - SEAL_BYTES, 211):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (folder / "x.nc").write_bytes(damaged)
        with pytest.raises(InputError, match=r"^x.nc: got a damaged file, which has another checksum"):
            nz.load("x.nc")


@pytest.mark.parametrize("change", [lambda whole: whole + b"\0", lambda whole: whole[:-3]], ids=["longer", "cut"])
def test_a_seal_that_is_not_the_end_is_of_a_damaged_file(folder, change):
    (folder / "x.nc").write_bytes(change((folder / "x.nc").read_bytes()))
    with pytest.raises(InputError, match=r"^x.nc: got a damaged file"):
        nz.load("x.nc")


def test_a_file_that_another_program_changed_has_no_seal(folder):
    assert SEALED.fullmatch((folder / "x.nc").read_bytes()[-SEAL_BYTES:])
    with h5py.File("x.nc", "r+") as file:
        file["posterior/W"][...] = 2.0
    assert not SEALED.search((folder / "x.nc").read_bytes())
    assert np.all(group_of(nz.load("x.nc"), "posterior")["W"] == 2.0)


def test_seals_are_nothing_to_other_programs(folder):
    with xr.open_datatree("x.nc", engine="h5netcdf") as tree, h5py.File("x.nc") as file:
        np.testing.assert_array_equal(tree["posterior/W"], group_of(result(), "posterior")["W"])
        np.testing.assert_array_equal(file["posterior/W"], group_of(result(), "posterior")["W"])


@pytest.mark.parametrize("name", ["arrays.nc", "arrays.zarr"])
def test_arrays_without_groups_are_no_result(folder, name):
    """components.nc of nmf-zoo separate, say."""
    arrays = xr.Dataset({"power": ("f", [1.0, 2.0])})
    arrays.to_netcdf(name, engine="h5netcdf") if name.endswith("nc") else arrays.to_zarr(name, zarr_format=2)
    with pytest.raises(InputError, match=rf"^{name}: got arrays without groups \(power\); .*xarray.open_dataset"):
        nz.load(name)


def of_layout_1(idata):
    """A result as it was written before layouts had numbers; its columns listed as cells, too."""
    groups = {name: group_of(idata, name).rename(obs="sample") for name in _compat.group_names(idata) if name != STATS}
    listed = xr.Dataset({"cell_sample": ("cell", [0, 2])}, coords={"sample": ("cell", ["a", "b"])})
    return _compat.inference_data({**groups, STATS: group_of(idata, STATS), "constant_data": listed}, idata.attrs)


def without_layout(path):
    """Take the number of the layout out of a file."""
    if path.suffix == ".zarr":
        (path / ".zmetadata").unlink()
        attrs = json.loads((path / ".zattrs").read_text())
        del attrs["layout"]
        (path / ".zattrs").write_text(json.dumps(attrs))
        return
    with h5py.File(path, "a") as file:
        del file.attrs["layout"]


@pytest.mark.parametrize("name", ["old.nc", "old.zarr"])
def test_the_dim_of_columns_in_files_of_layout_1(folder, name):
    """Renamed in all groups, those left on disk and those of listed cells, and once saved again of this layout."""
    nz.save(of_layout_1(result()), name)
    without_layout(folder / name)
    found = nz.load(name)
    for group in _compat.group_names(result()):
        xr.testing.assert_identical(
            group_of(found, group), group_of(nz.load(f"x{folder.joinpath(name).suffix}"), group)
        )
    listed = group_of(found, "constant_data")
    assert listed["cell_obs"].coords["obs"].to_numpy().tolist() == ["a", "b"]
    assert group_of(found, "posterior")["H"].variable._in_memory == name.endswith(".nc")
    assert "layout" not in found.attrs
    nz.save(found, name)
    xr.testing.assert_equal(group_of(nz.load(name), "posterior"), group_of(result(), "posterior"))


def test_an_unfinished_store_of_layout_1(folder):
    nz.save(of_layout_1(result()), "old.zarr")
    without_layout(folder / "old.zarr")
    attrs = json.loads((folder / "old.zarr/.zattrs").read_text())
    del attrs["inference_library"]
    attrs |= {"status": "running", "readable": {"chains": [0, 1], "draws": 4}}
    (folder / "old.zarr/.zattrs").write_text(json.dumps(attrs))
    with pytest.warns(NmfZooWarning, match="of an unfinished run"):
        assert group_of(nz.load("old.zarr"), "posterior")["H"].dims == ("chain", "draw", "component", "obs")


def test_a_dim_that_somebody_called_sample_keeps_its_name(folder):
    """In files of this layout; in old ones where "obs" stands for something else; in those of others."""
    named = of_layout_1(result())
    nz.save(named, "own.nc")
    nz.save(_compat.with_groups(named, {"rest": xr.Dataset({"x": ("obs", [1.0])})}), "both.nc")
    nz.save(_compat.inference_data({"posterior": group_of(named, "posterior").drop_attrs()}, {}), "theirs.nc")
    for name in ("both.nc", "theirs.nc"):
        without_layout(folder / name)
    for name in ("own.nc", "both.nc", "theirs.nc"):
        assert group_of(nz.load(name), "posterior")["H"].dims == ("chain", "draw", "component", "sample")


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_a_layout_of_the_future_is_refused(folder, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(_compat, "THIS_LAYOUT", 3)
        nz.save(result(), name)
    with pytest.raises(InputError, match=r"got layout .*3.*; expected a layout from 1 to 2; read it with the nmf_zoo"):
        nz.load(name)


def test_draws_of_a_store_stay_on_disk_and_can_be_indexed(folder):
    W, expected = group_of(nz.load("x.zarr"), "posterior")["W"], group_of(result(), "posterior")["W"]
    assert not W.variable._in_memory
    for key in ((0,), (slice(None), [4, 1]), ([1, 0], slice(1, 5, 2), -1), (1, 2, 3, 1)):
        np.testing.assert_array_equal(W[key], expected[key])
    points = xr.DataArray([0, 1, 1], dims="point"), xr.DataArray([5, 0, 2], dims="point")
    np.testing.assert_array_equal(W[points], expected[points])
    assert not W.variable._in_memory


REFUSALS = {
    "missing.nc": (lambda path: None, "no such file"),
    "missing.zarr": (lambda path: None, "no such file"),
    "empty.nc": (lambda path: path.write_bytes(b""), "an empty file"),
    "text.nc": (lambda path: path.write_text("1,2\n"), "something else, not netCDF 4"),
    "old.nc": (lambda path: path.write_bytes(b"CDF\x01" + bytes(60)), "netCDF 3, not netCDF 4"),
    "archive.nc": (lambda path: zipfile.ZipFile(path, "w").close(), "a zip archive, not netCDF 4"),
    "cut.nc": (lambda path: path.write_bytes(path.with_name("x.nc").read_bytes()[:2000]), "can't be read"),
    "folder.nc": (lambda path: path.mkdir(), "a folder"),
    "file.zarr": (lambda path: path.write_text("x"), "a file; expected a Zarr store, which is a folder"),
    "folder.zarr": (lambda path: path.mkdir(), "a folder without a Zarr store"),
    "cut.zarr": (lambda path: damaged(path, ".zmetadata", b'{"metadata": {'), "can't be read"),
    "no.zarr": (lambda path: damaged(path, ".zmetadata", b"{}"), "can't be read"),
    "chunk.zarr": (lambda path: damaged(path, "observed_data/X/0.0", b"x"), "1 bytes in observed_data/X/0.0, not"),
    "short.zarr": (lambda path: short(path, 99), "99 bytes in posterior/W/0.0.0.0, not 960"),
    "gone.zarr": (lambda path: damaged(path, "posterior/W/0.0.0.0", None), "without the file posterior/W/0.0.0.0"),
    "data gone.zarr": (lambda path: damaged(path, "observed_data/X/0.0", None), "without the file observed_data/X/0.0"),
    "large.zarr": (lambda path: larger(path, 10**7), "1 files of 1,666,667 in posterior/draw"),
    "a little cut.zarr": (lambda path: short(path, -7, {}), "bytes in posterior/W/0.0.0.0, not"),
}


def damaged(path, name, content):
    shutil.copytree(path.with_name("x.zarr"), path)
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)


def short(path, size, coded=MappingProxyType({"compressors": ()})):
    """Draws as ``store=`` writes them, not compressed, but a chunk of them cut."""
    posterior = group_of(result(), "posterior")
    for variable in posterior.data_vars.values():
        variable.encoding |= coded
    nz.save(_compat.with_groups(result(), {"posterior": posterior}), path)
    chunk = path / "posterior/W/0.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:size])


def larger(path, draws):
    """A description that tells of more draws than there are."""
    shutil.copytree(path.with_name("x.zarr"), path)
    described = json.loads((path / ".zmetadata").read_text())
    for name, axis in (("W", 1), ("H", 1), ("draw", 0)):
        described["metadata"][f"posterior/{name}/.zarray"]["shape"][axis] = draws
    (path / ".zmetadata").write_text(json.dumps(described))


@pytest.mark.parametrize("name", REFUSALS)
def test_one_line_says_which_file_and_what_is_wrong(folder, name):
    make, words = REFUSALS[name]
    make(folder / name)
    with pytest.raises(InputError) as caught:
        nz.load(name)
    message = str(caught.value)
    assert message.startswith(f"{name}: got ")
    assert words in message, message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", ["a\0b.nc", "x" * 5000 + ".nc"])
def test_names_that_no_file_has(name):
    with pytest.raises(InputError, match=r"no name of a file|no such file"):
        nz.load(name)


def test_without_zarr(folder, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"x\.zarr: got a Zarr store without zarr installed; .*pip install"):
        nz.load("x.zarr")


def test_a_draw_that_cannot_be_read_is_said_when_it_is_used(folder):
    W = group_of(nz.load("x.zarr"), "posterior")["W"]
    (folder / "x.zarr/posterior/W/0.0.0.0").write_bytes(b"x")
    with pytest.raises(InputError, match=r"x\.zarr: got a file with posterior/W that can't be read"):
        W.mean().item()


def test_chunks_of_nothing_but_nan_or_zero_are_there(folder):
    odd = group_of(result(), "posterior") * np.nan
    stats = xr.Dataset({"diverging": (("chain", "draw"), np.zeros((2, 6), bool))}, {"chain": [0, 1], "draw": range(6)})
    data = xr.Dataset({"X": (("feature", "obs"), np.zeros((5, 4), int))})
    nz.save(_compat.inference_data({"posterior": odd, "sample_stats": stats, "observed_data": data}, {}), "n.zarr")
    found = nz.load("n.zarr")
    assert np.isnan(group_of(found, "posterior")["W"]).all()
    assert not group_of(found, "sample_stats")["diverging"].any()


def test_a_store_from_elsewhere_may_leave_such_chunks_out(folder):
    (folder / "x.zarr/.zmetadata").unlink()
    (folder / "x.zarr/.zattrs").write_text("{}")
    (folder / "x.zarr/posterior/W/0.0.0.0").unlink()
    assert np.isnan(group_of(nz.load("x.zarr"), "posterior")["W"]).all()


def test_control_characters_in_the_labels_of_a_file(folder):
    labels = ["gene0", "gene1", "\x1b[31m", "gene3", "gene4"]
    nz.save(
        _compat.with_groups(result(), {"posterior": group_of(result(), "posterior").assign_coords(feature=labels)}),
        "l.nc",
    )
    with pytest.raises(InputError, match=r"l\.nc: got the label '\\x1b\[31m' of 'feature' in posterior at place 2"):
        nz.load("l.nc")


# -- results of somebody else, and commands ------------------------------------------------------------------------

RANDOM = np.random.default_rng(1)


def draws(*dims, dtype=float):
    return ("chain", "draw", *dims), RANDOM.normal(size=(2, 10, *[3] * len(dims))).astype(dtype)


FACTORS = {"W": draws("feature", "component"), "H": draws("component", "obs")}
FOREIGN = {
    "no posterior": {"observed_data": {"X": (("a", "b"), np.ones((2, 2)))}},
    "no draws": {"posterior": {"W": (("feature", "component"), np.ones((3, 2)))}},
    "no chains": {"posterior": {"W": (("draw", "feature", "component"), np.ones((5, 3, 2)))}},
    "words": {"posterior": {"W": (("chain", "draw"), np.full((2, 10), "a"))}},
    "complex numbers": {"posterior": {"W": draws("feature", dtype=complex)}},
    "an empty posterior": {"posterior": {"W": (("chain", "draw", "feature"), np.ones((2, 0, 3)))}},
    "a fit of something else": {"posterior": FACTORS, "fit": {"x": (("q",), np.ones(3))}},
    "an objective of something else": {"posterior": FACTORS, "fit": {"objective": (("q",), np.ones(3))}},
    "words for an objective": {
        "posterior": FACTORS,
        "fit": {"objective": (("chain", "iteration"), np.full((2, 3), "a"))}
        | dict.fromkeys(("iterations", "residual", "status", "reason"), (("chain",), np.ones(2))),
    },
    "statistics of something else": {"posterior": FACTORS, "sample_stats": {"lp": (("q",), np.ones(3))}},
    "other chains": {"posterior": FACTORS, "sample_stats": {"lp": (("chain", "draw"), np.ones((3, 10)))}},
    "moments alone": {"posterior_moments": {"W_mean": (("chain", "feature"), np.ones((2, 3)))}},
    "moments of nothing": {"posterior_moments": {"W": draws()}, "sample_stats": {"lp": draws()}},
}
COMMANDS = {
    "summary": ["summary", "f.nc"],
    "report": ["report", "f.nc", "-o", "r.html", "--force"],
    **{
        f"plot {k}": ["plot", "f.nc", "-o", "p.png", "--force", "--kind", k]
        for k in ("components", "trace", "objective")
    },
}


def write(groups, attrs=()):
    made = {name: xr.Dataset(arrays) for name, arrays in groups.items()}
    labelled = {n: d.assign_coords({dim: np.arange(size) for dim, size in d.sizes.items()}) for n, d in made.items()}
    nz.save(_compat.inference_data(labelled, dict(attrs)), "f.nc")


@pytest.mark.parametrize(
    ("case", "command"), [*((case, "summary") for case in FOREIGN), *(("no chains", command) for command in COMMANDS)]
)
def test_commands_refuse_what_is_no_result(folder, capsys, case, command):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's, on groups that it doesn't know
        write(FOREIGN[case])
    assert main(COMMANDS[command]) == 2
    message = capsys.readouterr().err
    assert message.startswith("nmf-zoo: f.nc: got ")
    assert message.count("\n") == 1
    assert not (folder / "p.png").exists()
    assert not (folder / "r.html").exists()


@pytest.mark.parametrize("key", ["seconds", "thin", "tune", "discarded", "gathered"])
def test_attributes_that_commands_count_with(folder, capsys, key):
    write({"posterior": FACTORS}, {key: "abc"})
    assert main(["summary", "f.nc"]) == 2
    assert f"the attribute {key} 'abc'" in capsys.readouterr().err


def test_somebody_elses_posterior_is_summed_up(folder, capsys):
    write({"posterior": {"mu": draws(), "theta": draws("school")}, "sample_stats": {"lp": draws()}})
    assert main(["summary", "f.nc"]) == 0
    assert "mu ()" in capsys.readouterr().out


def test_an_unfinished_store_is_said_to_be_one(folder):
    (folder / "x.zarr/.zmetadata").unlink()
    attrs = json.loads((folder / "x.zarr/.zattrs").read_text())
    attrs |= {"status": "running", "readable": {"chains": [1], "draws": 4}}
    (folder / "x.zarr/.zattrs").write_text(json.dumps(attrs))
    with pytest.warns(NmfZooWarning, match="of an unfinished run: 4 draws of 1 chain") as caught:
        found = nz.load("x.zarr")
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(group_of(found, "posterior")["W"], group_of(result(), "posterior")["W"][[1], :4])
