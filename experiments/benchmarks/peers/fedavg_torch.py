"""The job's network in PyTorch, for the libraries whose clients use it."""

from collections.abc import Sequence
from itertools import pairwise

import fedavg_job as job
import numpy as np
import torch

torch.set_num_threads(1)  # two threads wait for each other at every small operation if the machine has other work


class Network(torch.nn.Module):
    """Dense layers with relu between them."""

    def __init__(self, start: Sequence[np.ndarray]):
        super().__init__()
        widths = job.mnist.PIXELS, *job.HIDDEN, job.CLASSES
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*ends) for ends in pairwise(widths)])
        self.set_weights(start)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            values = torch.relu(layer(values))
        return self.layers[-1](values)

    def loss(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        return torch.nn.functional.cross_entropy(self(pictures), labels)

    @torch.no_grad()
    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Copy weights that are ordered as `Job.start`."""
        for parameter, array in zip(self.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(np.ascontiguousarray(array.T)))

    def weights(self) -> list[np.ndarray]:
        """Return the weights, ordered as `Job.start`."""
        return [np.ascontiguousarray(parameter.detach().numpy().T) for parameter in self.parameters()]


def records(todo: job.Job, t: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the records of a participant of round t (from 0) in the order of its batches."""
    pictures, labels = todo.records(t, slot)
    return torch.from_numpy(pictures), torch.from_numpy(labels.astype(np.int64))
