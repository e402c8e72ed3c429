"""Measure the package's own targets: `python experiments/benchmarks/targets [--only GROUP] [--json FILE]`.

Times and memory are compared with hand-written code and with other settings. Run nothing else meanwhile.
"""

import argparse
import json
import sys
from pathlib import Path

import checkpoints
import chunks
import clipped_records
import cohorts
import convolutions
import federation
import local_work
import network
import rounds
import sequences
import tree_noise
from rich import print

from fedprivjax import bench
from fedprivjax.problem.program import products

GROUPS = {
    "a round by component": rounds.lines,
    "chunks of a sweep": chunks.lines,
    "a million machines": federation.lines,
    "a network": network.lines,
    "clipped records": clipped_records.lines,
    "local work": local_work.lines,
    "convolutions": convolutions.lines,
    "recurrence and attention": sequences.lines,
    "cohorts and samples": cohorts.lines,
    "a tree's noise": tree_noise.lines,
    "checkpoints": checkpoints.lines,
}


def main() -> None:
    """Print a table of the groups' lines, which are shown on stderr as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="GROUP", help=f"{', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    given = parser.parse_args()
    lines = []
    with products():  # an accelerator's default is tf32, also for rounds by hand
        for name in given.only or GROUPS:
            for line in GROUPS[name]():
                sys.stderr.write(f"{line.name}: {line.value:.3g} {line.unit}\n")
                lines.append(line)
    print(bench.table(lines, bench.machine()))
    if given.json:
        given.json.write_text(json.dumps(bench.as_json(lines), indent=2))


if __name__ == "__main__":
    main()
