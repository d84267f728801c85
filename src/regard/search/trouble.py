"""Translations that went wrong by themselves: how they are known, and how they are searched for again.

A search may end in a loop, without a word, with its own source, or at its limit of length. Each is known from source
and output alone. What is in trouble is searched for again with other settings, one remedy after the other; the first
result without trouble is kept, or else the least bad one. Nothing of this is left to chance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil

from regard.search.engine import Candidate, Translation
from regard.search.settings import SearchSettings
from regard.text.segment import primary, visible
from regard.text.tokenizer import TokenizerPair

PERIOD = 64
"""Loops are looked for whose turns have so many tokens at most."""
TOLERANCE = 1.5, 2
"""What a source repeats, an output may repeat so many times as often and so many times more."""
PROSE = 4
"""A copy has so many words at least that are no names, numbers or addresses: those may well stay as they are."""
MARGIN = 1.5
"""A copy stays where everything else costs so many nats a token more: then the text was no other language's."""

_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]{2}|[^\\W\\d_]{2,}")
"""A word, or two characters of writing without spaces."""
_NAMED = re.compile(r"[!-~]*[/@#\\_=<>\d][!-~]*|[!-~]+\.[!-~]+")
"""Addresses, numbers, identifiers: what is called the same in every language."""


class Trouble(Enum):
    """What is wrong with a translation, the least bad first."""

    UNFINISHED = "has no end within its limit of length"
    LOST = "has fewer sentences than its source"
    COPY = "is its source once more"
    LOOP = "repeats itself"
    EMPTY = "is empty"

    @property
    def badness(self) -> int:
        return 1 + list(Trouble).index(self)


@dataclass(frozen=True)
class Mended(Translation):
    """A translation that was looked at."""

    trouble: Trouble | None = None
    """What is wrong with its best candidate still."""
    remedy: str | None = None
    """How it was found, if not as it was asked for."""

    @property
    def badness(self) -> int:
        return 0 if self.trouble is None else self.trouble.badness


Decode = Callable[[list[str], SearchSettings], Sequence[Translation]]


@dataclass(frozen=True)
class Remedy:
    """Another search for what is in one of these troubles."""

    name: str
    against: tuple[Trouble, ...]
    min_tokens: int = 0
    no_repeat: int = 0
    """As in `SearchSettings`: what was asked for stays where it is stricter."""
    wider: int = 1
    """So many times the beam that was asked for, or what makes it 4 at least."""
    text: Callable[[str], str] = str
    """What is translated instead of the source."""

    def __call__(self, settings: SearchSettings) -> SearchSettings:
        """All that the beam holds is wanted, so that what is in trouble can be passed over."""
        beam = settings.beam * max(self.wider, ceil(4 / settings.beam))
        least = max(settings.min_tokens, self.min_tokens)
        turns = min({settings.no_repeat, self.no_repeat} - {0}, default=0)  # the fewer tokens, the stricter
        return settings.model_copy(update={"beam": beam, "nbest": beam, "min_tokens": least, "no_repeat": turns})

    def applies(self, source: str) -> bool:
        """Whether anything would be searched for otherwise."""
        return self.min_tokens > 0 or self.no_repeat > 0 or self.wider > 1 or self.text(source) != source


ENDLESS = Trouble.LOOP, Trouble.UNFINISHED

REMEDIES = (
    Remedy("in lower case", (Trouble.EMPTY, *ENDLESS), text=str.lower),
    Remedy("at least one token", (Trouble.EMPTY,), min_tokens=1),
    Remedy("at least three tokens", (Trouble.EMPTY,), min_tokens=3, wider=2),
    Remedy("no three tokens twice", ENDLESS, min_tokens=1, no_repeat=3),
    Remedy("no two tokens twice", ENDLESS, min_tokens=1, no_repeat=2, wider=2),
    Remedy("anything but a copy", (Trouble.COPY,), wider=2),
)
"""In the order in which they are tried. Capitals come first: many models have seen too few of them, or none."""


