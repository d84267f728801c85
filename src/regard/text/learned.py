"""Our own tokenizers, learned from a corpus. What a vocabulary holds and how text is cut stands in `vocabulary.py`."""

from __future__ import annotations

import codecs
import json

from tokenizers import Tokenizer as Backend

from regard.text.tokenizer import Control, Frames, StreamDecoder, Tokenizer, refuse_surrogates
from regard.text.vocabulary import BYTES, CONTROL, MASK, Document, control, pieces
from regard.text.words import Span

_PAD, _BOS, _EOS, _UNK, _MASK = range(5)
_FRAMES = Frames(begin=(_BOS,), end=(_EOS,), source_begin=(), source_end=(_EOS,), target_begin=(_BOS,), target_end=_EOS)


class LearnedTokenizer(Tokenizer):
    """Text to ids and back without loss, up to the normalisation that the vocabulary was learned with.

    `decode(encode(texts)) == texts` for every text of Unicode characters, white space and unseen scripts included. The
    control ids come first: pad 0, bos 1, eos 2, unk 3 (reserved, no text gives it), and mask 4 where there is one. Tags
    (see `extension.py`) may stand anywhere after them.
    """

    def __init__(self, document: Document) -> None:
        """From the content of a `tokenizer.json`; `Tokenizer.learn` and `load` are the usual ways to get one."""
        spelled = pieces(document)
        self._control = control(spelled)
        mask = _MASK if self._control.get(_MASK) == MASK else None
        super().__init__(
            document,
            Control(pad=_PAD, bos=_BOS, eos=_EOS, unk=_UNK, mask=mask),
            _FRAMES,
            forbidden=(number for number in self._control if number != _EOS),
            size=len(spelled),
        )
        self._backend = Backend.from_str(json.dumps(document))
        # Control tokens have no text, but what a model did not know must not vanish.
        self._bytes = [
            bytes(map(BYTES.__getitem__, piece)) if i not in self._control else piece.encode() if i == _UNK else b""
            for i, piece in enumerate(spelled)
        ]
        self.tags = {
            name[1:-1]: number for number, name in self._control.items() if number >= len(CONTROL) and number != mask
        }

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without any frame; no text gives a control id.

        Raises:
            UserError: a text holds half of a surrogate pair, which is no character.
        """
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            refuse_surrogates(texts)
            raise
        return [encoding.ids for encoding in encodings]

    def spans(self, texts: list[str]) -> list[list[Span]]:
        """The characters [start, end) of its text that each id stands for; ids of parts of a character share it."""
        refuse_surrogates(texts)
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        found = [encoding.offsets for encoding in encodings]
        for encoding, spans in zip(encodings, found, strict=True):
            if encoding.ids and self.bytes_of(encoding.ids[0]) == b" ":  # put before each text, and of none
                spans[0] = (0, 0)
        return found

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each sequence of ids. Control ids are skipped, but `unk` is shown as `<unk>`.

        Bytes that form no character, which only a model can put in a row, become U+FFFD.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        return [b"".join(map(self.bytes_of, row)).decode("utf-8", "replace").removeprefix(" ") for row in ids]

    def pieces(self, ids: list[int]) -> list[str]:
        r"""Each id for people to read: a space as ▁, part of a character as \xe2, control tokens by name."""
        return [
            self._control.get(i) or self.bytes_of(i).decode("utf-8", "backslashreplace").replace(" ", "▁") for i in ids
        ]

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one by one."""
        return _ByteStream(self)

    def bytes_of(self, number: int) -> bytes:
        """The bytes that an id stands for.

        Raises:
            IndexError: an id outside the vocabulary.
        """
        if number < 0:
            raise IndexError(f"{number} is not an id of this vocabulary of {self.size}")
        return self._bytes[number]


class _ByteStream(StreamDecoder):
    def __init__(self, tokenizer: LearnedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True

    def push(self, number: int) -> str:
        return self._shown(self._decoder.decode(self._tokenizer.bytes_of(number)))

    def finish(self) -> str:
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
