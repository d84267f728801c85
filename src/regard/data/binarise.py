"""From text to an Arrow file of token ids (see `regard.data.arrow`): pairs, and corpora of one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from regard.data.corpus import Pair
from regard.data.dataset import pair_schema
from regard.data.encoding import Encoded, Encoder, Row, Skipped, encode_all
from regard.data.tokens import Documents, token_schema
from regard.errors import UserError
from regard.text.lines import atomic_write
from regard.text.tokenizer import Tokenizer, TokenizerPair


@dataclass
class Report:
    """What went into a file, and what could not."""

    unit: ClassVar[str]
    """What a row is made of."""

    read: int = 0
    kept: int = 0
    """Rows of the file."""
    skipped: dict[str, Skipped] = field(default_factory=dict)
    """By reason."""

    def add(self, chunk: Encoded) -> None:
        """Account for a chunk that was written."""
        for reason, skipped in chunk.skipped.items():
            first = self.read + skipped.first_line
            self.skipped.setdefault(reason, Skipped(0, first)).count += skipped.count
        self.read += chunk.rows
        self.kept += len(chunk.columns[0].offsets) - 1

    def left_out(self, place: str) -> list[str]:
        """A phrase for each reason; `place` says what is counted, as in line."""
        return [
            f"skipped {skipped.count:,}: {reason} (first in {place} {skipped.first_line:,})"
            for reason, skipped in self.skipped.items()
        ]


@dataclass
class BinariseReport(Report):
    """What became of pairs."""

    unit = "pair"
    source_tokens: int = 0
    target_tokens: int = 0

    def add(self, chunk: Encoded) -> None:
        super().add(chunk)
        source, target = chunk.columns
        self.source_tokens += len(source.values)
        self.target_tokens += len(target.values)

    def __str__(self) -> str:
        kept = (
            f"{self.kept:,} of {self.read:,} pairs, "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens"
        )
        return "; ".join([kept, *self.left_out("line")])


@dataclass
class TextReport(Report):
    """What became of documents."""

    unit = "document"
    tokens: int = 0

    def add(self, chunk: Encoded) -> None:
        super().add(chunk)
        (texts,) = chunk.columns
        self.tokens += len(texts.values)

    def __str__(self) -> str:
        kept = f"{self.kept:,} of {self.read:,} documents, {self.tokens:,} tokens"
        return "; ".join([kept, *self.left_out("document")])


def binarise(
    pairs: Iterable[Pair],
    tokenizers: TokenizerPair,
    path: Path,
    *,
    processes: int = 1,
    max_length: int = 512,
    tag: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> BinariseReport:
    """Write the token ids of `pairs` to an Arrow file, which appears at `path` once it is complete.

    A pair with an empty side, or with more than `max_length` tokens on a side, cannot be trained on: it is skipped and
    reported. Memory does not grow with the corpus. `progress` is told the number of lines done so far. With `tag`, the
    tag of that name in the source's vocabulary stands before each source, and counts as one of its tokens.

    By itself this process encodes with threads on all cores, which is as quick as other processes on a few cores; on
    many, more `processes` are quicker. They are started afresh, so a script that asks for them needs the usual
    `if __name__ == "__main__":`. The file is the same for any number of them.

    Raises `UserError` when no pair is left, `JobError` when a worker dies or the disk is full.
    """
    first = () if tag is None else (tokenizers.source.tags[tag],)
    encoder = Encoder(("source", "target"), (tokenizers.source, tokenizers.target), max_length, first)
    report = BinariseReport()
    _write(pairs, encoder, pair_schema(tokenizers), path, report, processes, progress)
    return report


def binarise_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    path: Path,
    *,
    documents: Documents,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> TextReport:
    """Write the token ids of documents to an Arrow file, which appears at `path` once it is complete.

    Documents may have any length; empty ones are skipped and reported. `documents` says what they are (see
    `regard.data.tokens.read_documents`), and the file remembers it. As for the rest see `binarise`.
    """
    report = TextReport()
    rows = ((text,) for text in texts)
    encoder = Encoder(("document",), (tokenizer,))
    _write(rows, encoder, token_schema(tokenizer, documents), path, report, processes, progress)
    return report


def _write(
    rows: Iterable[Row],
    encoder: Encoder,
    schema: pa.Schema,
    path: Path,
    report: Report,
    processes: int,
    progress: Callable[[int], None] | None,
) -> None:
    chunks = encode_all(rows, encoder, processes)
    with closing(chunks), atomic_write(path) as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in chunks:
            report.add(chunk)
            writer.write_batch(pa.record_batch([column.arrow() for column in chunk.columns], schema=schema))
            if progress:
                progress(report.read)
        if not report.kept:
            raise UserError(f"{path}: not written, there is no {report.unit} to train on ({report})")
