"""Batches of pairs of like length, filled up to a budget of tokens, in an order that a seed decides.

Shape suffixes: B pairs of the batch, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.data.dataset import Ids, PairDataset
from regard.errors import UserError
from regard.settings import Settings
from regard.text.tokenizer import Tokenizer

PAD, BOS, EOS = Tokenizer.pad, Tokenizer.bos, Tokenizer.eos


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs as padded tensors: ids int64, masks bool (True = a real token)."""

    source_BS: Tensor
    """Source, EOS, padding."""
    source_mask_BS: Tensor
    target_in_BT: Tensor
    """BOS, target, padding: what the decoder reads."""
    target_out_BT: Tensor
    """Target, EOS, padding: what the decoder should say."""
    target_mask_BT: Tensor
    indices: tuple[int, ...]
    """Which pairs of the data set these are."""
    source_tokens: int
    """Real source tokens, EOS counted."""
    target_tokens: int
    """Real target tokens, EOS counted: the terms of the loss."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        return Batch(
            self.source_BS.to(device),
            self.source_mask_BS.to(device),
            self.target_in_BT.to(device),
            self.target_out_BT.to(device),
            self.target_mask_BT.to(device),
            self.indices,
            self.source_tokens,
            self.target_tokens,
        )


class BatchSettings(Settings):
    """How pairs are put together."""

    tokens: int = Field(default=4096, ge=1)
    """Budget of a batch: pairs times positions of its longest side, EOS and padding counted."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Most pairs of a batch; none by default."""
    pool: int = Field(default=2**18, ge=1)
    """So many random pairs at a time are sorted by length and cut into batches."""


class RealShare(NamedTuple):
    """Real tokens per position, the rest being padding."""

    both: float
    source: float
    target: float


class _Plan(NamedTuple):
    """The batches of an epoch: batch k holds the pairs `order[starts[k] : ends[k]]`."""

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Batches:
    """All batches of a data set, epoch after epoch.

    Batch k of an epoch is a pure function of (data set, settings, seed, epoch): k is the whole state of an
    interrupted epoch. Each pair stands in exactly one batch of each epoch. With several `ranks`, this one gets the
    batches k with k % ranks == rank; counts and positions are those of all ranks together.

    Raises `UserError` when a pair exceeds the budget by itself.
    """

    def __init__(
        self, dataset: PairDataset, settings: BatchSettings, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        self._dataset = dataset
        self._settings = settings
        self._seed = seed
        self._rank, self._ranks = rank, ranks
        self._planned: tuple[int, _Plan] | None = None
        longest = np.maximum(dataset.source_lengths, dataset.target_lengths) + 1
        misfits = int(np.count_nonzero(longest > settings.tokens))
        if misfits:
            raise UserError(
                f"{dataset.path}: {misfits} of {len(dataset)} pairs exceed the budget of {settings.tokens} tokens, "
                f"the longest with {longest.max()}; raise tokens or binarise with a lower max_length"
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; those before are not built."""
        plan = self._plan(epoch)
        first = start + (self._rank - start) % self._ranks
        for k in range(first, len(plan.starts), self._ranks):
            yield self._build(plan.order[plan.starts[k] : plan.ends[k]])

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch, all ranks together."""
        return len(self._plan(epoch).starts)

    def real_share(self, epoch: int) -> RealShare:
        """The share of real tokens, EOS counted, among the positions of all batches of an epoch."""
        plan = self._plan(epoch)
        by_place = np.argsort(plan.starts)
        starts, sizes = plan.starts[by_place], (plan.ends - plan.starts)[by_place]
        real, padded = [], []
        for lengths in (self._dataset.source_lengths, self._dataset.target_lengths):
            positions = lengths[plan.order] + 1
            real.append(int(positions.sum(dtype=np.int64)))
            padded.append(int((np.maximum.reduceat(positions, starts) * sizes).sum()))
        return RealShare(sum(real) / sum(padded), real[0] / padded[0], real[1] / padded[1])

    def in_order(self) -> Iterator[Batch]:
        """Every pair of the data set, by increasing length, on every rank: for validation."""
        order = np.arange(len(self._dataset), dtype=np.int32)
        order = order[np.argsort(self._sort_keys(order), kind="stable")]
        for start, end in self._cuts(order):
            yield self._build(order[start:end])

    def _plan(self, epoch: int) -> _Plan:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._make_plan(epoch)
        return self._planned[1]

    def _make_plan(self, epoch: int) -> _Plan:
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch])))
        order = np.arange(len(self._dataset), dtype=np.int32)
        random.shuffle(order)
        cuts = []
        for place in range(0, len(order), self._settings.pool):
            pool = order[place : place + self._settings.pool]
            pool[:] = pool[np.argsort(self._sort_keys(pool), kind="stable")]
            cuts += [(place + start, place + end) for start, end in self._cuts(pool)]
        batches = np.array(cuts, dtype=np.int64).reshape(-1, 2)
        random.shuffle(batches)
        return _Plan(order, batches[:, 0], batches[:, 1])

    def _sort_keys(self, indices: NDArray[np.int32]) -> NDArray[np.int64]:
        """Keys that bring pairs of like lengths together: by the longer side, then by the difference of the two.

        The difference rises and falls in turn, so that it does not jump where the longer side grows by one.
        """
        source = self._dataset.source_lengths[indices].astype(np.int64)
        target = self._dataset.target_lengths[indices]
        longer = np.maximum(source, target)
        keys: NDArray[np.int64] = longer * 2**31 + (source - target) * (2 * (longer % 2) - 1)
        return keys

    def _cuts(self, order: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Cut sorted pairs into runs (start, end), each as long as the budget allows."""
        positions = np.maximum(self._dataset.source_lengths[order], self._dataset.target_lengths[order]) + 1
        most = self._settings.max_sentences or len(order)
        start = 0
        while start < len(order):
            window = positions[start : start + min(most, self._settings.tokens // int(positions[start]))]
            padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
            size = int(np.searchsorted(padded, self._settings.tokens, side="right"))
            yield start, start + size
            start += size

    def _build(self, indices: NDArray[np.int32]) -> Batch:
        sources, targets = zip(*map(self._dataset.pair, indices.tolist()), strict=True)
        source_BS, source_mask_BS = _padded(sources)
        target_out_BT, target_mask_BT = _padded(targets)
        target_in_BT = torch.full_like(target_out_BT, PAD)
        target_in_BT[:, 0] = BOS
        target_in_BT[:, 1:] = target_out_BT[:, :-1].masked_fill(~target_mask_BT[:, 1:], PAD)
        return Batch(
            source_BS,
            source_mask_BS,
            target_in_BT,
            target_out_BT,
            target_mask_BT,
            tuple(indices.tolist()),
            source_tokens=int(source_mask_BS.sum()),
            target_tokens=int(target_mask_BT.sum()),
        )


def _padded(lines: tuple[Ids, ...]) -> tuple[Tensor, Tensor]:
    """Each line, EOS and padding as a row of ids, and which of them are not padding."""
    lengths = np.array([len(line) for line in lines])[:, None]
    positions = np.arange(lengths.max() + 1)
    ids = np.full((len(lines), len(positions)), PAD, dtype=np.int64)
    ids[positions < lengths] = np.concatenate(lines)
    ids[positions == lengths] = EOS
    return torch.from_numpy(ids), torch.from_numpy(positions <= lengths)
