"""Texts with labels, and words with labels: read from files, binarised, and as a data set.

The file is Arrow (see `regard.data.arrow`): `tokens`, without begin and end, and `labels`, a list of int32 for each
text. It has one label for a text as a whole, or one for each token, -1 where a token is not the first of its word. The
names of the labels stand sorted in the metadata; their places there are the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from regard.data.arrow import ArrowFile, Ids, Lists, arrow_schema, damaged, id_type, list_of
from regard.data.encoding import CHUNK_ROWS, PackedLists, in_chunks
from regard.errors import UserError
from regard.text.lines import atomic_write, read_lines, read_pairs
from regard.text.tokenizer import Tokenizer

FORMAT = "regard.labelled"
KIND = "labelled texts"
UNSCORED = -1
"""In place of the label of a token that has none of its own."""

_SEPARATOR = re.compile(r"[ \t]+")

Scored = Literal["texts", "tokens"]
"""What has a label: each text as a whole, or each word of it, by its first token."""


class Example(NamedTuple):
    """A text and its label."""

    text: str
    label: str
    origin: str
    """File and line, for messages."""

    @property
    def labels(self) -> Sequence[tuple[str, str]]:
        """The label and where it stands."""
        return [(self.label, self.origin)]


class Tagged(NamedTuple):
    """The words of a sentence and their labels."""

    words: list[str]
    tags: list[str]
    origins: list[str]
    """File and line of each word, for messages."""

    @property
    def labels(self) -> Sequence[tuple[str, str]]:
        """The labels and where each stands."""
        return list(zip(self.tags, self.origins, strict=True))


def read_labelled(texts: Path, labels: Path | None = None) -> Iterator[Example]:
    """Stream the examples of two parallel files or, without `labels`, of one file of text, TAB, label.

    Raises:
        UserError: naming file and line, for a line without exactly two columns, a text or label that is empty, and as
            `read_lines` and `read_pairs` do.
    """
    pairs = _columns(texts) if labels is None else read_pairs(texts, labels)
    for number, (text, label) in enumerate(pairs, start=1):
        origin = f"{labels or texts}, line {number}"
        if not text.strip():
            raise UserError(f"{texts}, line {number}: there is no text to label; remove the line")
        if not label.strip():
            raise UserError(f"{origin}: there is no label; give one or remove the line")
        yield Example(text, label.strip(), origin)


def _columns(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(f"{path}, line {number}: {len(columns)} columns where text, one TAB and label are expected")
        yield columns[0], columns[1]


def read_tagged(path: Path) -> Iterator[Tagged]:
    """Stream the sentences of a file with a word a line, as those of the CoNLL tasks.

    The columns of a line are separated by spaces or TABs; the first is the word, the last its label. A line without
    anything else ends a sentence; a line whose word is -DOCSTART- is passed over.

    Raises:
        UserError: naming file and line, for a line of one column, and as `read_lines` does.
    """
    sentence = Tagged([], [], [])
    for number, line in enumerate(read_lines(path), start=1):
        columns = _SEPARATOR.split(line.strip(" \t"))
        if columns == [""]:
            if sentence.words:
                yield sentence
            sentence = Tagged([], [], [])
        elif columns[0] != "-DOCSTART-":
            if len(columns) == 1:
                raise UserError(
                    f"{path}, line {number}: the word {columns[0]!r} has no label; write it behind the word"
                )
            sentence.words.append(columns[0])
            sentence.tags.append(columns[-1])
            sentence.origins.append(f"{path}, line {number}")
    if sentence.words:
        yield sentence


def label_set(examples: Iterable[Example | Tagged]) -> tuple[str, ...]:
    """The labels that occur, sorted. Raises `UserError` where there are not two: there is nothing to tell apart."""
    found = {label for example in examples for label, _ in example.labels}
    if len(found) < 2:
        only = f"only the label {found.pop()!r}" if found else "no label"
        raise UserError(f"the training data has {only}, and it takes two to learn anything")
    return tuple(sorted(found))


@dataclass
class LabelledReport:
    """What went into the file."""

    examples: int = 0
    """Rows of the file."""
    tokens: int = 0
    scored: int = 0
    """Labels: one a text, or one a word."""
    cut: int = 0
    """Texts that were too long: of a text that is labelled as a whole the end is left out, and a sentence of labelled
    words goes on in a further row."""

    def __str__(self) -> str:
        kept = f"{self.examples:,} examples, {self.tokens:,} tokens, {self.scored:,} labels"
        return f"{kept}; {self.cut:,} were cut for their length" if self.cut else kept


def binarise_labelled(
    examples: Iterable[Example], tokenizer: Tokenizer, path: Path, labels: Sequence[str], *, max_length: int = 512
) -> LabelledReport:
    """Write texts and the numbers of their labels to an Arrow file, which appears at `path` once it is complete.

    Of a text with more than `max_length` tokens the first ones are kept, and it is counted.

    Raises:
        UserError: naming file and line, for a label that is not one of `labels`; and when there is no example.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    report = LabelledReport()

    def rows() -> Iterator[_Row]:
        for chunk in in_chunks(examples, CHUNK_ROWS):
            for example, ids in zip(chunk, tokenizer.encode([example.text for example in chunk]), strict=True):
                report.cut += len(ids) > max_length
                yield _Row(ids[:max_length], [_number(numbers, example.label, example.origin)])

    _write(rows(), tokenizer, path, labels, "texts", report)
    return report


