import gc
import os
import re
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA says of every cached program that it is another machine's
os.environ["FEDPRIVJAX_CACHE"] = ""  # tests neither read nor write what a user's runs keep
sys.path.append(str(Path(__file__).parent))  # for `oracles` and `cases`

import jax
import pytest

from fedprivjax import Softmax, disk_cache, general_problem
from fedprivjax.engine.compiled import QUICK, knows_quick, make_room
from fedprivjax.problem.models import Example

OPTIMISED = "optimised"
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
DEVICES = "--xla_force_host_platform_device_count=4"
FEW = 50  # programs between checks of the remaining memory maps: a check takes as long as a small test
programs = 0


def pytest_configure(config):
    """XLA's settings, which it reads once; tests import what compiles only after this."""
    if WORKER is None:  # workers are given them
        timed = re.search(rf"(?<!not ){OPTIMISED}", config.option.markexpr)
        quick = "" if timed or not knows_quick() else QUICK
        os.environ["XLA_FLAGS"] = " ".join([quick, os.environ.get("XLA_FLAGS", ""), DEVICES])
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", True)  # for fixtures of modules; see `optimisation`
    jax.config.update("jax_traceback_in_locations_limit", 0)  # where each operation was written: a tenth of lowering
    jax.monitoring.register_event_duration_secs_listener(count)
    keep_programs(config)


def count(event, seconds, **_):
    """Programs that are compiled or read."""
    global programs
    programs += event == "/jax/core/compile/backend_compile_duration"


def keep_programs(config):
    """Programs are compiled once for each of a run's workers and the processes that it starts: entries are not written
    in one piece, so that workers may not share them."""
    if WORKER is None:
        config.compiled = tempfile.mkdtemp(prefix="fedprivjax-tests-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = config.compiled
    else:
        own = Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / WORKER
        own.mkdir(exist_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_collection_finish():
    """What is imported stays: looking through it for garbage again and again would take a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    if WORKER is None:
        shutil.rmtree(config.compiled, ignore_errors=True)


@pytest.fixture(autouse=True)
def optimisation(request):
    """Programs are compiled without most optimisations, in two thirds of the time, but where a mark says that speed is
    what is tested. A worker's programs are some thousands, more than there is room for."""
    global programs
    jax.config.update("jax_disable_most_optimizations", request.node.get_closest_marker(OPTIMISED) is None)
    yield
    if programs >= FEW:
        programs = 0
        make_room()


@pytest.fixture
def file_size_limit():
    """A block in which a file that grows beyond so many bytes fails, as on a full disk."""

    @contextmanager
    def limit(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """A folder in which all is kept that is computed, however soon."""
    monkeypatch.setenv(disk_cache.CACHE, str(tmp_path / "home"))
    monkeypatch.setattr(disk_cache, "SLOW", 0.0)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def data():
    """Features [60, 5] of unit norm and labels in 0..2, for training; 12 more for testing."""
    from cases import DATA  # compiles

    return DATA


@pytest.fixture(scope="session")
def softmax_problem():
    """Softmax regression, d = 15, on the ball of radius 1."""
    from cases import POOL

    return POOL


@pytest.fixture(scope="session")
def general_twin(softmax_problem):
    """A function that makes the same problem through `general_problem`, as a program of its own at each call."""

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