@dataclass(frozen=True)
class Mender:
    """Finds trouble and mends it.

    Args:
        decode: searches for some texts with these settings.
        settings: what was asked for.
        source_language, target_language: codes such as `de`. Only where both are known can a copy be wrong, or right.
    """

    tokenizers: TokenizerPair
    settings: SearchSettings
    decode: Decode = field(repr=False)
    source_language: str | None = None
    target_language: str | None = None

    def trouble(self, source: str, candidate: Candidate) -> Trouble | None:
        """The worst that is wrong with an output, as far as one can see."""
        if not visible(candidate.text):
            return Trouble.EMPTY if visible(source) else None
        if loops(candidate.ids, source):
            return Trouble.LOOP
        if self.translates and copies(source, candidate.text):
            return Trouble.COPY
        return None if candidate.finished else Trouble.UNFINISHED

    def look(self, source: str, translation: Translation) -> Mended:
        """A translation, and what is wrong with it."""
        trouble = self.trouble(source, translation.best)
        return Mended(translation.candidates, translation.shortened, trouble)

    def mend(self, sources: Sequence[str], found: Sequence[Mended]) -> list[Mended]:
        """Translations that are in no trouble, as far as there is a remedy.

        Each remedy costs one search for all that need it. What was shortened stays: its trouble is another.
        """
        best = list(found)
        for place, source in enumerate(sources):
            if best[place].trouble is not None and self.translates and not has_words(source):
                best[place] = self.unchanged(source)
        for remedy in REMEDIES:
            ill = [
                place
                for place, each in enumerate(best)
                if each.trouble in remedy.against and not each.shortened and remedy.applies(sources[place])
            ]
            if not ill:
                continue
            again = self.decode([remedy.text(sources[place]) for place in ill], remedy(self.settings))
            for place, translation in zip(ill, again, strict=True):
                other = self._choose(sources[place], best[place], translation, remedy.name)
                best[place] = min(best[place], other, key=lambda each: each.badness)
        return best

    @property
    def translates(self) -> bool:
        """Whether this goes from one language into another, as far as is known."""
        source, target = self.source_language, self.target_language
        return source is not None and target is not None and primary(source) != primary(target)

    def _choose(self, source: str, before: Mended, translation: Translation, remedy: str) -> Mended:
        """Those candidates first that are in no trouble."""
        looked = [(self.trouble(source, each), each) for each in translation.candidates]
        if before.trouble is Trouble.COPY:
            looked = [(trouble, each) for trouble, each in looked if _says_something_else(source, each, before.best)]
            if not looked:  # the text is in the target's language already, or made of words that are the same in both
                return Mended(before.candidates)
        looked.sort(key=lambda pair: 0 if pair[0] is None else pair[0].badness)
        candidates = tuple(each for _, each in looked[: self.settings.nbest])
        return Mended(candidates, trouble=looked[0][0], remedy=remedy)

    def unchanged(self, source: str) -> Mended:
        """What has no words is the same in every language: numbers, addresses, marks, pictures."""
        (ids,) = self.tokenizers.target.encode([source])
        same = Candidate(tuple(ids), log_probability=0.0, score=0.0, finished=True, text=source)
        return Mended((same,), remedy="unchanged")


def loops(ids: Sequence[int], source: str) -> bool:
    """Whether an output repeats something in a row, and that much more often than its source does."""
    times = repeats(ids)
    if times == 1:
        return False
    in_source = repeats(source, 4 * PERIOD, turns=2)
    factor, more = TOLERANCE
    return in_source == 1 or times > factor * in_source + more


def repeats(items: Sequence[int] | str, longest: int = PERIOD, turns: int = 3) -> float:
    """How many times in a row the same comes, where that is most often; 1 where nothing makes a run.

    A run is the same one to `longest` items in at least so many turns, and five items in all. This takes up to
    `longest` looks at each item, most often none.
    """
    if len(items) - len(set(items)) < 3:  # too few that come again
        return 1.0
    most = 1.0
    for period in range(1, min(longest, len(items) // turns) + 1):
        equal = most_equal = 0
        for one, other in zip(items, items[period:], strict=False):
            equal = equal + 1 if one == other else 0
            most_equal = max(most_equal, equal)
        run = most_equal + period
        if run >= max(turns * period, 5):
            most = max(most, run / period)
    return most


def has_words(source: str) -> bool:
    """Whether a text has letters other than those of addresses, numbers and identifiers."""
    return any(map(str.isalpha, _NAMED.sub(" ", source)))


def copies(source: str, output: str) -> bool:
    """Whether an output is its source, but for case, marks and spaces, and says something that has to be translated."""
    first, same = _WORD.search(source), _WORD.search(output)
    if first is None or same is None or first[0].casefold() != same[0].casefold():  # most often, at little cost
        return False
    prose = [word for word in _WORD.findall(_NAMED.sub(" ", source)) if not word[0].isupper()]
    return len(prose) >= PROSE and _words(source) == _words(output)


def _says_something_else(source: str, candidate: Candidate, copy: Candidate) -> bool:
    words, known = _words(candidate.text), set(_words(source))
    new = sum(word not in known for word in words)
    return 2 * new >= len(words) > 0 and _per_token(candidate) >= _per_token(copy) - MARGIN


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _per_token(candidate: Candidate) -> float:
    return candidate.log_probability / (len(candidate.ids) + 1)
