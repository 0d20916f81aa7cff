"""Files that take their place at once: what was there stays until the new one is whole."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from nmf_zoo.errors import InputError, NotWritten, UnreadableModel
from nmf_zoo.files import check_result, is_partial, partial_of, replacing

needs_posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and devices of POSIX")


def write(path, text):
    with replacing(path) as partial:
        partial.write_text(text)


def fail_to_write(path, error):
    with replacing(path) as partial:
        partial.write_text("half")
        raise error


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_when_it_is_whole(tmp_path):
    path = tmp_path / "x.txt"
    with replacing(path) as partial:
        partial.write_text("new")
        assert partial.parent == tmp_path
        assert partial.suffix == ".txt"
        assert is_partial(partial.name)
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space")])
def test_a_failed_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "x.nc"
    path.write_text("old")
    with pytest.raises(type(error)):
        fail_to_write(path, error)
    assert names(tmp_path) == ["x.nc"]
    assert path.read_text() == "old"


def test_what_the_system_says_is_one_line(tmp_path):
    with pytest.raises(NotWritten, match=r"x\.nc' \(the disk is full: No space\); expected .*; make room") as caught:
        fail_to_write(tmp_path / "x.nc", OSError(errno.ENOSPC, "No space"))
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(NotWritten, match=r"x\.nc' \(Read-only\)"):
        fail_to_write(tmp_path / "x.nc", OSError(errno.EROFS, "Read-only"))
    with pytest.raises(FileNotFoundError, match="other"):  # of a file that is read meanwhile: not ours to explain
        fail_to_write(tmp_path / "x.nc", FileNotFoundError(errno.ENOENT, "none", str(tmp_path / "other.zarr" / "0")))


@pytest.mark.parametrize(
    "error",
    [
        InputError("draws", "0", "more", "try 1"),
        NotWritten("path", "'x.nc'", errno.ENOSPC, "No space"),
        UnreadableModel("W", "a", "b", "c"),
    ],
)
def test_errors_come_back_from_other_processes(error):
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
    assert getattr(found, "errno", None) == getattr(error, "errno", None)


def make_folder(path, text):
    with replacing(path) as partial:
        partial.mkdir()
        (partial / "a").write_text(text)


def test_a_folder_takes_the_place_of_a_folder(tmp_path, monkeypatch):
    path = tmp_path / "parts"
    make_folder(path, "old")
    make_folder(path, "new")
    assert (path / "a").read_text() == "new"
    assert names(tmp_path) == ["parts"]
    replace = os.replace

    def second_fails(source, target):
        if is_partial(Path(source).name):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(KeyboardInterrupt):
        make_folder(path, "newer")
    assert (path / "a").read_text() == "new"
    assert names(tmp_path) == ["parts"]


@needs_posix
def test_mode_and_links_stay(tmp_path):
    path, link = tmp_path / "x.txt", tmp_path / "link.txt"
    mask = os.umask(0o027)
    try:
        write(path, "old")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640  # as open() makes it
    path.chmod(0o604)
    link.symlink_to(path)
    write(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o604


@needs_posix
def test_what_a_killed_process_left_is_removed(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    own = partial_of(tmp_path / "x.txt")
    left = tmp_path / own.name.replace(str(os.getpid()), dead.stdout.decode().strip())
    others = tmp_path / left.name.replace(".x.", ".y.")
    for path in (own, left, others):
        path.write_text("half")
    write(tmp_path / "x.txt", "new")
    assert names(tmp_path) == sorted([own.name, others.name, "x.txt"])  # another thread may be writing ours


@pytest.mark.parametrize("name", ["a" * 250 + ".nc", "ä" * 120 + ".nc", "x." + "y" * 200])
def test_long_names(tmp_path, name):
    write(tmp_path / name, "new")
    assert names(tmp_path) == [name]


@needs_posix
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none/x.nc", "no folder 'none'; expected a folder that exists"),
        ("file/x.nc", "no folder 'file'"),
        ("folder", "'folder', a folder"),
        ("full.zarr", "'full.zarr', a folder"),
        ("file.zarr", "'file.zarr', a file"),
        ("/dev/null", "neither a file nor a folder"),
        ("loop", "'loop' (Too many levels of symbolic links)"),
        ("a" * 5000, "(File name too long)"),
        ("a\0b", "a name without the character NUL"),
    ],
)
def test_places_that_are_refused(tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("full.zarr").mkdir()
    Path("full.zarr", "thesis.tex").touch()
    Path("file").touch()
    Path("file.zarr").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError) as caught:
        check_result(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_file_stays(tmp_path):
    path = tmp_path / "x.nc"
    path.write_text("old")
    path.chmod(0o400)
    with pytest.raises(InputError, match="which is read-only"):
        write(path, "new")
