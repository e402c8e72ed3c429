"""What protocols share that compose an algorithm with a privacy object."""

from typing import TYPE_CHECKING, Any

from fedprivjax.method.formatting import changed_settings


class OfParts:
    """Mixin of protocols that compose `algorithm` with `privacy`.

    Attributes:
        known: facts that were read once of the algorithm, or None before calibration.
    """

    if TYPE_CHECKING:  # fields, or properties
        known: Any
        step_size: Any
        step_scale: Any

        @property
        def algorithm(self) -> Any:
            """The algorithm of machines and server."""

        @property
        def privacy(self) -> Any:
            """The object that bounds, releases and accounts for everything that leaves a machine."""

    @property
    def _algorithm(self) -> Any:
        """The planned algorithm, if it plans anything."""
        return self.algorithm if self.known is None or self.known.algorithm is None else self.known.algorithm

    @property
    def _step(self) -> Any:
        return self.step_scale * self.step_size


class NamedByAlgorithm(OfParts):
    """Mixin of pairs, whose name is their algorithm's, and whose clip and trust model are their privacy object's."""

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    def __str__(self) -> str:
        own = changed_settings(self, "algorithm", "privacy")
        return ", ".join([f"{self.algorithm} with {self.privacy}", *own])

    @property
    def clip(self) -> Any:
        """The privacy object's clip."""
        return self.privacy.clip

    @property
    def trust(self) -> str:
        """The privacy object's trust model."""
        return self.privacy.trust
