"""What a start loads: modules that only a run, an accountant or a report needs are imported when they are used."""

import json
import subprocess
import sys

import pytest

LATER = ("scipy.stats", "scipy.special", "scipy.optimize", "optax", "dp_accounting", "xarray", "pandas.core")
NEVER_HERE = ("sklearn", "matplotlib", "flax.nnx", "h5netcdf")
OF_COMMANDS = ("typer", "pydantic", "pooch")
START = {
    "import fedprivjax; fedprivjax.DPMu2": (*LATER, *NEVER_HERE, *OF_COMMANDS, "fedprivjax.protocols.user_agd"),
    "from fedprivjax.cli import app; app(['list'], standalone_mode=False)": (*LATER, *NEVER_HERE),
}


@pytest.mark.parametrize("start", START)
def test_a_start_loads_nothing_that_it_does_not_use(start):
    ask = "import json, sys; print(json.dumps([name for name in sys.modules]), file=sys.stderr)"
    answer = subprocess.run([sys.executable, "-c", f"{start}; {ask}"], check=True, capture_output=True, text=True)
    loaded = json.loads(answer.stderr.strip().splitlines()[-1])
    assert "fedprivjax.protocols.dp_mu2" in loaded
    assert [name for name in START[start] if name in loaded] == []
