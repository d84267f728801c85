"""Batches for masked language models: some tokens hidden or changed, to be guessed (Devlin et al. 2019, section 3.1).

Shape suffixes: B rows of the batch, S positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from regard.data.budget import BatchSettings, Indices, Runs, runs_in_order, shuffled_runs
from regard.data.feed import Epochs, RealShare, TensorBatch
from regard.data.rows import framed
from regard.data.tokens import TokenDataset
from regard.data.windows import Windows, cut, pack
from regard.errors import UserError
from regard.settings import Settings
from regard.text.tokenizer import Tokenizer


class MaskingSettings(Settings):
    """How text becomes rows for a masked language model, and what is hidden in them."""

    context: int = Field(128, ge=1, lt=2**31)
    """Most positions of a row, those around a text counted. Longer documents are cut."""
    tokens: int = Field(4096, ge=1)
    """Budget of a batch: rows times positions, padding counted."""
    rows: Literal["documents", "packed"] = "documents"
    """documents: each document is a row, beside others of like length. packed: documents side by side in rows."""
    pool: int = Field(2**16, ge=1)
    """So many random documents at a time are sorted by length, or fitted into rows."""
    share: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that are to be guessed."""
    masked: float = Field(0.8, ge=0, le=1)
    """Share of those that are read as the mask token."""
    swapped: float = Field(0.1, ge=0, le=1)
    """Share of those that are read as a random token; the rest are read as they are."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.masked + self.swapped > 1 + 1e-9:
            raise ValueError(f"masked and swapped are parts of one whole: {self.masked} + {self.swapped} exceeds 1")
        if self.context > self.tokens:
            raise ValueError(f"a row of context: {self.context} exceeds the budget of a batch, tokens: {self.tokens}")
        return self


@dataclass(frozen=True, eq=False)
class MaskedBatch(TensorBatch):
    """Rows of documents with some tokens hidden: ids int64, `scored_BS` bool."""

    tokens_BS: Tensor
    """What the model reads: documents in their frames, some tokens replaced, then padding."""
    targets_BS: Tensor
    """The same before anything was replaced."""
    scored_BS: Tensor
    """Which tokens are to be guessed."""
    real_BS: Tensor | None
    """False at padding; None where documents are numbered or no row has any."""
    documents_BS: Tensor | None
    """The number of each position's document within its row, -1 at padding; None where no row has two of them."""
    source_tokens: int
    """Real positions."""
    target_tokens: int
    """Tokens to be guessed: the terms of the loss."""

    def counted(self) -> MaskedBatch:
        """The same batch with the numbers of its tokens as its masks say."""
        if self.documents_BS is not None:
            real = int((self.documents_BS >= 0).sum())
        else:
            real = self.tokens_BS.numel() if self.real_BS is None else int(self.real_BS.sum())
        return replace(self, source_tokens=real, target_tokens=int(self.scored_BS.sum()))


@dataclass(frozen=True, eq=False)
class _Plan:
    """Batch k of an epoch has the rows `batches[k]`; row r holds the windows `rows[r]`."""

    windows: Windows
    rows: Runs
    batches: Runs

    def __len__(self) -> int:
        return len(self.batches)


