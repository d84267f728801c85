"""Corpora of one text: read as documents, and the data set of their token ids (see `regard.data.arrow`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from regard.data.arrow import ArrowFile, Ids, Lists, arrow_schema, damaged, id_type, list_of
from regard.text.lines import read_lines
from regard.text.tokenizer import Tokenizer

FORMAT = "regard.tokens"
KIND = "texts"

Documents = Literal["lines", "paragraphs", "file"]
"""What a document is: each line; the lines between blank ones; or a whole file, its line feeds being text."""


def read_documents(paths: Sequence[Path], documents: Documents) -> Iterator[str]:
    """Stream the documents of text files, plain or gzip, UTF-8, by the rules of `regard.text.lines`.

    Lines may be empty. Paragraphs are joined by line feeds and never empty; a line of white space alone separates them.
    A file is all its lines, each ended by a line feed.

    Raises:
        UserError: naming file and line, as `read_lines` does.
    """
    for path in paths:
        if documents == "lines":
            yield from read_lines(path)
        elif documents == "paragraphs":
            yield from _paragraphs(read_lines(path))
        else:
            yield "".join(f"{line}\n" for line in read_lines(path))


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def token_schema(tokenizer: Tokenizer, documents: Documents) -> pa.Schema:
    """The schema of a file of documents, with the narrowest ids that hold the vocabulary."""
    columns = {"tokens": list_of(id_type(tokenizer.size))}
    return arrow_schema(FORMAT, columns, {"tokenizer": tokenizer.fingerprint, "documents": documents})


class TokenDataset:
    """Random access to the documents of a file that `regard.data.binarise.binarise_texts` wrote.

    Only the lengths (4 bytes a document) are held in memory. It can be pickled: the copy maps the file again.
    """

    def __init__(self, path: Path, tokens: Lists, documents: Documents, tokenizer: Tokenizer) -> None:
        self.path = path
        self.tokenizer = tokenizer
        """That made the ids; batches need what it puts around a text."""
        self._tokens = tokens
        self.documents: Documents = documents
        """What a document of this corpus is."""
        self.lengths = tokens.lengths
        """Tokens of each document, without begin and end marks: int32 array of `len(self)`."""

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer) -> TokenDataset:
        """Map a file of documents that `tokenizer` made.

        Raises `UserError` when the file is missing, no such file, damaged, of a later version, or made with another
        tokenizer.
        """
        file = ArrowFile.open(path, FORMAT, KIND, ["tokens"], {"tokenizer": tokenizer})
        documents = file.metadata.get("documents")
        if documents not in get_args(Documents):
            raise damaged(path, KIND, f"its documents are {documents}")
        return cls(path, file.lists(0, KIND), cast(Documents, documents), tokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenDataset.open, (self.path, self.tokenizer)

    def __len__(self) -> int:
        return len(self._tokens)

    def document(self, index: int) -> Ids:
        """The token ids of one document: a read-only view of the mapped file."""
        return self._tokens[index]
