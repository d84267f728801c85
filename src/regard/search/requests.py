"""A text to translate with wishes about its output, and these wishes in the tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from regard.errors import UserError
from regard.search.spelling import Phrase, begins_word, phrase, spelling
from regard.text.tokenizer import Tokenizer

Sequences = tuple[tuple[int, ...], ...]
"""The ways in which tokens say something."""


@dataclass(frozen=True)
class Request:
    """A text, and what its output has to be like. A single phrase may stand for itself.

    Raises:
        UserError: a phrase is empty.
    """

    text: str
    prefix: str = ""
    """The output begins with this. Its last word may be a part of one: a space at the end ends it."""
    must: Sequence[str | Sequence[str]] = ()
    """Words or phrases that the output holds. Each may be several alternatives, of which one is enough."""
    forbid: Sequence[str] = ()
    """Words or phrases that it does not hold."""

    def __post_init__(self) -> None:
        must = tuple(map(_several, _several(self.must)))
        object.__setattr__(self, "must", must)
        object.__setattr__(self, "forbid", _several(self.forbid))
        phrases = [*self.forbid, *(each for alternatives in must for each in alternatives)]
        if () in must or not all(map(str.strip, phrases)):
            raise UserError("must and forbid: an empty text stands everywhere; give at least one character")


T = TypeVar("T")


def _several(given: str | Sequence[T]) -> tuple[str | T, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class Beginning:
    """The tokens that an output begins with, and what the tokens after these begin by spelling."""

    ids: tuple[int, ...] = ()
    rest: bytes = b""


@dataclass(frozen=True)
class Outlook:
    """How many tokens are missing after the next one."""

    following: Mapping[int, int]
    """After a token that begins to say something or goes on with it."""
    continued: int
    """After one that goes on with the last word, so that a phrase which this ends is not said."""
    otherwise: int
    inner: Set[int]
    """The tokens that go on with a word."""

    def __call__(self, token: int) -> int:
        return self.following.get(token, self.continued if token in self.inner else self.otherwise)


@dataclass(frozen=True)
class Demand:
    """Things that an output must say, each in one of several ways."""

    wishes: tuple[Sequences, ...] = ()
    ends: Set[int] = frozenset()
    """The tokens after which a word may go on."""
    inner: Set[int] = frozenset()
    """The tokens that go on with a word then: what stands before them is not said, as dog is not in dogma."""

    def missing(self, said: tuple[int, ...]) -> int:
        """How many tokens are enough to say the rest. One thing is said at a time: only one counts as half said."""
        unmet = self._unmet(said)
        gains = [_shortest(ways) - min(len(way) - _begun(said, way) for way in ways) for ways in unmet]
        return sum(map(_shortest, unmet)) - max([0, *gains])

    def outlook(self, said: tuple[int, ...]) -> Outlook:
        """How many tokens are missing after each token that may come."""
        return _outlook(self, said)

    def _outlook(self, said: tuple[int, ...]) -> Outlook:
        unmet = self._unmet(said)
        next_tokens = {
            way[size]: None
            for ways in unmet
            for way in ways
            for size in range(len(way))
            if said[len(said) - size :] == way[:size]
        }
        following = {token: self.missing((*said, token)) for token in next_tokens}
        continued = sum(map(_shortest, self._unmet(said, continued=True)))
        return Outlook(following, continued, sum(map(_shortest, unmet)), self.inner)

    def _unmet(self, said: tuple[int, ...], continued: bool = False) -> list[Sequences]:
        """What an output does not say; `continued` if a token comes that goes on with its last word."""
        return [ways for ways in self.wishes if not any(self._holds(said, way, continued) for way in ways)]

    def _holds(self, said: tuple[int, ...], way: tuple[int, ...], continued: bool) -> bool:
        places = (place for place in range(len(said) - len(way) + 1) if said[place : place + len(way)] == way)
        if way[-1] not in self.ends:
            return any(True for _ in places)
        afters = (said[place + len(way) : place + len(way) + 1] for place in places)
        return any(after[0] not in self.inner if after else not continued for after in afters)


_outlook = lru_cache(maxsize=1 << 14)(Demand._outlook)
"""Processors and the selection ask for the same rows."""


def _shortest(ways: Sequences) -> int:
    return min(map(len, ways))


def _begun(said: tuple[int, ...], way: tuple[int, ...]) -> int:
    """How much of a way, not all of it, has been said at the end: where a match fails, a shorter one may stand."""
    return next(size for size in range(min(len(said), len(way) - 1), -1, -1) if said[len(said) - size :] == way[:size])


@dataclass(frozen=True)
class Wishes:
    """A request in the tokens of a vocabulary."""

    beginning: Beginning = Beginning()
    demand: Demand = Demand()
    forbidden: tuple[Phrase, ...] = ()

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer) -> Wishes:
        """Raises `UserError` when the vocabulary has no tokens for something that must be said."""
        return cls(
            _beginning(request.prefix, tokenizer),
            _demand(request.must, tokenizer),
            tuple(phrase(each, tokenizer) for each in request.forbid),
        )

    @property
    def tokens(self) -> int:
        """So many tokens are enough for what has to be said."""
        return len(self.beginning.ids) + len(self.beginning.rest) + self.demand.missing(())


def _beginning(prefix: str, tokenizer: Tokenizer) -> Beginning:
    """All words of a prefix as the tokenizer cuts them, but for the last one, which may go on in any way."""
    if not prefix:
        return Beginning()
    (ids,) = tokenizer.encode([prefix])
    spelled = spelling(tokenizer)
    text = spelled.text(ids)
    last_word, size, count = max(0, text.rfind(b" ")), 0, 0
    while count < len(ids) and size + len(spelled.bytes_V[ids[count]]) <= last_word:
        size += len(spelled.bytes_V[ids[count]])
        count += 1
    return Beginning(tuple(ids[:count]), text[size:])


def _demand(must: Sequence[str | Sequence[str]], tokenizer: Tokenizer) -> Demand:
    if not must:
        return Demand()
    spelled = spelling(tokenizer)
    return Demand(tuple(_ways(_several(each), tokenizer) for each in must), spelled.ends, spelled.inner)


@lru_cache(maxsize=1024)
def _ways(alternatives: tuple[str, ...], tokenizer: Tokenizer) -> Sequences:
    """All ways in which the tokenizer writes one of the alternatives, at the start of a text or within."""
    unwritten, spelled = {*tokenizer.forbidden, tokenizer.unk}, spelling(tokenizer)
    ways: dict[tuple[int, ...], None] = {}
    for text in map(str.strip, alternatives):
        own: dict[tuple[int, ...], None] = {}
        for lead in ("", " ") if begins_word(text) else ("", " ", "("):
            before, whole = tokenizer.encode([lead, lead + text])
            way = tuple(whole[len(before) :])
            if way and whole[: len(before)] == before and unwritten.isdisjoint(way):
                own[way] = None
        spaced = [way for way in own if spelled.text(way).startswith(b" ")]
        ways |= dict.fromkeys(spaced if spaced and begins_word(text) else own)
    if not ways:
        raise UserError(f"must: the model's vocabulary cannot write {' | '.join(alternatives)}")
    return tuple(ways)
