"""What a step of training needs of memory, counted before it is tried.

What autograd keeps of a few rows is counted exactly, whatever the model is made of. For `rows` rows that are `width`
positions wide it is constant + rows (linear * width + square * width^2): all layers keep in proportion to positions,
and some ways of attention a number for each pair of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.runs import memory
from regard.runs.memory import size
from regard.training.optimizers import Muon
from regard.training.trainer import Trainer

PROBED_WIDTH = 64
"""Rows of at most so many positions are enough to count what longer ones keep."""

SAMPLED = 256
"""So many batches of an epoch, which are in random order, stand for all."""

WORKSPACE = 20 * 2**20
"""What the libraries beneath take for themselves at the first step: code and buffers."""

SPREAD = {"cpu": 1.9}
"""Memory taken for each byte that autograd keeps, by kind of device: on a CPU the C library gives back little of what
lies between tensors. Measured (benchmarks/results/0.3.0.md)."""

SPREAD_ELSEWHERE = 1.2
"""The same for devices whose memory torch manages itself."""

COPIES = {"cpu": 7.0}
"""Copies of the weights that find no room in what steps have freed, when checkpoints are written, read and averaged."""


class Shape(NamedTuple):
    """The size of a batch."""

    rows: int
    width: float
    """Positions of a row; the mean of both sides, where there are two; 1 for images."""

    @property
    def positions(self) -> float:
        """Positions of all rows, padding counted."""
        return self.rows * self.width


def shape(batch: Any) -> Shape:
    """The size of a batch of any kind."""
    tensors = [value for value in vars(batch).values() if isinstance(value, Tensor)]
    widths = [tensor.shape[1] for tensor in tensors if tensor.ndim == 2 and tensor.dtype == torch.int64]
    return Shape(len(tensors[0]), sum(widths) / len(widths) if widths else 1.0)


def shapes(trainer: Trainer, epoch: int) -> list[Shape]:
    """The sizes of the first batches of an epoch: all of a small one, a random sample of a large one."""
    return [shape(batch) for batch in islice(trainer.batches.epoch(epoch), SAMPLED)]


class Kept(NamedTuple):
    """What autograd keeps of a batch for the way back, in bytes."""

    constant: float
    linear: float
    square: float

    def of(self, batch: Shape) -> float:
        return self.constant + batch.rows * (self.linear * batch.width + self.square * batch.width**2)


@dataclass(frozen=True)
class Footprint:
    """Bytes that training needs, by what they are for."""

    held: int
    """The program, its data and the model's weights, as they lie in memory already."""
    weights: int
    """Those of the model, and their moving average if there is one."""
    moments: int
    """What the optimizer remembers."""
    gradients: int
    """Of all replicas."""
    batch: float
    """What is kept of the largest batch."""
    accumulates: bool = False
    """Whether gradients of earlier batches are there while a batch is read."""
    goes_on: bool = False
    """Whether the optimizer remembers already: its moments are among what is held."""
    spread: float = 1.0
    """Memory that a byte of a batch takes."""
    workspace: int = 0
    copies: float = 0.0
    """Copies of the weights that find no room in what steps have freed."""

    @property
    def least(self) -> float:
        """What no arrangement of the same things can do without."""
        return max(self._training(self.batch), self._saving)

    @property
    def peak(self) -> float:
        """What the run is expected to hold at most."""
        most = max(self._training(self.spread * self.batch), self._saving, self._averaging)
        return most + self.workspace + self.copies * self.weights

    @property
    def without_batch(self) -> float:
        """The same if batches were as small as can be."""
        return replace(self, batch=0.0).peak

    def sentence(self, device: torch.device) -> str:
        """The same for the user, beside what is available."""
        return (
            f"memory: about {size(self.peak)} at the peak, of {size(memory.available(device))} available (weights "
            f"{size(self.weights)}, gradients and optimizer {size(self.optimizer)}, kept of the largest batch "
            f"{size(self.batch)}); --plan measures it"
        )

    @property
    def optimizer(self) -> int:
        """Gradients, and what is made of them."""
        return self.gradients + self.moments

    @property
    def _lasting(self) -> int:
        """What is there in each step."""
        return self.held + (0 if self.goes_on else self.moments)

    def _training(self, batch: float) -> float:
        """In a step gradients come as what is kept of the batch goes."""
        return self._lasting + (batch + self.gradients if self.accumulates else max(batch, self.gradients))

    @property
    def _saving(self) -> int:
        """The files of a checkpoint are made in memory first."""
        return self._lasting + self.gradients + self.moments + self.weights

    @property
    def _averaging(self) -> int:
        """At the end: the best weights, a checkpoint, and the sum of the last ones in float64, beside what trains."""
        return self._lasting + self.gradients + self.moments + 4 * self.weights


