import gc
import os
import re
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA warns that each cached program is from another machine
os.environ["FEDPRIVJAX_CACHE"] = ""  # tests neither read nor write the user's cache
sys.path.append(str(Path(__file__).parent))  # for `oracles` and `cases`

import jax
import pytest

from fedprivjax import Softmax, disk_cache, general_problem
from fedprivjax.problem.models import Example
from fedprivjax.problem.program import QUICK, knows_quick, make_room

OPTIMISED, TIMED = "optimised", "timed"
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
DEVICES = "--xla_force_host_platform_device_count=4"
FEW = 50  # programs between checks of the remaining memory maps: a check takes as long as a small test
MOST = 0.35  # of the memory maps between tests, so that no sweep clears programs that a test counts
programs = 0


def pytest_configure(config):
    """Configure XLA, which reads its settings once. Tests import modules that compile only after this."""
    if WORKER is None:  # workers inherit the settings
        timed = re.search(rf"(?<!not )({TIMED}|accelerator)", config.option.markexpr)
        quick = "" if timed or not knows_quick() else QUICK
        os.environ["XLA_FLAGS"] = " ".join([quick, os.environ.get("XLA_FLAGS", ""), DEVICES])
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", True)  # for module fixtures; see `optimisation`
    jax.config.update(
        "jax_traceback_in_locations_limit", 0
    )  # source locations of operations take a tenth of the lowering time
    jax.monitoring.register_event_duration_secs_listener(count)
    keep_programs(config)


def count(event, seconds, **_):
    """Count the programs that are compiled or read from the cache."""
    global programs
    programs += event == "/jax/core/compile/backend_compile_duration"


def keep_programs(config):
    """Set up one compilation cache per worker and its child processes.

    Workers must not share a cache, because its entries are not written atomically.
    """
    if WORKER is None:
        config.compiled = tempfile.mkdtemp(prefix="fedprivjax-tests-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = config.compiled
    else:
        own = Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / WORKER
        own.mkdir(exist_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_collection_modifyitems(items):
    """Run what runs longest first, so that no worker is left with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker(OPTIMISED) is None)


def pytest_collection_finish():
    """Exclude imported modules from garbage collection, and collect rarely: it would take a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_unconfigure(config):
    if WORKER is None:
        shutil.rmtree(config.compiled, ignore_errors=True)


@pytest.fixture(autouse=True)
def optimisation(request):
    """Compile without most optimisations, in two thirds of the time, except in tests that run long or are timed.

    Clears compiled programs now and then: a worker compiles some thousands, more than a process can hold.
    """
    global programs
    optimised = any(map(request.node.get_closest_marker, (OPTIMISED, TIMED)))
    jax.config.update("jax_disable_most_optimizations", not optimised)
    yield
    if programs >= FEW:
        programs = 0
        make_room(MOST)


@pytest.fixture
def small_audits(monkeypatch):
    """Audits of few runs in chunks of 512, which prepare 1,024 runs in place of 4,096."""
    from audited import smaller  # compiles programs

    smaller(monkeypatch, preparing=1024)


@pytest.fixture
def file_size_limit():
    """Return a context manager that limits the size of files in bytes. Longer writes fail, as on a full disk.

    Python writes no compiled modules meanwhile, because it would keep those that it could write in part only.
    """

    @contextmanager
    def limit(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            sys.dont_write_bytecode = before

    return limit


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """Return a cache folder in which every result is cached, including fast ones."""
    monkeypatch.setenv(disk_cache.CACHE, str(tmp_path / "home"))
    monkeypatch.setattr(disk_cache, "SLOW", 0.0)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def data():
    """Return features [60, 5] of unit norm and labels in 0..2 for training, and 12 more examples for testing."""
    from cases import DATA  # compiles programs

    return DATA


@pytest.fixture(scope="session")
def softmax_problem():
    """Return softmax regression, d = 15, on the ball of radius 1."""
    from cases import POOL

    return POOL


@pytest.fixture(scope="session")
def general_twin(softmax_problem):
    """Return a function that builds the same problem with `general_problem`. Each call compiles a new program."""

    def make(constraint=None):
        loss = Softmax(3)

        def value(params, example: Example):
            return loss.value(params @ example.features, example.label)

        def correct(params, example: Example):
            return loss.correct(params @ example.features, example.label)

        return general_problem(
            value,
            softmax_problem.pool,
            softmax_problem.start,
            constraint=constraint or softmax_problem.constraint,
            lipschitz=softmax_problem.lipschitz,
            smoothness=softmax_problem.smoothness,
            correct=correct,
            test=softmax_problem.test,
        )

    return make
