"""Text to ids and back: what every tokenizer can do, and the pair of them that a translation model has.

There are two kinds. `learned.py` is our own, learned from a corpus; `wrapped.py` is one that came with somebody else's
model. `Tokenizer.load` tells their files apart by content.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from regard.errors import UserError
from regard.settings import Settings
from regard.text.lines import atomic_write
from regard.text.vocabulary import TokenizerSettings
from regard.text.words import Span

__all__ = ["Control", "Frames", "StreamDecoder", "Tokenizer", "TokenizerPair", "TokenizerSettings"]

# The library's threads do not live on in a forked worker, which would wait for them for ever; workers run side by side
# anyway, each with one thread.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class Control(Settings):
    """The ids that steer a model and stand for no text."""

    pad: int
    """Padding. A vocabulary without one lends another id, for what is padded is masked anyway."""
    bos: int | None
    """Begin of a sequence."""
    eos: int
    """End of a sequence."""
    unk: int | None
    """The unknown piece."""
    mask: int | None
    """What a masked language model fills in."""


class Frames(Settings):
    """The ids that stand around the tokens of a text, by the part that the text plays."""

    begin: tuple[int, ...]
    """Before a text on its own, read by an encoder or continued by a decoder."""
    end: tuple[int, ...]
    """After a text on its own that an encoder reads."""
    source_begin: tuple[int, ...]
    """Before a text to be translated."""
    source_end: tuple[int, ...]
    """After it."""
    target_begin: tuple[int, ...]
    """What the decoder is fed before the first token of its output. All but the first are forced on the output."""
    target_end: int
    """What ends an output."""


class StreamDecoder(ABC):
    """Text from ids that come one by one: the parts put together are what `Tokenizer.decode` gives for all of them.

    A character whose bytes have not all arrived is held back, so that each part can be shown at once.
    """

    @abstractmethod
    def push(self, number: int) -> str:
        """The text that this id completes; often empty inside a character of several bytes."""

    @abstractmethod
    def finish(self) -> str:
        """What is still held back, as U+FFFD; empty after whole characters."""


class Tokenizer(ABC):
    """A vocabulary: text to ids and back. An instance never changes, so threads and forked workers may share it.

    Attributes:
        pad, bos, eos, unk, mask: control ids (see `Control`); a vocabulary may be without bos, unk and mask.
        frames: the ids around a text.
        forbidden: ids that a search never lets out.
        tags: ids that stand before a source and say what it is, by name; no text gives them.
        document: what `save` writes.
        size: the number of ids, control ids included.
        fingerprint: sha256 of the content, equal for tokenizers that do the same.
    """

    def __init__(
        self, document: dict[str, Any], control: Control, frames: Frames, forbidden: Iterable[int], size: int
    ) -> None:
        self.document = document
        self.pad, self.bos, self.eos, self.unk, self.mask = (
            control.pad,
            control.bos,
            control.eos,
            control.unk,
            control.mask,
        )
        self.frames = frames
        self.tags: Mapping[str, int] = {}
        self.forbidden = tuple(forbidden)
        self.size = size
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        self.fingerprint = hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it never changes

    @staticmethod
    def learn(lines: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
        """Learn from text; the result depends only on how often each word occurs, not on the order of the lines.

        The lines are gone through once and only the distinct words are kept in memory. Too little text for
        `settings.size` gives a smaller vocabulary, which a warning names: `size` is the reached one.

        Raises:
            UserError: the text is empty, holds half of a surrogate pair, or the size is below the smallest possible.
            ValueError: `settings.size` is None.
        """
        from regard.text.learned import LearnedTokenizer
        from regard.text.vocabulary import learn

        return LearnedTokenizer(learn(lines, settings))

    @abstractmethod
    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without any frame; no text gives a control id other than `unk`.

        Raises:
            UserError: a text holds half of a surrogate pair, which is no character.
        """

    @abstractmethod
    def spans(self, texts: list[str]) -> list[list[Span]]:
        """The characters [start, end) of its text that each id of `encode` stands for; parts of one share it.

        Raises:
            UserError: a text holds half of a surrogate pair, which is no character.
        """

    @abstractmethod
    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each sequence of ids; control ids have none.

        Bytes that form no character, which only a model can put in a row, become U+FFFD.

        Raises:
            IndexError: an id outside the vocabulary.
        """

    @abstractmethod
    def pieces(self, ids: list[int]) -> list[str]:
        """Each id for people to read."""

    @abstractmethod
    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one by one."""

    def save(self, path: Path | str) -> None:
        """Write one `tokenizer.json`, whole or not at all."""
        with atomic_write(path) as file:
            file.write(json.dumps(self.document, ensure_ascii=False, indent=1).encode("utf-8") + b"\n")

    @staticmethod
    def load(path: Path | str) -> Tokenizer:
        """Read what `save` wrote. The file is data: whatever it holds, no code of it is run.

        Raises:
            UserError: the file is missing, damaged, or not of this kind.
        """
        from regard.text.learned import LearnedTokenizer
        from regard.text.vocabulary import parse
        from regard.text.wrapped import is_wrapping, parse_wrapping

        try:
            text = Path(path).read_bytes().decode("utf-8")
        except OSError as error:
            raise UserError(f"{path}: the tokenizer cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        if is_wrapping(text):
            return parse_wrapping(text, str(path))
        document = parse(text, str(path))
        try:
            return LearnedTokenizer(document)
        except Exception as error:  # the library has no narrower class
            raise UserError(f"{path}: is a damaged tokenizer: {error}; fetch it again or learn it anew") from None


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

    @property
    def source_begin(self) -> tuple[int, ...]:
        """What stands before the tokens of a source."""
        return self.source.frames.source_begin

    @property
    def source_end(self) -> tuple[int, ...]:
        """What stands after the tokens of a source."""
        return self.source.frames.source_end

    @property
    def target_begin(self) -> tuple[int, ...]:
        """What the decoder is fed before the first token of its output, at least one id.

        Those after the first are forced at the start of the output: they cost no score and are no part of it.
        """
        return self.target.frames.target_begin

    @property
    def target_end(self) -> int:
        """What ends a target."""
        return self.target.frames.target_end

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


def refuse_surrogates(texts: Iterable[str]) -> None:
    """Raise `UserError` for the first text with half of a surrogate pair, which is no character."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"text {number} holds U+{ord(text[error.start]):04X}, half of a surrogate pair, which is no character; "
                "remove it or replace it by U+FFFD"
            ) from None