def footprint(trainer: Trainer, kept: Kept, sizes: list[Shape]) -> Footprint:
    """What training needs with batches of these sizes, of which so much is kept."""
    device = trainer.device.type
    gradients = sum(_bytes(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad)
    moments = 2 * gradients
    if isinstance(trainer.optimizer, Muon):  # it remembers one moment of its matrices, the first group
        moments -= sum(map(_bytes, trainer.optimizer.param_groups[0]["params"]))
    averages = 0 if trainer.average is None else gradients
    readers = 1 if trainer.replicas is None else len(trainer.replicas.models)
    return Footprint(
        held=memory.held().now if device == "cpu" else torch.cuda.memory_allocated(trainer.device),
        weights=sum(_bytes(parameter) for parameter in trainer.model.parameters()) + averages,
        moments=moments,
        gradients=gradients * readers,
        batch=max(map(kept.of, sizes)),
        accumulates=trainer.settings.accumulate > 1,
        goes_on=bool(trainer.optimizer.state),
        spread=SPREAD.get(device, SPREAD_ELSEWHERE),
        workspace=WORKSPACE,
        copies=COPIES.get(device, 0.0),
    )


def count(trainer: Trainer) -> Kept:
    """Count what autograd keeps of one and of two rows, of some width and of half of it.

    The model and the random numbers are left as they are.
    """
    epoch = trainer.progress.epoch
    batch = next((each for each in trainer.batches.epoch(epoch) if shape(each).rows > 1), None)
    if batch is None:
        batch = next(trainer.batches.epoch(epoch))
        only = shape(batch)
        return Kept(0.0, kept_bytes(trainer, batch) / only.positions, 0.0)
    width = min(int(shape(batch).width), PROBED_WIDTH)
    half = max(1, width // 2)
    one, two = (kept_bytes(trainer, part(batch, rows, half)) for rows in (1, 2))
    constant, narrow = 2 * one - two, float(two - one)
    if half == width:  # a single position, or images, which are all of the same width
        return Kept(constant, narrow / half, 0.0)
    wide = (kept_bytes(trainer, part(batch, 2, width)) - constant) / 2
    # narrow = linear half + square half^2, and the same for wide
    square = (wide / width - narrow / half) / (width - half)
    square = max(square, 0.0)
    return Kept(max(constant, 0), narrow / half - square * half, square)


class _Counted(Protocol):
    def counted(self) -> Any: ...


def part(batch: Any, rows: int, width: int) -> Any:
    """The first rows of a batch and, of all but images, their first positions."""
    cut = {
        name: value[:rows] if value.ndim == 4 else value[:rows, *[slice(width)] * (value.ndim - 1)]
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    made: _Counted = replace(batch, **cut)
    return made.counted()


def kept_bytes(trainer: Trainer, batch: Any) -> int:
    """The bytes of all tensors, weights aside, that autograd keeps after the loss of a batch is computed."""
    own = set(_storages(trainer.model))
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    devices = [trainer.device] if trainer.device.type == "cuda" else []
    trainer.model.train()
    with torch.random.fork_rng(devices), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        with trainer.precision():
            sums = trainer.objective(trainer.model, batch.to(trainer.device))
        total = sum(kept.values())
        del sums
    return total


def _storages(model: nn.Module) -> Iterator[int]:
    for tensor in (*model.parameters(), *model.buffers()):
        yield tensor.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
