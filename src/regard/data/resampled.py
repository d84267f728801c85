"""Pairs whose words are segmented anew in each epoch (see `regard.text.subword_dropout`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from regard.data.arrow import Chunk, Lists, damaged
from regard.data.dataset import KIND, PairDataset
from regard.settings import Settings
from regard.text.subword_dropout import SubwordDropout, segments
from regard.text.tokenizer import Tokenizer, TokenizerPair


class SubwordDropoutSettings(Settings):
    """BPE-dropout (Provilkov et al. 2020): how probably a merge is left out when words are cut into subwords. A lone
    number is meant for both sides.
    """

    source: float = Field(0.0, ge=0, le=1)
    """For the source: 0 is without, 0.1 usual, and about 0.25 does as much to text without spaces between words."""
    target: float = Field(0.0, ge=0, le=1)
    """For the target."""

    @property
    def any(self) -> bool:
        """Whether a side is segmented anew at all."""
        return bool(self.source or self.target)

    @model_validator(mode="before")
    @classmethod
    def _for_both_sides(cls, value: Any) -> Any:
        return {"source": value, "target": value} if isinstance(value, int | float | str) else value


def refuse_unfit(tokenizers: TokenizerPair, settings: SubwordDropoutSettings) -> None:
    """Raise `UserError` where a side is to be segmented anew by a tokenizer that cannot do that."""
    for rate, tokenizer in ((settings.source, tokenizers.source), (settings.target, tokenizers.target)):
        if rate:
            SubwordDropout(tokenizer)


class ResampledPairs(PairDataset):
    """The pairs of a data set, and as they are in each epoch: a pure function of (data set, settings, seed, epoch).

    Each occurrence of a word is segmented by itself. A pair seen several times in an epoch is the same each time. A
    side with more than `longest` tokens after that is left as the tokenizer segments it. In memory are a bit for each
    token of the data set, and the ids of one epoch (2 bytes each, or 4 of a vocabulary above 65,536 pieces).

    Raises `UserError` for a tokenizer without merges, or ids that it cannot have made, and `ValueError` for a data set
    that was opened without its tokenizers.
    """

    def __init__(self, pairs: PairDataset, settings: SubwordDropoutSettings, seed: int, longest: int) -> None:
        if pairs.tokenizers is None:
            raise ValueError(f"{pairs.path} was opened without its tokenizers; segmenting anew needs them")
        source, target = pairs.sides
        super().__init__(pairs.path, source, target, pairs.tokenizers)
        self._parts = pairs.parts
        self._given = pairs, settings, seed, longest
        self._seed = seed
        self._source_lines = _Lines(source, pairs.tokenizers.source, settings.source, longest)
        self._target_lines = _Lines(target, pairs.tokenizers.target, settings.target, longest)

    def __reduce__(self) -> tuple[Any, ...]:
        return ResampledPairs, self._given

    def at(self, epoch: int) -> PairDataset:
        """The pairs of an epoch."""
        return _EpochPairs(
            self, epoch, self._source_lines.at(self._seed, epoch, 1), self._target_lines.at(self._seed, epoch, 2)
        )


class _EpochPairs(PairDataset):
    def __init__(self, origin: ResampledPairs, epoch: int, source: Lists, target: Lists) -> None:
        super().__init__(origin.path, source, target, origin.tokenizers)
        self._origin, self._epoch = origin, epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return ResampledPairs.at, (self._origin, self._epoch)


class _Lines:
    """One side of the pairs."""

    def __init__(self, lines: Lists, tokenizer: Tokenizer, rate: float, longest: int) -> None:
        self._lines, self._rate, self._longest = lines, rate, longest
        self._begins: list[NDArray[np.uint8]] = []
        """Of each chunk, which ids begin a word: a bit for each."""
        if rate:
            self._dropout = SubwordDropout(tokenizer)
            borders = self._dropout.borders()
            try:
                for chunk in lines.chunks:
                    self._begins.append(np.packbits(borders.begins(_ids(chunk), np.diff(chunk.offsets))))
            except (ValueError, IndexError) as error:
                raise damaged(lines.path, KIND, str(error)) from None

    def at(self, seed: int, epoch: int, stream: int) -> Lists:
        """The lines as they are in an epoch."""
        if not self._rate:
            return self._lines
        sequence = np.random.SeedSequence([seed, epoch], spawn_key=(stream,))
        random = np.random.Generator(np.random.PCG64(sequence))
        chunks = zip(self._lines.chunks, self._begins, strict=True)
        return Lists(self._lines.path, [self._sample(chunk, bits, random) for chunk, bits in chunks])

    def _sample(self, chunk: Chunk, bits: NDArray[np.uint8], random: np.random.Generator) -> Chunk:
        ids = _ids(chunk)
        begins = np.unpackbits(bits, count=len(ids)).view(np.bool_)
        values, word_sizes = self._dropout.sample(ids, begins, self._rate, random)
        words = _sums(begins)[chunk.offsets - chunk.offsets[0]]
        offsets = _sums(word_sizes)[words]
        sizes = np.diff(offsets)
        too_long = sizes > self._longest
        if too_long.any():
            starts = np.where(too_long, len(values) + chunk.offsets[:-1] - chunk.offsets[0], offsets[:-1])
            sizes = np.where(too_long, np.diff(chunk.offsets), sizes)
            values = np.concatenate((values, ids))[segments(starts, sizes)]
            offsets = _sums(sizes)
        values.flags.writeable = False
        return Chunk(offsets.astype(np.int32), values)


def _ids(chunk: Chunk) -> NDArray[Any]:
    return chunk.values[chunk.offsets[0] : chunk.offsets[-1]]


def _sums(values: NDArray[Any]) -> NDArray[np.int64]:
    """The sum of all values before each place, and of all."""
    return np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
