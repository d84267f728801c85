"""Batches of pairs of like length, filled up to a budget of tokens, in an order that a seed decides.

Shape suffixes: B pairs of the batch, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.arrow import Lists
from regard.data.budget import BatchSettings, Indices, Runs, runs_in_order, shuffled_runs
from regard.data.dataset import PairDataset
from regard.data.feed import Epochs, RealShare, TensorBatch
from regard.data.mixing import Mixture
from regard.data.rows import padded
from regard.errors import TooLongError

__all__ = ["Batch", "BatchSettings", "Batches"]


@dataclass(frozen=True, eq=False)
class Batch(TensorBatch):
    """Some pairs as padded tensors: ids int64, masks bool (True = a real token)."""

    source_BS: Tensor
    """Source with what the tokenizer puts around it (our own ones an EOS at its end), padding."""
    source_mask_BS: Tensor
    target_in_BT: Tensor
    """BOS (or what the tokenizer has for it), target, padding: what the decoder reads."""
    target_out_BT: Tensor
    """Target, EOS, padding: what the decoder should say."""
    target_mask_BT: Tensor
    """Target and EOS. Begin tokens after the first, which a search forces on the output, do not count."""
    indices: tuple[int, ...]
    """Which pairs of the data set these are."""
    source_tokens: int
    """Real source tokens, those around the text counted."""
    target_tokens: int
    """Real target tokens, EOS counted: the terms of the loss."""
    aligned_BTS: Tensor | None = None
    """Where it is known, how much of each token of `target_out_BT` each source token stands for: float32, the sum of a
    row being 1, or 0 where nothing is known."""

    def counted(self) -> Batch:
        """The same batch with the numbers of its tokens as its masks say."""
        source, target = int(self.source_mask_BS.sum()), int(self.target_mask_BT.sum())
        return replace(self, source_tokens=source, target_tokens=target)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The batches of an epoch, of pairs as they are in that epoch."""

    runs: Runs
    pairs: PairDataset

    def __len__(self) -> int:
        return len(self.runs)


class Batches(Epochs[_Plan, Batch]):
    """All batches of a data set of pairs: see `Epochs` for their order.

    Each pair stands in one batch of each epoch, or with `weights`, one for each part of the data set, as often as
    `Mixture` says. With `links` (see `regard.data.aligned`), one list for each pair, batches know what is aligned.

    Raises `TooLongError` when a pair exceeds the budget by itself, and `ValueError` for a data set that was opened
    without its tokenizers, which know what stands around a line.
    """

    def __init__(
        self,
        dataset: PairDataset,
        settings: BatchSettings,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        weights: Sequence[float] | None = None,
        links: Lists | None = None,
    ) -> None:
        super().__init__(seed, rank, ranks)
        if dataset.tokenizers is None:
            raise ValueError(f"{dataset.path} was opened without its tokenizers; batches need them")
        self._dataset, self._tokenizers = dataset, dataset.tokenizers
        self._settings, self._links = settings, links
        rows = [len(part) for part in dataset.parts]
        self.mixture = Mixture(rows, weights or [1.0] * len(rows), seed)
        longest = self._positions(dataset)
        misfits = int(np.count_nonzero(longest > settings.tokens))
        if misfits:
            raise TooLongError(
                f"{dataset.path}: {misfits} of {len(dataset)} pairs exceed the budget of {settings.tokens} tokens, "
                f"the longest with {longest.max()}; raise tokens or binarise with a lower max_length"
            )

    def real_share(self, epoch: int) -> RealShare:
        """The share of real tokens, those around a text counted, among the positions of all batches of an epoch."""
        plan = self._plan(epoch)
        runs, sides = plan.runs, self._sides(plan.pairs)
        real = [int(side[runs.order].sum(dtype=np.int64)) for side in sides]
        padded = [runs.padded(side) for side in sides]
        return RealShare(sum(real) / sum(padded), real[0] / padded[0], real[1] / padded[1])

    def in_order(self) -> Iterator[Batch]:
        """Every pair of the data set, by increasing length, on every rank: for validation."""
        pairs = self._dataset
        for indices in runs_in_order(self._positions(pairs), _sort_keys(pairs), self._settings):
            yield self._build(pairs, indices)

    def _make_plan(self, random: np.random.Generator, epoch: int) -> _Plan:
        items = self.mixture.epoch(epoch)
        pairs = self._dataset.at(epoch)
        runs = shuffled_runs(self._positions(pairs), _sort_keys(pairs), self._settings, random, items)
        return _Plan(runs, pairs)

    def _batch(self, plan: _Plan, k: int, epoch: int) -> Batch:
        return self._build(plan.pairs, plan.runs[k])

    def _positions(self, pairs: PairDataset) -> NDArray[np.int32]:
        """Positions of the longer side of each pair."""
        longer: NDArray[np.int32] = np.maximum(*self._sides(pairs))
        return longer

    def _sides(self, pairs: PairDataset) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Positions of the source and of the target of each pair."""
        around_source = len(self._tokenizers.source_begin) + len(self._tokenizers.source_end)
        begin_target = len(self._tokenizers.target_begin)
        return pairs.source_lengths + around_source, pairs.target_lengths + begin_target

    def _build(self, pairs: PairDataset, indices: Indices) -> Batch:
        around = self._tokenizers
        sources, targets = zip(*map(pairs.pair, indices.tolist()), strict=True)
        source_BS, source_mask_BS = padded(sources, around.source_begin, around.source_end, around.source.pad)
        begin, end, padding = around.target_begin, around.target_end, around.target.pad
        target_in_BT, _ = padded(targets, begin, (), padding)
        target_out_BT, target_mask_BT = padded(targets, begin[1:], (end,), padding)
        target_mask_BT[:, : len(begin) - 1] = False
        return Batch(
            source_BS,
            source_mask_BS,
            target_in_BT,
            target_out_BT,
            target_mask_BT,
            tuple(indices.tolist()),
            source_tokens=int(source_mask_BS.sum()),
            target_tokens=int(target_mask_BT.sum()),
            aligned_BTS=self._aligned(indices, target_out_BT.shape[1], source_BS.shape[1]),
        )

    def _aligned(self, indices: Indices, targets: int, sources: int) -> Tensor | None:
        if self._links is None:
            return None
        aligned_BTS = torch.zeros(len(indices), targets, sources)
        before_source, before_target = len(self._tokenizers.source_begin), len(self._tokenizers.target_begin) - 1
        for aligned_TS, index in zip(aligned_BTS, indices.tolist(), strict=True):
            source_L, target_L = torch.from_numpy(self._links[index].astype(np.int64).reshape(-1, 2).T)
            aligned_TS[target_L + before_target, source_L + before_source] = 1.0
        return aligned_BTS / aligned_BTS.sum(dim=2, keepdim=True).clamp(min=1.0)


def _sort_keys(pairs: PairDataset) -> NDArray[np.int64]:
    """Keys that bring pairs of like lengths together: by the longer side, then by the difference of the two.

    The difference rises and falls in turn, so that it does not jump where the longer side grows by one.
    """
    source = pairs.source_lengths.astype(np.int64)
    target = pairs.target_lengths
    longer = np.maximum(source, target)
    keys: NDArray[np.int64] = longer * 2**31 + (source - target) * (2 * (longer % 2) - 1)
    return keys
