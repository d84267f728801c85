"""The pairs of a binarised file (see `regard.data.arrow`), in columns `source` and `target`, without begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from regard.data.arrow import ArrowFile, Ids, Lists, arrow_schema, id_type, list_of
from regard.text.tokenizer import TokenizerPair

FORMAT = "regard.pairs"
KIND = "pairs"


def pair_schema(tokenizers: TokenizerPair) -> pa.Schema:
    """The schema of a file of pairs, with the narrowest ids that hold the vocabulary of each side."""
    columns = {
        "source": list_of(id_type(tokenizers.source.size)),
        "target": list_of(id_type(tokenizers.target.size)),
    }
    metadata = {
        "source_tokenizer": tokenizers.source.fingerprint,
        "target_tokenizer": tokenizers.target.fingerprint,
    }
    return arrow_schema(FORMAT, columns, metadata)


class PairDataset:
    """Random access to the pairs of a file that `regard.data.binarise.binarise` wrote.

    Only the lengths (8 bytes a pair) are held in memory. It can be pickled: the copy maps the file again.
    """

    def __init__(self, path: Path, source: Lists, target: Lists, tokenizers: TokenizerPair | None = None) -> None:
        self.path = path
        self.tokenizers = tokenizers
        """Those that made the ids, if the file was opened with them; batches need what they put around a line."""
        self._source, self._target = source, target
        self.source_lengths, self.target_lengths = source.lengths, target.lengths
        """Tokens of each pair, without begin and end marks: int32 arrays of `len(self)`."""
        self._parts: tuple[PairDataset, ...] = ()

    @classmethod
    def open(cls, path: Path, tokenizers: TokenizerPair | None = None) -> PairDataset:
        """Map a file of pairs; with `tokenizers`, make sure that they made it.

        Raises `UserError` when the file is missing, no such file, damaged, of a later version, or made with other
        tokenizers.
        """
        makers = {
            "source_tokenizer": tokenizers.source if tokenizers else None,
            "target_tokenizer": tokenizers.target if tokenizers else None,
        }
        file = ArrowFile.open(path, FORMAT, KIND, ["source", "target"], makers)
        return cls(path, file.lists(0, KIND), file.lists(1, KIND), tokenizers)

    @classmethod
    def joined(cls, parts: Sequence[PairDataset]) -> PairDataset:
        """The pairs of several data sets of the same tokenizers, one after the other."""
        first, *more = parts
        if not more:
            return first
        source, target = (Lists.joined([getattr(part, side) for part in parts]) for side in ("_source", "_target"))
        whole = cls(first.path, source, target, first.tokenizers)
        whole._parts = tuple(parts)
        return whole

    def __reduce__(self) -> tuple[Any, ...]:
        if self._parts:
            return PairDataset.joined, (self._parts,)
        return PairDataset.open, (self.path, self.tokenizers)

    def __len__(self) -> int:
        return len(self._source)

    @property
    def parts(self) -> tuple[PairDataset, ...]:
        """The data sets that it was joined from, in their order, or itself."""
        return self._parts or (self,)

    @property
    def sides(self) -> tuple[Lists, Lists]:
        """The ids of all sources and of all targets."""
        return self._source, self._target

    def at(self, epoch: int) -> PairDataset:
        """The same pairs as they are in an epoch: here always these."""
        return self

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """The token ids of source and target of one pair: read-only views of the mapped file."""
        return self._source[index], self._target[index]