def binarise_tagged(
    sentences: Iterable[Tagged], tokenizer: Tokenizer, path: Path, labels: Sequence[str], *, max_length: int = 512
) -> LabelledReport:
    """Write sentences and the numbers of their words' labels to an Arrow file.

    A sentence with more than `max_length` tokens goes on, at a word, in a further row; so does a word of that length.

    Raises:
        UserError: as `binarise_labelled` does.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    report = LabelledReport()

    def rows() -> Iterator[_Row]:
        for chunk in in_chunks(sentences, CHUNK_ROWS):
            encoded = encode_words(tokenizer, [sentence.words for sentence in chunk])
            for sentence, words in zip(chunk, encoded, strict=True):
                labelled = zip(sentence.words, sentence.labels, strict=True)
                tags = iter([_number(numbers, label, origin) for _, (label, origin) in labelled])
                parts = list(word_parts(words, max_length))
                report.cut += len(parts) > 1
                yield from (_tagged_row(part, tags) for part in parts)

    _write(rows(), tokenizer, path, labels, "tokens", report)
    return report


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The tokens of each word of each sentence: each word as it is encoded by itself.

    A word that has no token, which some foreign vocabularies may give, is the unknown piece, or the end where there is
    none: each word must have a place to be scored at.
    """
    blank = [tokenizer.eos if tokenizer.unk is None else tokenizer.unk]
    encoded = iter(tokenizer.encode([word for words in sentences for word in words]))
    return [[next(encoded) or blank for _ in words] for words in sentences]


def word_parts(words: Iterable[list[int]], max_length: int) -> Iterator[list[list[int]]]:
    """The tokens of each word in parts of at most `max_length` tokens; of a longer word those that fit into one."""
    part: list[list[int]] = []
    length = 0
    for ids in words:
        if part and length + len(ids) > max_length:
            yield part
            part, length = [], 0
        part.append(ids[:max_length])
        length += len(part[-1])
    if part:
        yield part


class _Row(NamedTuple):
    tokens: list[int]
    labels: list[int]


def _tagged_row(words: list[list[int]], tags: Iterator[int]) -> _Row:
    """The words one after another, with the next tag at the first token of each."""
    row = _Row([], [])
    for ids in words:
        row.tokens.extend(ids)
        row.labels.extend([next(tags), *[UNSCORED] * (len(ids) - 1)])
    return row


