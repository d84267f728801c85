"""The pairs of a binarised file, memory-mapped: lengths at once, token ids on demand.

The file is Arrow IPC, any Arrow reader opens it: record batches of columns `source` and `target`, each a list
of uint16 or uint32 token ids without begin and end marks. The schema's metadata names the format, its version and
the fingerprints of the tokenizers that made the ids.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from regard.errors import UserError
from regard.text.tokenizer import TokenizerPair

FORMAT = "regard.pairs"
VERSION = 1

Ids = NDArray[np.uint16] | NDArray[np.uint32]


def pair_schema(tokenizers: TokenizerPair) -> pa.Schema:
    """The schema of a file of pairs, with the narrowest ids that hold the vocabulary of each side."""
    columns = [
        pa.field(side, pa.list_(pa.field("item", id_type(tokenizer.size), nullable=False)), nullable=False)
        for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target))
    ]
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "source_tokenizer": tokenizers.source.fingerprint,
        "target_tokenizer": tokenizers.target.fingerprint,
    }
    return pa.schema(columns, metadata=metadata)


def id_type(size: int) -> pa.DataType:
    """The Arrow type of the ids of a vocabulary of `size` entries."""
    return pa.uint16() if size <= 2**16 else pa.uint32()


@dataclass(frozen=True, slots=True)
class _Column:
    """One side of one record batch, without a copy: line i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int32]
    values: Ids

    def line(self, index: int) -> Ids:
        return self.values[self.offsets[index] : self.offsets[index + 1]]


class PairDataset:
    """Random access to the pairs of a file that `regard.data.binarise.binarise` wrote.

    Only the lengths (8 bytes a pair) are held in memory. It can be pickled: the copy maps the file again.
    """

    def __init__(
        self, path: Path, columns: list[tuple[_Column, _Column]], tokenizers: TokenizerPair | None = None
    ) -> None:
        self.path = path
        self.tokenizers = tokenizers
        """Those that made the ids, if the file was opened with them; batches need what they put around a line."""
        self._columns = columns
        self._starts = [0, *accumulate(len(source.offsets) - 1 for source, _ in columns)]
        self.source_lengths, self.target_lengths = (
            np.concatenate([np.diff(sides[side].offsets) for sides in columns] or [np.empty(0, np.int32)])
            for side in (0, 1)
        )
        """Tokens of each pair, without begin and end marks: int32 arrays of `len(self)`."""

    @classmethod
    def open(cls, path: Path, tokenizers: TokenizerPair | None = None) -> PairDataset:
        """Map a file of pairs; with `tokenizers`, make sure that they made it.

        Raises `UserError` when the file is missing, no such file, damaged, of a later version, or made with other
        tokenizers.
        """
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            _check_metadata(path, reader.schema, tokenizers)
            columns = [_columns(reader.get_batch(index)) for index in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException, ValueError) as error:
            if isinstance(error, OSError) and error.strerror:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from None
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: not a complete Arrow file of pairs ({reason}); binarise again") from None
        return cls(path, columns, tokenizers)

    def __reduce__(self) -> tuple[Any, ...]:
        return PairDataset.open, (self.path, self.tokenizers)

    def __len__(self) -> int:
        return self._starts[-1]

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """The token ids of source and target of one pair: read-only views of the mapped file."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} pairs, and none with index {index}")
        batch = bisect_right(self._starts, index) - 1
        source, target = self._columns[batch]
        line = index - self._starts[batch]
        return source.line(line), target.line(line)


def _check_metadata(path: Path, schema: pa.Schema, tokenizers: TokenizerPair | None) -> None:
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path}: an Arrow file, but not of binarised pairs; make one with 'regard data binarise'")
    if metadata.get("version") != str(VERSION):
        raise UserError(
            f"{path}: format version {metadata.get('version')}, this regard reads {VERSION}; binarise again"
        )
    for side in ("source", "target"):
        if tokenizers and metadata.get(f"{side}_tokenizer") != getattr(tokenizers, side).fingerprint:
            raise UserError(f"{path}: was made with another {side} tokenizer; binarise again with this one")


def _columns(batch: pa.RecordBatch) -> tuple[_Column, _Column]:
    """The two sides of a record batch as arrays, or ValueError if they cannot be what they should be."""
    batch.validate()
    if batch.schema.names != ["source", "target"]:
        raise ValueError(f"its columns are {', '.join(batch.schema.names)}")
    source, target = (_column(batch.column(index)) for index in (0, 1))
    return source, target


def _column(lists: pa.ListArray) -> _Column:
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    within = len(offsets) == 0 or (offsets[0] >= 0 and offsets[-1] <= len(values))
    if lists.null_count or values.dtype not in (np.uint16, np.uint32) or not within or np.any(np.diff(offsets) < 0):
        raise ValueError("its lists of ids are damaged")
    return _Column(offsets, values)
