"""Tokenizers that came with somebody else's model: any `tokenizer.json` of the library `tokenizers`, without its code.

Text never spells a control token here either. The library would look for control tokens in text, and where one is a
piece of the model it would be found even without that. So encoding uses a copy of the tokenizer in which these pieces
have names that no text holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.settings import Settings
from regard.text.tokenizer import Control, Frames, StreamDecoder, Tokenizer, refuse_surrogates
from regard.text.vocabulary import BYTES, Document
from regard.text.words import Span

FORMAT = "regard.wrapped-tokenizer"

# U+FFFF is no character (Unicode Standard, section 23.7), and a word never holds a space.
_SEAL = " \uffff"
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_REPLACEMENT = "\ufffd"


class Wrapping(Settings):
    """The content of a file of ours: the library's document, and what it does not say."""

    format: Literal["regard.wrapped-tokenizer"] = "regard.wrapped-tokenizer"
    version: Literal[1] = 1
    control: Control
    frames: Frames
    size: int
    """The number of ids of the model. A piece beyond it counts as unknown."""
    special: tuple[int, ...]
    """Ids without a text: none gives them, and they give none."""
    sealed: tuple[int, ...] = ()
    """Further ids that no text gives, which have one nevertheless."""
    forbidden: tuple[int, ...] = ()
    """Ids that a search never lets out."""
    tokenizer: dict[str, Any]
    """A `tokenizer.json` of the library."""


class WrappedTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers` with the interface of ours; how lossless it is, is its own matter."""

    def __init__(self, wrapping: Wrapping) -> None:
        """From the content of a file; raises `UserError` for one that contradicts itself."""
        super().__init__(
            wrapping.model_dump(mode="json"), wrapping.control, wrapping.frames, wrapping.forbidden, wrapping.size
        )
        self.wrapping = wrapping
        self._special = frozenset(wrapping.special)
        self._plain = _backend(wrapping.tokenizer)
        self._sealed = _backend(_seal(wrapping.tokenizer, {*wrapping.special, *wrapping.sealed}))
        # As above for whoever registers a token of ours again: the library doesn't look for special ones at all.
        self._sealed.encode_special_tokens = True
        decoders = _types(wrapping.tokenizer.get("decoder"))
        self._byte_level = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        self._overflows = max(self._plain.get_vocab().values(), default=0) >= self.size
        if self._overflows and self.unk is None:
            raise UserError(f"the vocabulary has more pieces than the {self.size} of the model, and no unknown piece")
        _check_ids(wrapping)
        self._check_pieces()

    def __reduce__(self) -> tuple[Any, ...]:
        return WrappedTokenizer, (self.wrapping,)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without any frame; no text gives a control id, but what is unknown gives `unk`.

        Raises:
            UserError: a text holds half of a surrogate pair, which is no character.
        """
        try:
            encodings = self._sealed.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            refuse_surrogates(texts)
            raise
        except Exception as error:  # the library has no narrower class
            raise UserError(f"the tokenizer cannot cut this text: {error}; it is damaged") from None
        rows = [encoding.ids for encoding in encodings]
        if self._overflows and self.unk is not None:
            rows = [[number if number < self.size else self.unk for number in row] for row in rows]
        return rows

    def spans(self, texts: list[str]) -> list[list[Span]]:
        """The characters [start, end) of its text that each id stands for; ids of parts of a character share it."""
        refuse_surrogates(texts)
        return [encoding.offsets for encoding in self._sealed.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each sequence of ids; special tokens, the unknown piece among them, have none.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        return self._plain.decode_batch([self._with_text(row) for row in ids], skip_special_tokens=False)

    def pieces(self, ids: list[int]) -> list[str]:
        r"""Each id for people to read: pieces as their vocabulary spells them, those of bytes with ▁ and \xe2."""
        return [self._piece(self._checked(number)) for number in ids]

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one by one."""
        return _WindowStream(self)

    def has_text(self, number: int) -> bool:
        """Whether an id stands for text.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        return self._checked(number) not in self._special

    def open_ended(self, number: int) -> bool:
        """Whether what follows decides how this id reads: a byte of a run that may turn out to be no character."""
        return self._byte_fallback and bool(_BYTE_PIECE.fullmatch(self._piece(number)))

    def _check_pieces(self) -> None:
        """The library numbers added tokens anew where the numbers of a file are not its own."""
        document = self.wrapping.tokenizer
        moved = [
            token["content"]
            for token in document.get("added_tokens") or ()
            if self._plain.token_to_id(token["content"]) != token["id"]
        ]
        if moved:
            raise UserError(f"the added tokens {', '.join(map(repr, moved[:5]))} do not have the ids that it states")
        if self._plain.id_to_token(self.eos) is None:
            raise UserError(f"the vocabulary has no piece {self.eos}, which should end a text")
        model = document["model"]
        if model.get("type") == "WordPiece" and model["unk_token"] not in model["vocab"]:
            raise UserError(f"the vocabulary has no {model['unk_token']}, which its unknown words need")

    def _with_text(self, row: Iterable[int]) -> list[int]:
        return [number for number in row if self.has_text(number)]

    def _checked(self, number: int) -> int:
        if not 0 <= number < self.size:
            raise IndexError(f"{number} is not an id of this vocabulary of {self.size}")
        return number

    def _piece(self, number: int) -> str:
        piece = self._plain.id_to_token(number)
        if piece is None:  # a model may have more ids than its tokenizer
            return f"<{number}>"
        if self._byte_level and number not in self._special and set(piece) <= BYTES.keys():
            spelled = bytes(map(BYTES.__getitem__, piece)).decode("utf-8", "backslashreplace")
            return spelled.replace(" ", "▁")
        return piece


class _WindowStream(StreamDecoder):
    """Decodes what has come since the last text that was given out, in the context of that text.

    The context is needed because the first piece of a sequence reads differently: without its space.
    """

    def __init__(self, tokenizer: WrappedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, number: int) -> str:
        if not self._tokenizer.has_text(number):
            return ""
        self._held.append(number)
        text = self._text()
        if text.endswith(_REPLACEMENT) or self._tokenizer.open_ended(number):
            return ""
        self._context, self._held = self._held, []
        return text

    def finish(self) -> str:
        text = self._text()
        self._context, self._held = [*self._context, *self._held], []
        return text

    def _text(self) -> str:
        before, after = self._tokenizer.decode([self._context, [*self._context, *self._held]])
        return after[len(before) :]


def _backend(document: Document) -> Backend:
    # What the library would add, cut off or fill up by itself is not wanted: frames and batches are ours.
    plain = document | {"post_processor": None, "truncation": None, "padding": None}
    try:
        return Backend.from_str(json.dumps(plain))
    except Exception as error:  # the library has no narrower class
        raise UserError(f"the tokenizer is damaged: {error}") from None


def _seal(document: Document, ids: set[int]) -> Document:
    """The same document, in which the pieces with these ids have names that no text holds."""
    model = dict(document["model"])
    added = [dict(token) for token in document.get("added_tokens") or ()]
    names = {token["content"] for token in added if token["id"] in ids}
    vocab = model["vocab"]
    if isinstance(vocab, list):
        names |= {piece for number, (piece, _) in enumerate(vocab) if number in ids}
        model["vocab"] = [[_SEAL + piece if piece in names else piece, score] for piece, score in vocab]
    else:
        names |= {piece for piece, number in vocab.items() if number in ids}
        model["vocab"] = {_SEAL + piece if piece in names else piece: number for piece, number in vocab.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = _SEAL + model["unk_token"]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if names.isdisjoint(_parts(merge))]
    for token in added:
        if token["content"] in names:
            token["content"] = _SEAL + token["content"]
    return document | {"model": model, "added_tokens": added}


def _parts(merge: str | list[str]) -> tuple[str, str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def _types(part: Any) -> set[str]:
    """The types of a component of a document, and of those that it is made of."""
    if not isinstance(part, dict):
        return set()
    return {part.get("type", "")}.union(*map(_types, part.get("decoders", ())))


def _check_ids(wrapping: Wrapping) -> None:
    frames, control = wrapping.frames, wrapping.control
    used = {
        *(value for value in vars(control).values() if value is not None),
        *frames.begin,
        *frames.end,
        *frames.source_begin,
        *frames.source_end,
        *frames.target_begin,
        frames.target_end,
        *wrapping.special,
        *wrapping.forbidden,
    }
    outside = sorted(number for number in used if not 0 <= number < wrapping.size)
    if outside:
        raise UserError(f"the control ids {outside} are outside of the vocabulary of {wrapping.size}")
    if not frames.target_begin:
        raise UserError("the decoder needs at least one id to begin with")


def is_wrapping(text: str) -> bool:
    """Whether a file is one of ours around a foreign tokenizer; its head says so."""
    return f'"{FORMAT}"' in text[:100]


def parse_wrapping(text: str, origin: str) -> WrappedTokenizer:
    """A tokenizer from the text of a file that `save` wrote.

    Raises:
        UserError: naming `origin`: values are missing, unknown or of another type, or contradict each other.
    """
    try:
        return WrappedTokenizer(Wrapping.parse(json.loads(text), origin))
    except UserError as error:
        message = str(error)
        raise UserError(message if message.startswith(origin) else f"{origin}: {message}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{origin}: is a damaged tokenizer; convert the model again") from None
