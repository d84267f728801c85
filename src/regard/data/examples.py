"""Batches for classification: texts, sentences of words, or images, and what they are labelled as.

Shape suffixes: B examples of the batch, S positions, C channels, H rows, W columns of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.budget import BatchSettings, Indices, Runs, runs_in_order, shuffled_runs
from regard.data.feed import Epochs, RealShare, TensorBatch
from regard.data.labelled import UNSCORED, LabelledDataset
from regard.data.rows import padded
from regard.errors import TooLongError


@dataclass(frozen=True, eq=False)
class LabelledBatch(TensorBatch):
    """Some examples as tensors."""

    inputs: Tensor
    """Begin, text, end, padding as ids int64 [B, S]; or images float32 [B, C, H, W]."""
    real_BS: Tensor | None
    """False at padding; None for images."""
    labels: Tensor
    """int64: [B] of examples as a whole; [B, S] of words, -1 where a position is not the first of its word."""
    indices: tuple[int, ...]
    """Which examples of the data set these are."""
    source_tokens: int
    """Real positions; of images, their number."""
    target_tokens: int
    """Labels: the terms of the loss."""

    def counted(self) -> LabelledBatch:
        """The same batch with the numbers of its positions and labels as its tensors say."""
        real = len(self.inputs) if self.real_BS is None else int(self.real_BS.sum())
        return replace(self, source_tokens=real, target_tokens=int((self.labels != UNSCORED).sum()))


class LabelledBatches(Epochs[Runs, LabelledBatch]):
    """All batches of labelled texts, see `Epochs` for their order. Each stands in one batch of each epoch.

    Raises `TooLongError` when a text exceeds the budget by itself.
    """

    def __init__(
        self, dataset: LabelledDataset, settings: BatchSettings, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(seed, rank, ranks)
        self._dataset = dataset
        self._settings = settings
        frames = dataset.tokenizer.frames
        self._begin, self._end = frames.begin, frames.end
        self._positions = dataset.lengths + len(frames.begin) + len(frames.end)
        if self._positions.max(initial=0) > settings.tokens:
            raise TooLongError(
                f"{dataset.path}: the longest text has {self._positions.max()} tokens, more than the budget of "
                f"{settings.tokens} of a batch; raise tokens or binarise with a lower max_length"
            )

    def real_share(self, epoch: int) -> RealShare:
        """The share of positions that hold a token."""
        share = int(self._positions.sum(dtype=np.int64)) / self._plan(epoch).padded(self._positions)
        return RealShare(share, share, share)

    def in_order(self) -> Iterator[LabelledBatch]:
        """Every text, by increasing length, on every rank: for validation."""
        for indices in runs_in_order(self._positions, self._positions, self._settings):
            yield self._build(indices)

    def _make_plan(self, random: np.random.Generator, epoch: int) -> Runs:
        return shuffled_runs(self._positions, self._positions, self._settings, random)

    def _batch(self, plan: Runs, k: int, epoch: int) -> LabelledBatch:
        return self._build(plan[k])

    def _build(self, indices: Indices) -> LabelledBatch:
        texts, numbers = zip(*map(self._dataset.example, indices.tolist()), strict=True)
        ids_BS, real_BS = padded(texts, self._begin, self._end, self._dataset.tokenizer.pad)
        if self._dataset.scored == "texts":
            labels = torch.from_numpy(np.concatenate(numbers).astype(np.int64))
        else:
            labels = torch.full_like(ids_BS, UNSCORED)
            for row, own in zip(labels, numbers, strict=True):
                row[len(self._begin) : len(self._begin) + len(own)] = torch.from_numpy(own.astype(np.int64))
        return LabelledBatch(
            ids_BS,
            real_BS,
            labels,
            tuple(indices.tolist()),
            source_tokens=int(real_BS.sum()),
            target_tokens=int((labels != UNSCORED).sum()),
        )


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images in memory, and what they are labelled as."""

    images_NCHW: NDArray[np.float32]
    numbers_N: NDArray[np.int64]
    labels: tuple[str, ...]
    """The names of the labels: label n is `labels[n]`."""

    def __post_init__(self) -> None:
        shape = self.images_NCHW.shape
        if len(shape) != 4 or self.numbers_N.shape != shape[:1]:
            raise ValueError(
                f"images of shape {shape} and labels of shape {self.numbers_N.shape} do not belong together"
            )
        if len(self) and not 0 <= self.numbers_N.min() <= self.numbers_N.max() < len(self.labels):
            raise ValueError(f"the numbers of the labels are not all below {len(self.labels)}")

    def __len__(self) -> int:
        return len(self.numbers_N)


class ImageBatches(Epochs[Runs, LabelledBatch]):
    """All batches of images, `size` in each but the last; see `Epochs` for their order."""

    def __init__(self, dataset: ImageDataset, size: int, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(seed, rank, ranks)
        self._dataset = dataset
        self._positions = np.ones(len(dataset), np.int32)
        self._settings = BatchSettings(tokens=size)

    def real_share(self, epoch: int) -> RealShare:
        """Images have no padding."""
        return RealShare(1.0, 1.0, 1.0)

    def in_order(self) -> Iterator[LabelledBatch]:
        """Every image, on every rank: for validation."""
        return map(self._build, runs_in_order(self._positions, self._positions, self._settings))

    def _make_plan(self, random: np.random.Generator, epoch: int) -> Runs:
        return shuffled_runs(self._positions, self._positions, self._settings, random)

    def _batch(self, plan: Runs, k: int, epoch: int) -> LabelledBatch:
        return self._build(plan[k])

    def _build(self, indices: Indices) -> LabelledBatch:
        return LabelledBatch(
            torch.from_numpy(self._dataset.images_NCHW[indices]),
            None,
            torch.from_numpy(self._dataset.numbers_N[indices]),
            tuple(indices.tolist()),
            source_tokens=len(indices),
            target_tokens=len(indices),
        )
