"""Inputs of results: what `inputs.json` of a results folder holds.

`spec.toml` names the data and the user's modules, and `inputs.json` has digests of their contents, by which results of
files that have changed since are recognised. It identifies neither a seed nor a sample. No guarantee covers its
checksums, which are computed from private data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedprivjax.bounded_read import json_from
from fedprivjax.disk_cache import code_version, digest
from fedprivjax.engine.fingerprint import data_checksums, data_fingerprint, fingerprint
from fedprivjax.experiment.names import code_of
from fedprivjax.experiment.read import to_mapping
from fedprivjax.experiment.section import Imported
from fedprivjax.experiment.settings import TRIAL, Experiment
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.chunk_store import code_text, number_fingerprint
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.sweeps.provenance import Digests, distinct

if TYPE_CHECKING:
    from fedprivjax.experiment.jobs import Job

PARTITION = "partition"


@dataclass(frozen=True)
class Inputs:
    """Data, user code and versions that a run's results depend on.

    Attributes:
        versions: version of the package, digest of its code, and version of jax, by name.
        backend: kind of device, such as "cpu", for which `programs` were written out.
        data: name or file of the dataset.
        checksums: checksums of the arrays of examples, and of their partition, by name, one for each distinct array.
        modules: digest of the module of every user-defined object, by role and import path, and of the user's modules
            that it imports, by name.
        programs: digests of every protocol's programs, of the numbers that they take besides data and randomness, and
            of custom schedules, by label. Empty if the settings name no user-defined object: the settings and versions
            then determine all of them.
    """

    versions: dict[str, str]
    backend: str
    data: str
    checksums: Digests
    modules: dict[str, str]
    programs: Digests

    @property
    def version(self) -> str:
        """Versions as text."""
        return "fedprivjax {fedprivjax} (code {code}) with jax {jax}".format_map(self.versions)

    def text(self) -> str:
        """Return the content of `inputs.json`."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def changes_from(self, other: "Inputs") -> list[str]:
        """Return names of the data and code that differ. Versions are left out."""
        arrays = _different(self.checksums, other.checksums)
        arrays = [name for name in arrays if name != PARTITION] or arrays  # its digest depends on the other arrays
        data = [f"data {self.data!r} ({', '.join(arrays)})"] if arrays else []
        modules = [f"code of {name} (it has changed)" for name in _different(self.modules, other.modules)]
        same = self.versions == other.versions and self.backend == other.backend
        programs = _different(self.programs, other.programs) if same and not modules else []
        return data + modules + [f"code of protocol {label!r}" for label in programs]


def read_inputs(file: Path) -> Inputs | None:
    """Return the content of an `inputs.json`, or None if the file is missing, a link or damaged."""
    try:
        found = Inputs(**json_from(file, follow=False))
        mappings = found.versions, found.checksums, found.modules, found.programs
        return found if all(isinstance(each, dict) for each in mappings) and found.version else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def inputs_of(experiment: Experiment, jobs: "Iterable[Job]") -> Inputs:
    """Return the inputs of an experiment's jobs. Nothing is compiled.

    If the settings name user-defined objects, every program is traced, so that numbers which they read count, too:
    those in the program, in leaves of the protocol and the problem, and in schedules.
    """
    jobs = list(jobs)
    modules = code_of(without_callback(to_mapping(experiment)), experiment.context["folder"])
    checksums = []
    for problem in {id(job.problem): job.problem for job in jobs}.values():
        table = problem.partition_table
        partition = {} if table is None else {PARTITION: _with_data(problem, table.rows)}
        checksums.append({**data_checksums(problem), **partition})
    programs: Digests = {}
    for job in (job for job in jobs if modules and not job.shape.get(TRIAL)):  # all trials have the same programs
        start = job.prepare()
        content = code_text(start), number_fingerprint(start), _custom_schedule(job, start)
        programs.setdefault(job.label, []).append(_with_data(job.problem, *content))
    return Inputs(
        versions={"fedprivjax": version("fedprivjax"), "code": code_version(), "jax": jax.__version__},
        backend=jax.default_backend(),
        data=experiment.problem.dataset,
        checksums=distinct(checksums),
        modules=modules,
        programs=programs,
    )


def without_callback(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the callback, on which no result depends."""
    evaluation = settings.get("evaluation", {})
    return {**settings, "evaluation": {key: value for key, value in evaluation.items() if key != "callback"}}


def _custom_schedule(job: "Job", start: ReadySweep) -> str:
    """Return a digest of a custom scheme's schedule under a fixed seed, or "" for a scheme of this package."""
    if not isinstance(job.scheme, Imported):
        return ""
    drawn = job.participation.draw(start.static.size.rounds, np.random.default_rng(0))
    return fingerprint(drawn.participants, drawn.filled, drawn.dropped)


def _with_data(problem: Problem, *content: str | np.ndarray) -> str:
    """Return a digest of content and all examples.

    A digest of the content alone would tell how many records there are, to anyone who tries all numbers of records.
    """
    return digest(data_fingerprint(problem), *content)


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]