def _number(numbers: dict[str, int], label: str, origin: str) -> int:
    if label not in numbers:
        known = ", ".join(list(numbers)[:10]) + (", ..." if len(numbers) > 10 else "")
        raise UserError(
            f"{origin}: the label {label!r} is not one of the {len(numbers)} of the training data ({known})"
        )
    return numbers[label]


def _write(
    rows: Iterable[_Row],
    tokenizer: Tokenizer,
    path: Path,
    labels: Sequence[str],
    scored: Scored,
    report: LabelledReport,
) -> None:
    kind = id_type(tokenizer.size)
    columns = {"tokens": list_of(kind), "labels": list_of(pa.int32())}
    metadata = {
        "tokenizer": tokenizer.fingerprint,
        "labels": json.dumps(list(labels), ensure_ascii=False),
        "scored": scored,
    }
    schema = arrow_schema(FORMAT, columns, metadata)
    with atomic_write(path) as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in in_chunks(rows, CHUNK_ROWS):
            report.examples += len(chunk)
            report.tokens += sum(len(row.tokens) for row in chunk)
            report.scored += sum(label != UNSCORED for row in chunk for label in row.labels)
            tokens = PackedLists.of([row.tokens for row in chunk], kind.to_pandas_dtype())
            numbers = PackedLists.of([row.labels for row in chunk], np.int32)
            writer.write_batch(pa.record_batch([tokens.arrow(), numbers.arrow()], schema=schema))
        if not report.examples:
            raise UserError(f"{path}: not written, there is no example to learn from")


class LabelledDataset:
    """Random access to the examples of a file that `binarise_labelled` or `binarise_tagged` wrote.

    Only the lengths (8 bytes an example) are held in memory. It can be pickled: the copy maps the file again.
    """

    def __init__(
        self, path: Path, tokens: Lists, numbers: Lists, labels: tuple[str, ...], scored: Scored, tokenizer: Tokenizer
    ) -> None:
        self.path = path
        self.labels = labels
        """The names of the labels, sorted: label n is `labels[n]`."""
        self.scored: Scored = scored
        self.tokenizer = tokenizer
        """That made the ids; batches need what it puts around a text."""
        self._tokens, self._numbers = tokens, numbers
        self.lengths = tokens.lengths
        """Tokens of each example, without begin and end marks: int32 array of `len(self)`."""

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer) -> LabelledDataset:
        """Map a file of examples that `tokenizer` made.

        Raises `UserError` when the file is missing, no such file, damaged, of a later version, or made with another
        tokenizer.
        """
        file = ArrowFile.open(path, FORMAT, KIND, ["tokens", "labels"], {"tokenizer": tokenizer})
        scored = file.metadata.get("scored")
        try:
            labels = json.loads(file.metadata.get("labels", ""))
        except ValueError:
            labels = None
        if scored not in get_args(Scored) or not isinstance(labels, list):
            raise damaged(path, KIND, "its metadata does not say what is labelled")
        tokens, numbers = file.lists(0, KIND), file.lists(1, KIND, [np.int32])
        if len(tokens) != len(numbers) or np.any(numbers.lengths != (1 if scored == "texts" else tokens.lengths)):
            raise damaged(path, KIND, "its labels do not belong to its tokens")
        values = [batch.column(1).values.to_numpy() for batch in file.batches]
        if any(len(each) and not UNSCORED <= each.min() <= each.max() < len(labels) for each in values):
            raise damaged(path, KIND, "it has labels without a name")
        return cls(path, tokens, numbers, tuple(map(str, labels)), cast(Scored, scored), tokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return LabelledDataset.open, (self.path, self.tokenizer)

    def __len__(self) -> int:
        return len(self._tokens)

    def example(self, index: int) -> tuple[Ids, NDArray[np.int32]]:
        """The token ids of an example and its label or labels: read-only views of the mapped file."""
        return self._tokens[index], self._numbers[index]
