"""`[problem] model`: networks instead of a linear predictor, each kind with its own keys."""

from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from flax import linen as nn
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream, by_machine, table
from fedprivjax.datasets.as_problem import described, from_dataset
from fedprivjax.experiment.reflection import Reflected, sections
from fedprivjax.experiment.section import OWN
from fedprivjax.experiment.user_objects import Imported, made
from fedprivjax.problem.build import general_problem
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.networks import NETWORKS
from fedprivjax.problem.problem import Problem


def _widths(value: Any, info: ValidationInfo) -> Any:
    """Raise Refusal if `value` has integers but is not a list of layer widths. Other types are left to validation."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        return value
    if not isinstance(value, list) or min(value, default=1) < 1:
        wanted = f"problem.{info.field_name} must be a list of layer widths, each at least 1, got {value}"
        raise Refusal(f"{wanted}. Write {info.field_name} = [64], or leave model out for a linear predictor")
    return value


Widths = Annotated[list[int], BeforeValidator(_widths)]


class Model(Reflected):
    """A model in place of the linear predictor.

    Attributes:
        start_seed: seed of the first parameters.
    """

    filled = ("scores", "parent", "name")
    types = {tuple[int, ...]: Widths}
    start_seed: int = Field(default=0, ge=0)

    def make(self) -> Any:
        """Return the flax module."""
        return self.made()

    def problem(self, data: Dataset | Stream, loss: LinearLoss | None, **options: Any) -> Problem:
        """Return the problem of fitting the model to a dataset. `options` are further arguments of `from_dataset`."""
        return from_dataset(data, loss, network=self.make(), start_seed=self.start_seed, **options)


class OwnModel(Imported, Model):
    """A custom model by import path: a flax module, or a class or function that returns one.

    With `model_start`, it is a loss `(parameters, example) -> scalar` itself; an example is (features, label).

    Attributes:
        model_path: "module:name", in a module that is installed or next to the experiment file.
        model_options: arguments of the class or function.
        model_start: path of a function `(example) -> parameters`, called with an example of zeros.
        model_correct: path of a function `(parameters, example)` that returns 1.0 if the prediction is right.
    """

    what, paths = "model", {"found": "model_path", "start": "model_start", "correct": "model_correct"}
    model_path: str
    model_options: dict[str, Any] = {}
    model_start: str | None = None
    model_correct: str | None = None
    start: Any = Field(default=None, exclude=True, repr=False)
    correct: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="after")
    def _check(self):
        if self.model_start is None and self.model_correct is not None:
            raise Refusal(f"problem.model_correct must go with model_start, got {self.model_correct!r} alone")
        if self.model_start is not None and self.model_options:
            raise Refusal("problem.model_options must be left out with model_start: the model is the loss itself")
        return self

    def make(self):
        return made("model", self.model_path, self.found, self.model_options, nn.Module)

    def problem(self, data, loss, **options):
        if self.start is None:
            return super().problem(data, loss, **options)
        if loss is not None or isinstance(data, Stream):
            wrong = "loss must be left out" if loss is not None else "dataset must be stored"
            raise Refusal(f"problem.{wrong} with model_start: the model is the loss of an example")
        pool = data.inputs(data.features), data.labels
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), pool)
        test = None
        if data.test_features is not None:
            test = data.inputs(data.test_features), data.test_labels
        if options["partition_table"] is None and data.machine_of is not None:
            options["partition_table"] = table(by_machine(data.machine_of))[0]
        problem = general_problem(self.found, pool, self.start(zeros), test=test, correct=self.correct, **options)
        return described(problem, data)


if TYPE_CHECKING:
    ModelSettings = Model
else:
    ModelSettings = sections(Model, {**NETWORKS, OWN: OwnModel})
