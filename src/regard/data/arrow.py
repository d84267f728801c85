"""Files of token ids as Arrow IPC, memory-mapped: what all kinds of data sets have in common.

Any Arrow reader opens them. A column of ids is a list of uint16 or uint32 in each record batch. The schema's metadata
names the format, its version and the fingerprints of the tokenizers that made the ids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from regard.errors import UserError
from regard.text.tokenizer import Tokenizer

VERSION = 1

Ids = NDArray[np.uint16] | NDArray[np.uint32]


def id_type(size: int) -> pa.DataType:
    """The Arrow type of the ids of a vocabulary of `size` entries."""
    return pa.uint16() if size <= 2**16 else pa.uint32()


def list_of(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of lists without nulls."""
    return pa.list_(pa.field("item", kind, nullable=False))


def arrow_schema(format: str, columns: Mapping[str, pa.DataType], metadata: Mapping[str, str]) -> pa.Schema:
    """The schema of a file: its columns, and in its metadata what it is."""
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"format": format, "version": str(VERSION), **metadata})


@dataclass(frozen=True)
class ArrowFile:
    """An open file: its record batches, and the metadata that says what they mean."""

    path: Path
    metadata: dict[str, str]
    batches: list[pa.RecordBatch]

    @classmethod
    def open(
        cls, path: Path, format: str, kind: str, columns: Sequence[str], tokenizers: Mapping[str, Tokenizer | None]
    ) -> ArrowFile:
        """Map a file.

        Args:
            format: what its metadata must name; `kind` says the same in words.
            columns: their names, in order.
            tokenizers: by the name of the metadata's key the tokenizer that must have made the ids, or None if any may.

        Raises:
            UserError: the file is missing, no such file, damaged, of a later version, or made with other tokenizers.
        """
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            _check_metadata(path, metadata, format, kind, tokenizers)
            if reader.schema.names != list(columns):
                raise ValueError(f"its columns are {', '.join(reader.schema.names)}")
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate()
        except (OSError, pa.ArrowException, ValueError) as error:
            if isinstance(error, OSError) and error.strerror:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from None
            raise damaged(path, kind, str(error)) from None
        return cls(path, metadata, batches)

    def lists(self, column: int, kind: str, dtypes: Sequence[type[np.generic]] = (np.uint16, np.uint32)) -> Lists:
        """A column of lists; `UserError` if it cannot be one."""
        try:
            return Lists(self.path, [_chunk(batch.column(column), dtypes) for batch in self.batches])
        except (pa.ArrowException, ValueError, AttributeError) as error:
            raise damaged(self.path, kind, str(error)) from None


def damaged(path: Path, kind: str, reason: str) -> UserError:
    """What to say of a file that is not whole."""
    first = (reason.splitlines() or ["it is empty"])[0]
    return UserError(f"{path}: not a complete Arrow file of {kind} ({first}); binarise again")


def _check_metadata(
    path: Path, metadata: Mapping[str, str], format: str, kind: str, tokenizers: Mapping[str, Tokenizer | None]
) -> None:
    if metadata.get("format") != format:
        raise UserError(f"{path}: an Arrow file, but not of binarised {kind}; make one with 'regard data binarise'")
    if metadata.get("version") != str(VERSION):
        raise UserError(
            f"{path}: format version {metadata.get('version')}, this regard reads {VERSION}; binarise again"
        )
    for key, tokenizer in tokenizers.items():
        if tokenizer is not None and metadata.get(key) != tokenizer.fingerprint:
            raise UserError(f"{path}: was made with another {key.replace('_', ' ')}; binarise again with this one")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of one record batch, without a copy: list i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int32]
    values: NDArray[Any]


def _chunk(lists: pa.ListArray, dtypes: Sequence[type[np.generic]]) -> Chunk:
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    within = len(offsets) == 0 or (offsets[0] >= 0 and offsets[-1] <= len(values))
    if lists.null_count or values.dtype not in dtypes or not within or np.any(np.diff(offsets) < 0):
        raise ValueError("its lists are damaged")
    return Chunk(offsets, values)


class Lists:
    """A column of lists over all record batches: lengths at once, items on demand as views that cannot be written to.

    Only the lengths (4 bytes a list) are held in memory.
    """

    def __init__(self, path: Path, chunks: list[Chunk]) -> None:
        self.path = path
        self.chunks = chunks
        self._starts = [0, *accumulate(max(len(chunk.offsets) - 1, 0) for chunk in chunks)]
        lengths = [np.diff(chunk.offsets) for chunk in chunks]
        self.lengths: NDArray[np.int32] = np.concatenate(lengths) if lengths else np.empty(0, np.int32)

    @classmethod
    def joined(cls, columns: Sequence[Lists]) -> Lists:
        """The lists of several columns, one after the other."""
        return cls(columns[0].path, [chunk for column in columns for chunk in column.chunks])

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> NDArray[Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} entries, and none with index {index}")
        number = bisect_right(self._starts, index) - 1
        chunk, place = self.chunks[number], index - self._starts[number]
        return chunk.values[chunk.offsets[place] : chunk.offsets[place + 1]]
