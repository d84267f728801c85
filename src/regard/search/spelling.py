"""What the tokens of a vocabulary spell, for rules about text that must hold however it is cut into tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice, takewhile

from regard.text.learned import LearnedTokenizer
from regard.text.tokenizer import Tokenizer

_WORD = re.compile("\ufffd|[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A character, or a part of one, that another may follow in the same word: none of writing that sets no spaces."""
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>|\\x([0-9a-f]{2})")
_REPLACEMENT = "\ufffd"


def begins_word(text: str) -> bool:
    """Whether a text begins in the midst of a word, or with a word that needs a space before it."""
    return bool(_WORD.match(text[:1]))


def ends_word(text: str) -> bool:
    """Whether a text ends with a word, or a part of it, that goes on unless a space or a mark follows."""
    return bool(_WORD.match(text[-1:]))


class Spelling:
    """The bytes of each token in the midst of a text, and which tokens begin with some.

    A word after a space has the space with it. Control tokens have no bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if isinstance(tokenizer, LearnedTokenizer):
            self.bytes_V = [tokenizer.bytes_of(token) for token in range(tokenizer.size)]
        else:
            self.bytes_V = _by_decoding(tokenizer)
        self.ends = frozenset(
            token for token, each in enumerate(self.bytes_V) if ends_word(each.decode(errors="replace"))
        )
        """The tokens after which a word may go on."""
        self.inner = frozenset(
            token for token, each in enumerate(self.bytes_V) if begins_word(each.decode(errors="replace"))
        )
        """The tokens that go on with it then."""
        self._longest = max(map(len, self.bytes_V), default=0)
        self._sorted = sorted((spelled, token) for token, spelled in enumerate(self.bytes_V) if spelled)

    def text(self, ids: Iterable[int]) -> bytes:
        """What tokens spell one after the other."""
        return b"".join(map(self.bytes_V.__getitem__, ids))

    def starting(self, text: bytes) -> list[int]:
        """The tokens that begin with `text`, or are it."""
        later = islice(self._sorted, bisect_left(self._sorted, (text,)), None)
        return [token for _, token in takewhile(lambda entry: entry[0].startswith(text), later)]

    def within(self, text: bytes) -> list[int]:
        """The tokens that `text` begins with and goes on after."""
        sizes = range(1, min(len(text), self._longest + 1))
        return [token for size in sizes for token in self._equal(text[:size])]

    def _equal(self, text: bytes) -> list[int]:
        later = islice(self._sorted, bisect_left(self._sorted, (text,)), None)
        return [token for _, token in takewhile(lambda entry: entry[0] == text, later)]


@lru_cache(maxsize=8)
def spelling(tokenizer: Tokenizer) -> Spelling:
    """The spelling of a tokenizer, which never changes."""
    return Spelling(tokenizer)


def _by_decoding(tokenizer: Tokenizer) -> list[bytes]:
    """What each token adds to a text that stands before it."""
    (before,) = tokenizer.encode(["a"])
    start, *texts = tokenizer.decode([before, *([*before, token] for token in range(tokenizer.size))])
    names = tokenizer.pieces(list(range(tokenizer.size)))
    return [
        _named(name) if _REPLACEMENT in text else text.removeprefix(start).encode()
        for text, name in zip(texts, names, strict=True)
    ]


def _named(name: str) -> bytes:
    """The bytes of a token that is no whole character by itself, from its name for people to read."""
    spelled = name.replace("▁", " ").encode()
    return _BYTE.sub(lambda found: bytes.fromhex((found[1] or found[2]).decode()), spelled)


class Phrase:
    """A word or phrase, and the tokens that would complete it."""

    def __init__(self, text: str, spelled: Spelling) -> None:
        self._bytes = text.encode()
        self._starts_word, self._ends_word = begins_word(text), ends_word(text)
        size = len(self._bytes)
        self._completing = [
            [
                token
                for token in spelled.starting(self._bytes[begun:])
                if self._closed(spelled.bytes_V[token][size - begun :])
            ]
            for begun in range(size)
        ]
        self._holding = [token for token, each in enumerate(spelled.bytes_V) if self._inside(each)]

    def __len__(self) -> int:
        """In bytes."""
        return len(self._bytes)

    def completing(self, said: bytes) -> list[int]:
        """The tokens with which a text that ends with `said` would hold the phrase as words of its own.

        A token that ends with the phrase counts: what would follow it, is not known yet.
        """
        found = list(self._holding)
        for begun, tokens in enumerate(self._completing):
            if tokens and said.endswith(self._bytes[:begun]) and self._opened(said[: len(said) - begun]):
                found += tokens
        return found

    def _inside(self, token: bytes) -> bool:
        place = token.find(self._bytes, 1)
        while place > 0:
            if self._opened(token[:place]) and self._closed(token[place + len(self._bytes) :]):
                return True
            place = token.find(self._bytes, place + 1)
        return False

    def _opened(self, before: bytes) -> bool:
        return not (self._starts_word and ends_word(before[-4:].decode(errors="ignore")))

    def _closed(self, after: bytes) -> bool:
        return not (self._ends_word and begins_word(after[:4].decode(errors="ignore")))


@lru_cache(maxsize=1024)
def phrase(text: str, tokenizer: Tokenizer) -> Phrase:
    """A phrase as a tokenizer writes it: normalised as its texts are."""
    (written,) = tokenizer.decode(tokenizer.encode([text]))
    return Phrase(written.strip() or text, spelling(tokenizer))
