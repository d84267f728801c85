"""Text to ids and back: `Tokenizer`, and the pair of them that a translation model has.

What is in a vocabulary, how text is cut, and how pieces are learned stands in `vocabulary.py`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.text.lines import atomic_write
from regard.text.vocabulary import BYTES, CONTROL, Document, TokenizerSettings, learn, parse, pieces

__all__ = ["StreamDecoder", "Tokenizer", "TokenizerPair", "TokenizerSettings"]

# The library's threads do not live on in a forked worker, which would wait for them for ever; workers run side by side
# anyway, each with one thread.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class Tokenizer:
    """A learned vocabulary: text to ids and back without loss, up to the normalisation it was learned with.

    `decode(encode(texts)) == texts` for every text of Unicode characters, white space and unseen scripts included. An
    instance never changes, so threads may share it and worker processes may inherit it.

    Attributes:
        pad: id of padding.
        bos: id of the begin of a sequence.
        eos: id of its end.
        unk: id of the unknown piece; reserved, no text gives it.
        size: the number of ids, these four included.
        fingerprint: sha256 of the content, equal for tokenizers that do the same.
    """

    pad, bos, eos, unk = range(len(CONTROL))

    def __init__(self, document: Document) -> None:
        """From the content of a `tokenizer.json`; `learn` and `load` are the usual ways to get one."""
        self._document = document
        self._backend = Backend.from_str(json.dumps(document))
        self._bytes = [bytes(map(BYTES.__getitem__, piece)) for piece in pieces(document)[len(CONTROL) :]]
        # Control tokens have no text, but what a model did not know must not vanish.
        self._bytes[:0] = [CONTROL[i].encode() if i == self.unk else b"" for i in range(len(CONTROL))]
        self.size = len(self._bytes)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        self.fingerprint = hashlib.sha256(canonical.encode("ascii")).hexdigest()

    @classmethod
    def learn(cls, lines: Iterable[str], settings: TokenizerSettings) -> Self:
        """Learn from text; the result depends only on how often each word occurs, not on the order of the lines.

        The lines are gone through once and only the distinct words are kept in memory. Too little text for
        `settings.size` gives a smaller vocabulary, which a warning names: `size` is the reached one.

        Raises:
            UserError: the text is empty, holds half of a surrogate pair, or the size is below the smallest possible.
            ValueError: `settings.size` is None.
        """
        return cls(learn(lines, settings))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without begin and end; no text gives a control id.

        Raises:
            UserError: a text holds half of a surrogate pair, which is no character.
        """
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            _refuse_surrogates(texts)
            raise
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each sequence of ids. Control ids are skipped, but `unk` is shown as `<unk>`.

        Bytes that form no character, which only a model can put in a row, become U+FFFD.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        return [b"".join(map(self._bytes_of, row)).decode("utf-8", "replace").removeprefix(" ") for row in ids]

    def pieces(self, ids: list[int]) -> list[str]:
        r"""Each id for people to read: a space as ▁, part of a character as \xe2, control tokens by name."""
        return [
            CONTROL[i]
            if 0 <= i < len(CONTROL)
            else self._bytes_of(i).decode("utf-8", "backslashreplace").replace(" ", "▁")
            for i in ids
        ]

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one by one."""
        return StreamDecoder(self)

    def save(self, path: Path | str) -> None:
        """Write one `tokenizer.json`, whole or not at all, which Hugging Face `tokenizers` reads too."""
        with atomic_write(path) as file:
            file.write(json.dumps(self._document, ensure_ascii=False, indent=1).encode("utf-8") + b"\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote. The file is data: whatever it holds, no code of it is run.

        Raises:
            UserError: the file is missing, damaged, or not of this kind.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8")
        except OSError as error:
            raise UserError(f"{path}: the tokenizer cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        document = parse(text, str(path))
        try:
            return cls(document)
        except Exception as error:  # the library has no narrower class
            raise UserError(f"{path}: is a damaged tokenizer: {error}; fetch it again or learn it anew") from None

    def _bytes_of(self, number: int) -> bytes:
        if number < 0:
            raise IndexError(f"{number} is not an id of this vocabulary of {self.size}")
        return self._bytes[number]


class StreamDecoder:
    """Text from ids that come one by one: the parts put together are what `Tokenizer.decode` gives for all of them.

    A character whose bytes have not all arrived is held back, so that each part can be shown at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True

    def push(self, number: int) -> str:
        """The text that this id completes; often empty inside a character of several bytes."""
        return self._shown(self._decoder.decode(self._tokenizer._bytes_of(number)))

    def finish(self) -> str:
        """What is still held back, as U+FFFD; empty after whole characters."""
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides of a translation: one and the same, or two."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides have one vocabulary, so that their embeddings can be shared."""
        return self.source.fingerprint == self.target.fingerprint

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the one tokenizer, or one made of both."""
        if self.joint:
            return self.source.fingerprint
        return hashlib.sha256(f"{self.source.fingerprint}{self.target.fingerprint}".encode("ascii")).hexdigest()

    def save(self, directory: Path | str) -> None:
        """Write `tokenizer.json`, or `tokenizer.source.json` and `tokenizer.target.json`, and remove the other form."""
        joint, source, target = _paths(directory)
        written = {joint: self.source} if self.joint else {source: self.source, target: self.target}
        for path, tokenizer in written.items():
            tokenizer.save(path)
        for path in {joint, source, target} - written.keys():
            path.unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path | str) -> Self:
        """Read what `save` wrote.

        Raises:
            UserError: files are missing or damaged.
        """
        joint, source, target = _paths(directory)
        if source.exists() or target.exists():
            return cls(Tokenizer.load(source), Tokenizer.load(target))
        tokenizer = Tokenizer.load(joint)
        return cls(tokenizer, tokenizer)


def _paths(directory: Path | str) -> tuple[Path, Path, Path]:
    folder = Path(directory)
    return folder / "tokenizer.json", folder / "tokenizer.source.json", folder / "tokenizer.target.json"


def _refuse_surrogates(texts: Iterable[str]) -> None:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"text {number} holds U+{ord(text[error.start]):04X}, half of a surrogate pair, which is no character; "
                "remove it or replace it by U+FFFD"
            ) from None
