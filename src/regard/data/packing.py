"""Batches for causal language models: documents side by side in rows, and the token that follows each token.

Shape suffixes: B rows of the batch, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard.data.budget import Indices, Runs
from regard.data.feed import Epochs, RealShare, TensorBatch
from regard.data.rows import framed
from regard.data.tokens import TokenDataset
from regard.data.windows import Windows, cut, pack
from regard.errors import UserError
from regard.settings import Settings


class PackingSettings(Settings):
    """How text becomes rows for a causal language model."""

    context: int = Field(256, ge=1, lt=2**31)
    """Positions of a row: as far as the model looks back while it learns. Longer documents are cut."""
    rows: int = Field(16, ge=1)
    """Rows of a batch."""
    order: Literal["packed", "random"] = "packed"
    """packed: documents side by side, each token the target of one prediction an epoch. random: windows that begin
    anywhere in one long text, as nanoGPT takes them; an epoch is as many tokens as the text has."""
    pool: int = Field(2**16, ge=1)
    """So many random documents at a time are fitted into rows."""


@dataclass(frozen=True, eq=False)
class PackedBatch(TensorBatch):
    """Rows of documents: ids int64, `scored_BT` bool, `documents_BT` int64."""

    tokens_BT: Tensor
    """What the model reads: documents, then padding."""
    targets_BT: Tensor
    """The token that follows each of them in its own document."""
    scored_BT: Tensor
    """Where there is one: all positions but padding."""
    documents_BT: Tensor | None
    """The number of each position's document within its row, -1 at padding; None where no row has two of them. Nothing
    may be seen across their borders; padding stands behind everything, where causality hides it."""
    source_tokens: int
    target_tokens: int
    """Real positions, which are the terms of the loss."""

    def counted(self) -> PackedBatch:
        """The same batch with the number of its tokens as its mask says."""
        scored = int(self.scored_BT.sum())
        return replace(self, source_tokens=scored, target_tokens=scored)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The rows of an epoch: row r holds the windows `rows[r]`; batch k the rows from k * height on."""

    windows: Windows
    rows: Runs
    height: int

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.height)

    def batch(self, k: int) -> list[Indices]:
        last = min((k + 1) * self.height, len(self.rows))
        return [self.rows[r] for r in range(k * self.height, last)]


class PackedBatches(Epochs[_Plan, PackedBatch]):
    """The batches of a corpus of documents, see `Epochs` for their order.

    A document is what the tokenizer's frame says, its tokens and, unless it is a whole file, the end token. Each of
    these but the very first is a target once an epoch. A document longer than a row is cut into consecutive windows, in
    each epoch elsewhere; what a window predicts first it predicts from the last token of the window before.

    Raises `UserError` when random windows are asked for of more than one document, or of one shorter than they.
    """

    def __init__(
        self, dataset: TokenDataset, settings: PackingSettings, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(seed, rank, ranks)
        self._dataset = dataset
        self._settings = settings
        self._pad = dataset.tokenizer.pad
        self._begin = dataset.tokenizer.frames.begin
        self._end = () if dataset.documents == "file" else (dataset.tokenizer.eos,)
        self._targets = np.maximum(dataset.lengths.astype(np.int64) + len(self._begin) + len(self._end) - 1, 0)
        if settings.order == "random":
            self._check_length()

    def real_share(self, epoch: int) -> RealShare:
        """The share of positions that hold a token."""
        plan = self._plan(epoch)
        sizes = plan.rows.sums(plan.windows.lengths)
        widest = np.maximum.reduceat(sizes, np.arange(0, len(sizes), plan.height))
        heights = np.diff(np.append(np.arange(0, len(sizes), plan.height), len(sizes)))
        share = int(sizes.sum()) / int((widest * heights).sum())
        return RealShare(share, share, share)

    def in_order(self) -> Iterator[PackedBatch]:
        """Every document, on every rank: for validation."""
        windows = cut(self._targets, self._settings.context)
        rows = pack(windows.lengths, self._settings.context, self._settings.pool)
        plan = _Plan(windows, rows, self._settings.rows)
        return (self._batch(plan, k, 0) for k in range(len(plan)))

    def _make_plan(self, random: np.random.Generator, epoch: int) -> _Plan:
        context, height = self._settings.context, self._settings.rows
        if self._settings.order == "packed":
            windows = cut(self._targets, context, random)
            return _Plan(windows, pack(windows.lengths, context, self._settings.pool, random), height)
        (targets,) = self._targets.tolist()
        count = height * -(-targets // (height * context))
        starts = random.integers(0, targets - context, count, endpoint=True)
        windows = Windows(np.zeros(count, np.int32), starts, np.full(count, context, np.int32))
        return _Plan(windows, Runs.one_by_one(count), height)

    def _batch(self, plan: _Plan, k: int, epoch: int) -> PackedBatch:
        rows = plan.batch(k)
        lengths = plan.windows.lengths
        shape = len(rows), max(int(lengths[row].sum()) for row in rows)
        tokens, targets = np.full(shape, self._pad, np.int64), np.full(shape, self._pad, np.int64)
        documents = np.full(shape, -1, np.int64)
        for r, row in enumerate(rows):
            place = 0
            for number, window in enumerate(row.tolist()):
                ids = self._read(plan.windows, window)
                here = slice(place, place + len(ids) - 1)
                tokens[r, here], targets[r, here], documents[r, here] = ids[:-1], ids[1:], number
                place = here.stop
        scored = documents >= 0
        return PackedBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            torch.from_numpy(scored),
            torch.from_numpy(documents) if documents.max() > 0 else None,
            source_tokens=int(scored.sum()),
            target_tokens=int(scored.sum()),
        )

    def _read(self, windows: Windows, window: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """What a window reads and, one position further, predicts."""
        ids = self._dataset.document(int(windows.documents[window]))
        start = int(windows.starts[window])
        return framed(ids, self._begin, self._end, start, start + int(windows.lengths[window]) + 1)

    def _check_length(self) -> None:
        path, context = self._dataset.path, self._settings.context
        if len(self._dataset) != 1:
            raise UserError(
                f"{path}: random windows are taken from one document, and this has {len(self._dataset):,}; "
                "use order: packed, or let the documents be a file"
            )
        if self._targets[0] < context:
            raise UserError(
                f"{path}: has {self._targets[0]:,} tokens to predict, fewer than a window of context: {context}; "
                "use a smaller context or more text"
            )
