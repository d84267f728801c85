"""What training reads, whatever the task: batches, epoch after epoch, in an order that a seed decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch


class AnyBatch(Protocol):
    """What the trainer needs to know of a batch; the rest is between the batch and its loss."""

    @property
    def source_tokens(self) -> int:
        """Real tokens that the model reads."""

    @property
    def target_tokens(self) -> int:
        """Terms of the loss."""

    def to(self, device: torch.device | str) -> Self:
        """The same batch with its tensors on `device`."""

    def __len__(self) -> int:
        """How many rows it has."""

    def parts(self, count: int) -> list[Self]:
        """Its rows as so many batches of like size; there are at least so many."""


@dataclass(frozen=True, eq=False)
class TensorBatch(ABC):
    """What batches share that are dataclasses of tensors: the first dimension of each counts the rows."""

    def __len__(self) -> int:
        """How many rows it has."""
        return next(len(value) for value in vars(self).values() if isinstance(value, torch.Tensor))

    def parts(self, count: int) -> list[Self]:
        """Its rows as so many batches of like size, in their order; `ValueError` where there are fewer rows."""
        if count > len(self):
            raise ValueError(f"{len(self)} rows are not enough for {count} parts")
        bounds = [len(self) * part // count for part in range(count + 1)]
        return [self._rows(slice(start, end)) for start, end in pairwise(bounds)]

    def _rows(self, rows: slice) -> Self:
        """Some of the rows, their tokens counted anew."""
        by_row = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor | tuple)}
        return replace(self, **{name: value[rows] for name, value in by_row.items()}).counted()

    @abstractmethod
    def counted(self) -> Self:
        """The same batch with the numbers of its tokens as its tensors say."""

    def to(self, device: torch.device | str) -> Self:
        """The same batch with its tensors on `device`."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


PlanT = TypeVar("PlanT", bound=Sized)
BatchT = TypeVar("BatchT", bound=AnyBatch)
BatchT_co = TypeVar("BatchT_co", bound=AnyBatch, covariant=True)


class RealShare(NamedTuple):
    """Real tokens per position, the rest being padding; for one-sided data all three are the same."""

    both: float
    source: float
    target: float


class Feed(Protocol[BatchT_co]):
    """Batches as the trainer and the validation ask for them. Counts and positions are those of all ranks together."""

    @property
    def ranks(self) -> int:
        """So many processes share the batches of each epoch: this one gets those that are its own."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchT_co]:
        """This rank's batches of an epoch from number `start` on; those before are not built."""

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch."""

    def in_order(self) -> Iterator[BatchT_co]:
        """Everything once, the same on every rank and each time: for validation."""

    def real_share(self, epoch: int) -> RealShare:
        """The share of real tokens among the positions of all batches of an epoch."""


class Epochs(ABC, Generic[PlanT, BatchT]):
    """The part of a `Feed` that all kinds have in common.

    Batch k of an epoch is a pure function of (data set, settings, seed, epoch): k is the whole state of an interrupted
    epoch. With several `ranks`, this one gets the batches k with k % ranks == rank.
    """

    def __init__(self, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        self.ranks = ranks
        self._seed, self._rank = seed, rank
        self._planned: tuple[int, PlanT] | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchT]:
        """This rank's batches of an epoch from number `start` on; those before are not built."""
        plan = self._plan(epoch)
        first = start + (self._rank - start) % self.ranks
        for k in range(first, len(plan), self.ranks):
            yield self._batch(plan, k, epoch)

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch, all ranks together."""
        return len(self._plan(epoch))

    def _plan(self, epoch: int) -> PlanT:
        if self._planned is None or self._planned[0] != epoch:
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch])))
            self._planned = epoch, self._make_plan(random, epoch)
        return self._planned[1]

    @abstractmethod
    def _make_plan(self, random: np.random.Generator, epoch: int) -> PlanT:
        """What the batches of an epoch are built from, one entry for each; `random` is the epoch's own."""

    @abstractmethod
    def _batch(self, plan: PlanT, k: int, epoch: int) -> BatchT:
        """Build batch k of the plan of an epoch."""
