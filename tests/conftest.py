"""Test set-up: PyTensor's graphs uncompiled, searches of few fits, one BLAS thread, no plots on a screen, Ctrl-C heard,
engines and likelihoods that a test registers forgotten, a test that hangs ended; what each costs kept, the costliest
files first.
"""

import faulthandler
import gc
import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack, nullcontext, suppress
from importlib import import_module
from unittest.mock import patch

import pytest

from tests.durations import QUICK, Recorder, costliest_first, kept

os.environ["PYTENSOR_FLAGS"] = "cxx=,mode=FAST_COMPILE,traceback__limit=0," + os.environ.get("PYTENSOR_FLAGS", "")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored

# Files about what engines compute, how they are compiled and go to other machines: models, results, files and pictures
# are others' business; in files of those, single tests have the mark. The first PyMC line runs them; on the other one
# every engine but SMC runs on every model in tests/contract, to the numbers that tests/golden keeps.
OF_ENGINES = {
    "contract": "blocks cluster ending_early offsets_of_sparse_data without_jit",
    "property": "extremes gibbs_properties invariances memory memory_of_blocks",
    "unit": "acceleration audio channels checkpoint checkpoint_over_blocks checkpointed_runs cli_separate "
    "compile_ahead components_in_use dispersion_law divergence draws_over_blocks driver em evidence executor "
    "fit_blocks hmm_stream is_em is_gibbs is_stream is_vb jobs keyed_rng longer marginal mcem mcem_over_blocks "
    "measures mode_weights modes particle_em particle_gibbs particle_stream power_propriety powers_over_blocks "
    "precision propriety rank rank_over_blocks replicas run_one search search_over_blocks searched_ranks sharing "
    "slice_sampling smc smc_draws stability starts stream_exposures streaming traces vb verbs_over_blocks workers",
}
# Files that ask what a search finds, beside those of tests/statistical: searches that say no number make all of their
# fits there, and few elsewhere.
OF_SEARCHES = {
    "contract": "golden",
    "unit": "cli_modes cli_rank known_of_powers_and_chains mode_weights modes rank rank_over_blocks readme search "
    "search_over_blocks searched_ranks",
}
# What `make test-rest` runs, and `make test` does not: pages and notebooks; what checks say of planted errors,
# which tests checks; other samplers, which compile graphs of PyMC; campaigns, endurance and memory; processes and tools
# beside the package. And so that `make test` is minutes: of a check of a distribution all cases but the first, and of
# other tests, contracts excepted, what is not quick. Further cases that are not quick, of any test, are left to
# `make test-further`: they see something new only where an engine, a kernel or a check has changed, and not often.
OF_THE_REST = {
    "contract": "endurance",
    "property": "memory",
    "statistical": "engines_against_nuts hmm_pymc is_nuts notebooks_with_data",
    "unit": "benchmarks compile_ahead interrupt notebooks readme references types",
}
# Files whose cases are not one thing in several settings, but pages, readers and tools that have nothing else.
OF_SINGLE_CASES = {"property": "damaged_files", "unit": "benchmarks notebooks readme"}
SEES_AN_ERROR = re.compile(r"_(is|are)_seen(?![a-z])|_sees_")  # in the names of tests in these folders
WITH_PLANTED_ERRORS = {"oracle", "statistical"}
# Where tests write: some disks take milliseconds to have a small file written for sure, or removed, and thousands are.
IN_MEMORY, ROOM = "/dev/shm", 4e9  # bytes; 0.3e9 are taken
STDERR = pytest.StashKey()
HANGS = 900  # seconds: no test takes a tenth of it


def pytest_configure(config):
    """Files in memory. What workers import. And where a test that hangs can be heard: stderr, before it is captured."""
    if "TMPDIR" not in os.environ and is_roomy(IN_MEMORY):
        os.environ["TMPDIR"], tempfile.tempdir = IN_MEMORY, None
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.fdopen(os.dup(2), "w")
    if "PYTEST_XDIST_WORKER" in os.environ:
        import_arviz()
        read_c_code_once()
    config.pluginmanager.register(Recorder(keeps="PYTEST_XDIST_WORKER" not in os.environ))


