"""What a start loads: modules that only a run, an accountant or a report needs are imported when they are used."""

import json
import subprocess
import sys

FIRST = "fedprivjax.protocols.dp_mu2"
LATER = ("scipy.stats", "scipy.special", "scipy.optimize", "optax", "dp_accounting", "xarray", "pandas.core")
NEVER_HERE = ("sklearn", "matplotlib", "flax.nnx", "h5netcdf")
OF_COMMANDS = ("typer", "pydantic", "pooch")
STARTS = {  # one after the other, in one process
    "import fedprivjax; fedprivjax.DPMu2": (*LATER, *NEVER_HERE, *OF_COMMANDS, "fedprivjax.protocols.user_agd"),
    "from fedprivjax.cli import app; app(['list'], standalone_mode=False)": (*LATER, *NEVER_HERE),
}


def test_a_start_loads_nothing_that_it_does_not_use():
    ask = "import json, sys; print(json.dumps(list(sys.modules)), file=sys.stderr)"
    code = "; ".join(f"{start}; {ask}" for start in STARTS)
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = [line for line in answer.stderr.splitlines() if line.startswith("[")]
    for (start, unused), line in zip(STARTS.items(), lines, strict=True):
        loaded = json.loads(line)
        assert FIRST in loaded
        assert [name for name in unused if name in loaded] == [], start
