"""Results of a finished experiment: datasets, guarantees, settings and provenance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import xarray as xr

from fedprivjax.bounded_read import Unreadable, toml_value
from fedprivjax.checks.printable import printable
from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment import Experiment, folder, parse, tuning_experiment
from fedprivjax.experiment.settings import TRIAL
from fedprivjax.experiment.tuning import Choice, choices, selected
from fedprivjax.privacy.rounding import up
from fedprivjax.sweeps.provenance import Provenance
from fedprivjax.sweeps.schema import custom_metrics


class UnknownLabel(Refusal, KeyError):
    """Raised for a protocol label that is not in the results. It is also a `KeyError`, as for any mapping."""


@dataclass(frozen=True, eq=False)
class Results(Mapping[str, xr.Dataset]):
    """Results of an experiment: a mapping from each protocol's label to an xarray dataset.

    Attributes:
        folder: results folder, or the folder of the file that was loaded.
        datasets: one dataset of results per protocol, by label. Its dimensions are `seed`, `round`, the swept settings
            of the experiment, and the settings that are swept for this protocol alone.
        provenance: how the results were computed, by name: versions, commit, date, wall time, computer, checksums of
            the data.
        settings: text of the experiment file that was run (`spec.toml` in the folder), or empty if unknown.
    """

    folder: Path
    datasets: dict[str, xr.Dataset]
    provenance: Provenance
    settings: str

    @cached_property
    def spec(self) -> Experiment:
        """The experiment's settings, read without importing user code, constructing methods or loading data.

        To run the experiment again, load `spec.toml` with `experiment.load`.

        Raises:
            Refusal: if `spec.toml` is missing or damaged, or another version wrote it with other keys.
        """
        file = self.folder / folder.SPEC
        if not self.settings:
            raise Refusal(f"results folder must hold {folder.SPEC}, got {self.folder} without it")
        written = f"{folder.SPEC}, written by fedprivjax {self.provenance.get('fedprivjax', 'of an unknown version')}"
        try:
            with within(written):
                return parse(toml_value(self.settings), self.folder, recorded=custom_metrics(self.datasets.values()))
        except Unreadable as error:
            raise Refusal(f"{file} is not valid TOML: {error}") from None

    @cached_property
    def best(self) -> dict[str, xr.Dataset]:
        """Datasets by label, with each protocol's own grid reduced to its best point. Tables and plots show these.

        The best point is selected on the results themselves, so no guarantee covers the selection.

        Raises:
            Refusal: if the results do not belong to the settings.
        """
        require_of(self.spec, self.datasets)
        return selected(self.spec, self.datasets)

    @cached_property
    def choices(self) -> dict[str, Choice]:
        """Points that `[tuning]` chose on other data, by protocol label. Empty without `[tuning]` or its runs."""
        kept = self.folder / folder.CHOICE
        if self.spec.tuning is None or not (kept / folder.RESULTS).is_file():
            return {}
        if kept.is_symlink():
            raise Refusal(f"{kept} must be a folder, got a link. Copy the folder that it names")
        return choices(self.spec, tuning_experiment(self.spec), folder.load(kept))

    def __getitem__(self, label: str) -> xr.Dataset:
        try:
            require_choice("protocol label", label, self.datasets)
        except Refusal as refusal:
            raise UnknownLabel(str(refusal)) from None
        return self.datasets[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.datasets)

    def __len__(self) -> int:
        return len(self.datasets)

    def __str__(self) -> str:
        made = self.provenance
        took = "" if made.get("wall_seconds") is None else f", in {made['wall_seconds']:.3g} s"
        version, date, device = (made.get(name, "?") for name in ("fedprivjax", "date", "device"))
        origin = f"fedprivjax {version}, {date}{took}, on {device}"
        return printable("\n  ".join([f"results in {self.folder}", origin, *map(self._line, self.datasets)]))

    __repr__ = __str__

    def _line(self, label: str) -> str:
        data = self.datasets[label]
        sizes = " × ".join(f"{size} {name}" for name, size in data["diverged"].sizes.items())
        epsilons = data["realised_epsilon"].values
        private = np.isfinite(epsilons).any()
        privacy = f"ε from {up(np.nanmin(epsilons), 3)} to {up(np.nanmax(epsilons), 3)}" if private else "non-private"
        return f"{label}: {sizes}; {privacy} at δ = {data.attrs['delta']:g}"


def load(results: str | Path) -> Results:
    """Return the results of an experiment from a results folder, or from a netCDF file.

    Args:
        results: results folder of `fedprivjax run`, or a netCDF file such as `results.nc` of this folder.

    Raises:
        Refusal: if a file is missing or cannot be read.
    """
    given = Path(results)
    if given.is_dir():
        found, attributes = folder.read(given)
        return Results(given, found, attributes["provenance"], folder.load_settings(given))
    if not given.is_file():
        raise Refusal(f"results folder must exist, got {given}. {folder.RUN_FIRST}")
    found, attributes = folder.load_file(given)
    return Results(given.parent, found, attributes["provenance"], str(attributes.get("settings", "")))


def require_of(spec: Experiment, datasets: Mapping[str, xr.Dataset]) -> None:
    """Raise Refusal unless the datasets have the protocols and the axes of an experiment, with its swept values."""
    for one in spec.protocol:
        require_choice("protocol label", one.label, datasets)
        data = datasets[one.label]
        if data.attrs["delta"] != spec.evaluation.delta:
            wanted = f"delta of the results of {one.label!r} must be that in {folder.SPEC}, {spec.evaluation.delta:g}"
            raise Refusal(f"{wanted}, got {data.attrs['delta']:g}. Load them with the {folder.SPEC} of their run")
        found, axes = set(map(str, data["diverged"].dims)), {*spec.sweep.over, *one.grid}
        missing = {*one.grid} - found | {
            n for n, each in spec.sweep.over.items() if not np.isin(each, data.coords.get(n, each)).all()
        }
        if wrong := sorted(missing | found - axes - {"seed", TRIAL}):
            wanted = f"results of {one.label!r} must have the axes and values in {folder.SPEC}"
            raise Refusal(f"{wanted}, got others for {', '.join(wrong)}. Load them with the {folder.SPEC} of their run")
