"""What a start loads: modules that only a run, an accountant or a report needs are imported when they are used."""

import json
import os
import subprocess
import sys

import pytest

from fedprivjax.bench.cell import FIRST as FIRST_RESULT

FIRST = "fedprivjax.protocols.dp_mu2"
LATER = ("scipy.stats", "scipy.special", "scipy.optimize", "optax", "dp_accounting", "xarray", "pandas.core")
NEVER_HERE = ("sklearn", "matplotlib", "flax.nnx", "h5netcdf")
OF_COMMANDS = ("typer", "pydantic", "pooch")
STARTS = {  # one after the other, in one process
    "import fedprivjax; fedprivjax.DPMu2": (*LATER, *NEVER_HERE, *OF_COMMANDS, "fedprivjax.protocols.user_agd"),
    "from fedprivjax.cli import app; app(['list'], standalone_mode=False)": (*LATER, *NEVER_HERE),
}


@pytest.mark.slow
def test_a_run_compiles_one_program_and_loads_no_library_that_it_does_not_use():
    code = f"{FIRST_RESULT}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    numbers, modules = answer.stdout.splitlines()
    loaded = json.loads(modules)
    assert float(numbers.split()[-1]) == 1
    unused = ("scipy.stats", "scipy.optimize", "dp_accounting", "xarray", "pandas.core", "pooch", *NEVER_HERE)
    assert [name for name in unused if name in loaded] == []


@pytest.mark.parametrize(
    ("code", "cached"),
    [("import fedprivjax", True), ("import sys; sys.modules['jax'] = None; import fedprivjax", False)],
)
def test_compiled_programs_are_cached_if_jax_was_not_imported_before(code, cached):
    code = f"{code}; import os; print(os.environ.get('JAX_COMPILATION_CACHE_DIR'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["FEDPRIVJAX_CACHE"] = "folder"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == ("folder/compiled" if cached else "None")


def test_a_start_loads_nothing_that_it_does_not_use():
    ask = "import json, sys; print(json.dumps(list(sys.modules)), file=sys.stderr)"
    code = "; ".join(f"{start}; {ask}" for start in STARTS)
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = [line for line in answer.stderr.splitlines() if line.startswith("[")]
    for (start, unused), line in zip(STARTS.items(), lines, strict=True):
        loaded = json.loads(line)
        assert FIRST in loaded
        assert [name for name in unused if name in loaded] == [], start
