"""The same job in every library, one after another: seconds a round over ours, and what is reached.

Every script runs in a process of its own; `--python PATH` is the interpreter of all peers, `--python NAME=PATH` of one.
"""

import json
import subprocess
import sys
from pathlib import Path

import job

HERE = Path(__file__).parent
PEERS = "fedjax", "pfl", "flower"
OURS = {"fedprivjax": [], "fedprivjax, every noise drawn": ["--noise-method", "materialised"]}


def main() -> None:
    parser = job.arguments(__doc__)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--python", action="append", default=[], metavar="[NAME=]PATH", help="of peers")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()
    pythons = interpreters(given.python)
    settings = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in job.Settings._fields]
    found = {name: measure("fedprivjax", pythons, [*settings, *more]) for name, more in OURS.items()}
    found |= {name: measure(name, pythons, settings) for name in given.peers}
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps({"settings": settings, "found": found}, indent=2))


def interpreters(given: list[str]) -> dict[str, str]:
    """The interpreter of each library that has one of its own."""
    found = {}
    for one in given:
        name, equals, path = one.rpartition("=")
        if equals and name not in PEERS:
            raise SystemExit(f"python must be PATH or NAME=PATH with NAME of {', '.join(PEERS)}, got {one}")
        found |= dict.fromkeys([name] if equals else PEERS, path)
    return found


def measure(name: str, pythons: dict[str, str], settings: list[str]) -> dict:
    """What a library's script reports in its last line."""
    command = [pythons.get(name, sys.executable), str(HERE / f"{name}_run.py"), *settings]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode or not answer.stdout.strip():
        raise SystemExit(f"{name} failed: {(answer.stderr.strip() or 'it printed nothing').splitlines()[-1]}")
    return json.loads(answer.stdout.strip().splitlines()[-1])


def table(found: dict[str, dict]) -> str:
    """Lines of the libraries, ours first."""
    ours = found["fedprivjax"]["seconds_per_round"]
    lines = [f"{'library':<32}{'version':>10}{'ms a round':>12}{'over ours':>11}{'accuracy':>10}{'norm':>10}"]
    for name, line in found.items():
        seconds = line["seconds_per_round"]
        lines.append(
            f"{name:<32}{line['version']:>10}{1e3 * seconds:>12.3f}{seconds / ours:>11.1f}"
            f"{line['test_accuracy']:>10.4f}{line['norm']:>10.4f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