class MaskedBatches(Epochs[_Plan, MaskedBatch]):
    """The batches of a corpus of documents, see `Epochs` for their order.

    Each document stands once in each epoch, in the frame that the tokenizer gives a text of its own; one that is longer
    than a row is cut into windows, in each epoch elsewhere. What is hidden is a pure function of (seed, epoch, window),
    other tokens in each epoch, and in validation the same each time. In each row at least one token is to be guessed,
    and never a control token.

    Raises `UserError` when the vocabulary has no mask token, or a row has no room beside the frame.
    """

    def __init__(
        self, dataset: TokenDataset, settings: MaskingSettings, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(seed, rank, ranks)
        self._dataset = dataset
        self._settings = settings
        self._mask = Mask.of(dataset, settings)
        frames = dataset.tokenizer.frames
        self._begin, self._end = frames.begin, frames.end
        self._around = len(frames.begin) + len(frames.end)
        if settings.context <= self._around:
            raise UserError(
                f"context: {settings.context} leaves no room for text beside the {self._around} positions around it"
            )

    def real_share(self, epoch: int) -> RealShare:
        """The share of positions that hold a token."""
        plan = self._plan(epoch)
        positions = plan.rows.sums(plan.windows.lengths + self._around)
        share = int(positions.sum()) / plan.batches.padded(positions)
        return RealShare(share, share, share)

    def in_order(self) -> Iterator[MaskedBatch]:
        """Every document, on every rank, with the same tokens hidden each time: for validation."""
        windows = cut(self._dataset.lengths, self._settings.context - self._around)
        rows = self._rows(windows, None)
        positions = rows.sums(windows.lengths + self._around)
        plan = _Plan(windows, rows, runs_in_order(positions, positions, self._budget()))
        return (self._batch(plan, k, epoch=-1) for k in range(len(plan)))

    def _make_plan(self, random: np.random.Generator, epoch: int) -> _Plan:
        windows = cut(self._dataset.lengths, self._settings.context - self._around, random)
        rows = self._rows(windows, random)
        positions = rows.sums(windows.lengths + self._around)
        return _Plan(windows, rows, shuffled_runs(positions, positions, self._budget(), random))

    def _rows(self, windows: Windows, random: np.random.Generator | None) -> Runs:
        if self._settings.rows == "packed":
            return pack(windows.lengths + self._around, self._settings.context, self._settings.pool, random)
        return Runs.one_by_one(len(windows))

    def _budget(self) -> BatchSettings:
        return BatchSettings(tokens=self._settings.tokens, pool=self._settings.pool)

    def _batch(self, plan: _Plan, k: int, epoch: int) -> MaskedBatch:
        rows = [plan.rows[r] for r in plan.batches[k].tolist()]
        read = [self._read(plan.windows, row) for row in rows]
        shape = len(rows), max(len(ids) for ids, _ in read)
        targets = np.full(shape, self._dataset.tokenizer.pad, np.int64)
        documents = np.full(shape, -1, np.int64)
        tokens, scored = targets.copy(), np.zeros(shape, np.bool_)
        for r, (row, (ids, numbers)) in enumerate(zip(rows, read, strict=True)):
            here = slice(0, len(ids))
            targets[r, here], documents[r, here] = ids, numbers
            # A window stands in one row only, so the first of a row stands for the row.
            random = np.random.default_rng(np.random.SeedSequence([self._seed, epoch + 1], spawn_key=(int(row[0]),)))
            tokens[r, here], scored[r, here] = self._mask(ids, random)
        real, several = documents >= 0, documents.max() > 0
        return MaskedBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            torch.from_numpy(scored),
            None if several or real.all() else torch.from_numpy(real),
            torch.from_numpy(documents) if several else None,
            source_tokens=int(real.sum()),
            target_tokens=int(scored.sum()),
        )

    def _read(self, windows: Windows, row: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of a row, and to which of its documents each belongs."""
        parts = []
        for window in row.tolist():
            start, length = int(windows.starts[window]), int(windows.lengths[window])
            ids = self._dataset.document(int(windows.documents[window]))[start : start + length]
            parts.append(framed(ids, self._begin, self._end, 0, length + self._around))
        return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def control_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that stand for no text, in order."""
    frames = tokenizer.frames
    named = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask}
    return sorted({*frames.begin, *frames.end, *tokenizer.forbidden, *(each for each in named if each is not None)})


@dataclass(frozen=True, eq=False)
class Mask:
    """Hides tokens of a row of ids."""

    settings: MaskingSettings
    mask: int
    control: NDArray[np.int64]
    """Ids that are never hidden, and never put in the place of others."""
    ordinary: NDArray[np.int64]
    """All others."""

    @classmethod
    def of(cls, dataset: TokenDataset, settings: MaskingSettings) -> Mask:
        """For the vocabulary of a data set; `UserError` if that has no mask token."""
        tokenizer = dataset.tokenizer
        if tokenizer.mask is None:
            raise UserError(
                f"{dataset.path}: its tokenizer has no mask token, which a masked language model needs; "
                "learn one with tokenizer.mask: true"
            )
        control = np.array(control_ids(tokenizer), np.int64)
        return cls(settings, tokenizer.mask, control, np.setdiff1d(np.arange(tokenizer.size), control))

    def __call__(
        self, ids: NDArray[np.int64], random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """What is read in place of `ids`, and which of them are to be guessed.

        Of n tokens the share of n are chosen, rounded up or down at random, but at least one where there is one.
        """
        places = np.flatnonzero(~np.isin(ids, self.control))
        wanted = int(self.settings.share * len(places) + random.random())
        chosen = random.choice(places, min(max(wanted, 1), len(places)), replace=False)
        fate = random.random(len(chosen))
        hidden = chosen[fate < self.settings.masked]
        swapped = chosen[(fate >= self.settings.masked) & (fate < self.settings.masked + self.settings.swapped)]
        read, scored = ids.copy(), np.zeros(len(ids), np.bool_)
        read[hidden] = self.mask
        read[swapped] = random.choice(self.ordinary, len(swapped))
        scored[chosen] = True
        return read, scored