def import_arviz():
    """Of two first imports of a day, as workers make in step, one may fail: ArviZ 0.x notes in a file that it warned,
    which the other has just moved. The second try finds it.
    """
    for _ in range(10):
        with suppress(FileNotFoundError):
            return import_module("arviz")
        time.sleep(0.1)


def read_c_code_once():
    """PyTensor reads a file of C code, which nothing here compiles, whenever it turns the dims of a variable."""
    from pytensor.link.c.op import ExternalCOp

    read, known = ExternalCOp.load_c_code, {}

    def load(op, files):
        key = type(op), *files
        if key not in known:
            read(op, files)
            known[key] = op.func_codes, op.code_sections
        op.func_codes, op.code_sections = list(known[key][0]), dict(known[key][1])

    ExternalCOp.load_c_code = load


def is_roomy(folder):
    """Whether there is such a folder, with room for what tests write."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free > ROOM


def left_to(item, is_further_case):
    """What a test is left to, "rest" or "further" as in `make test-rest`; None where `make test` has it."""
    folder = item.path.parent.name
    is_check, is_campaign, is_further = (
        item.get_closest_marker(name) is not None for name in ("statistical", "campaign", "further")
    )
    is_slow = kept()["tests"].get(item.nodeid, 0.0) > QUICK and folder != "contract"
    plants = folder in WITH_PLANTED_ERRORS and SEES_AN_ERROR.search(item.originalname or item.name)
    if is_further or (is_slow and is_further_case and not is_one_of(OF_SINGLE_CASES, item.path)):
        return "further"
    compiles = "compiled_graphs" in item.fixturenames
    is_beside = plants or compiles or is_campaign or is_one_of(OF_THE_REST, item.path)
    return "rest" if is_beside or (is_further_case if is_check else is_slow) else None


def is_one_of(files, path):
    """Whether a table of folders and files of tests has this one."""
    return path.stem.removeprefix("test_") in files.get(path.parent.name, "").split()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported for all tests stays: Python's collector looks for garbage in it neither now nor later.

    It took a third of the collection of tests, and half a second of many a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """Marks that follow from files. The costliest files first: a worker that begins one last would end alone."""
    begun = set()  # tests of which there was a case
    for item in items:
        if is_one_of(OF_ENGINES, item.path):
            item.add_marker("engines")
        test = item.nodeid.partition("[")[0]
        if command := left_to(item, is_further_case=test in begun):
            item.add_marker(command)
        begun.add(test)
    items[:] = [items[i] for i in costliest_first(item.nodeid for item in items)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A test that hangs says where, and ends its process. What a file of tests has imported stays, as above."""
    faulthandler.dump_traceback_later(HANGS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.fixture
def compiled_graphs():
    """PyTensor compiles graphs by numba, as it does for users, and does not run them operation by operation.

    That takes seconds a graph: for chains of NUTS, and for what is asked of compiled graphs.
    """
    import pytensor

    with pytensor.config.change_flags(mode="NUMBA"):
        yield


@pytest.fixture
def unarranged_pictures(monkeypatch):
    """Parts of a picture stay where matplotlib puts them first: to arrange them is a good part of drawing it."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)


@pytest.fixture(autouse=True, scope="module")
def few_fits(request):
    """Searches that say no number make few fits, but where these are asked for."""
    from tests.notebook_runs import search_little

    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.path.parent.name != "statistical" and not is_one_of(OF_SEARCHES, request.path):
            search_little(monkeypatch)
        yield


@pytest.fixture(autouse=True, scope="module")
def nobody_helps(request):
    """A first run compiles what it calls itself, but where helpers are asked for: the other core has its own tests."""
    from nmf_zoo.runtime import compile_ahead

    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.path.stem != "test_compile_ahead":
            monkeypatch.setattr(compile_ahead, "compiling_ahead", lambda calls, most: nullcontext())
        yield


@pytest.fixture(autouse=True)
def engines_as_before():
    """Engines and likelihoods that a test, a page or a notebook registers are forgotten after it."""
    from nmf_zoo.inference import registry

    with ExitStack() as stack:
        stack.enter_context(patch.dict(registry.LIKELIHOODS))
        before = list(registry.REGISTRY)
        yield
        registry.REGISTRY[:] = before
