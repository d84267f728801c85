"""Texts of any length, translated by a model of bounded reach, and looked at afterwards.

A text that the model knows the length of goes to it as it is. What is longer goes sentence by sentence, and its
translation has the white space of its source. What comes out wrong is searched for again: a text of several sentences
sentence by sentence at first, and then what is wrong still by the remedies of `regard.search.trouble`.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

from regard.model.store import Languages
from regard.search.beam import length_penalty, rank
from regard.search.engine import WINDOW, Candidate, Translation
from regard.search.inputs import NO_CHARACTER, whole_characters
from regard.search.requests import Request
from regard.search.settings import SearchSettings
from regard.search.trouble import Mended, Mender, Trouble
from regard.text.segment import Passage, edges, split, visible
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

KNOWN = 256
"""Tokens of a source that a model for translation is taken to know, as training leaves out longer ones by default."""
SHORT = 0.8
"""Sentences are missing where there are fewer than in the source, and tokens fewer than this share of its tokens."""


Order = Literal["scores", "chosen", "drawn"]


class Search(Protocol):
    """`regard.search.engine.translate`, of some model."""

    def __call__(
        self,
        texts: Iterable[str | Request],
        settings: SearchSettings,
        *,
        patience: float | None = None,
        name: str = "input",
    ) -> Iterator[Translation]:
        """One translation for each text, in order."""
        ...


@dataclass
class _Item:
    """A text on its way."""

    line: int
    source: str
    passage: Passage
    parts: tuple[str, ...]
    """What the model is given: the source itself or the pieces of the passage."""
    found: list[Mended] = field(default_factory=list)
    """The translations of the parts, as far as they have come."""
    before: Mended | None = None
    """The translation of the whole, which its parts were to improve."""
    edges: tuple[str, str] = ("", "")
    """White space before and after the source, which the model is not given."""
    request: Request | None = None
    """What was asked for, if it was more than a translation: that is searched for once, as a whole."""

    @property
    def whole(self) -> bool:
        return self.parts == (self.source,)


class Passages:
    """A search for texts of any length.

    Args:
        reads: tokens of a text that the model can read.
        writes: tokens of a text that it can write.
        order: of the candidates that `search` gives: by their scores, as they were "chosen" by something else, or as
            they were "drawn".
    """

    def __init__(
        self,
        search: Search,
        tokenizers: TokenizerPair,
        settings: SearchSettings,
        reads: int,
        writes: int,
        languages: Languages,
        order: Order = "scores",
    ) -> None:
        self._order = order
        self._search, self._tokenizers, self._settings, self._languages = search, tokenizers, settings, languages
        self._mender = Mender(tokenizers, settings, self._again, languages.source, languages.target)
        known = min(KNOWN, writes) if self._mender.translates else reads
        self._limit = min(reads, settings.split_tokens or known)

    def translate(
        self, texts: Iterable[str | Request], patience: float | None = None, name: str = "input"
    ) -> Iterator[Mended]:
        """One translation for each text, in order, without holding all of them.

        What needs no second look goes out at once. The rest waits until all has come that the search has taken in, so
        that one more search does for all of it, but for no more than a window of texts.
        """
        coming: deque[_Item] = deque()
        waiting: list[_Item] = []
        taken = returned = held = 0

        def parts() -> Iterator[str | Request]:
            nonlocal taken
            for line, text in enumerate(texts, start=1):
                item = self._item(line, text, name)
                coming.append(item)
                for part in item.parts:
                    taken += 1
                    yield item.request or part

        for translation in self._search(parts(), self._settings, patience=patience, name=name):
            returned += 1
            item = coming[0]
            item.found.append(self._look(item, translation))
            if len(item.found) < len(item.parts):
                continue
            waiting.append(coming.popleft())
            held += len(item.parts)
            well = len(waiting) == 1 and all(each.trouble is None for each in item.found)
            if well or returned == taken or held >= WINDOW:
                yield from self._done(waiting, name)
                waiting, held = [], 0
        yield from self._done(waiting, name)

    def _item(self, line: int, text: str | Request, name: str) -> _Item:
        if isinstance(text, Request):
            item = self._item(line, text.text, name)
            whole = item.source
            request = replace(text, text=whole)
            return replace(item, passage=Passage((whole,), ("", "")), parts=(whole,), request=request)
        whole = whole_characters(text)
        if whole != text:
            log.warning("%s, line %d: %s", name, line, NO_CHARACTER)
        if not visible(whole):
            return _Item(line, "", Passage((), ("",)), ("",))
        how, language = self._settings.split, self._languages.source
        if how == "never":
            return _Item(line, whole, Passage((whole,), ("", "")), (whole,))
        before, source, after = edges(whole) if self._mender.translates else ("", whole, "")
        lines = 1 if not self._mender.translates else len(source.splitlines())  # no training line has a line break
        if how == "long" and lines == 1 and self._fits(source):
            item = _Item(line, source, split(source, language), (source,))
        else:
            passage = split(source, language, self._fits)
            item = _Item(line, source, passage, passage.pieces or ("",))
        item.edges = before, after
        return item

    def _fits(self, text: str) -> bool:
        if text.isascii() and len(text) < self._limit:  # no token is less than a character
            return True
        return self._tokens(text) <= self._limit

    def _tokens(self, text: str) -> int:
        return len(self._tokenizers.source.encode([text])[0])

    def _look(self, item: _Item, translation: Translation) -> Mended:
        if not self._settings.retry or item.request is not None:
            return Mended(translation.candidates, translation.shortened)
        found = self._mender.look(item.parts[len(item.found)], translation)
        if found.trouble is None and item.whole and self._lost(item, found.best):
            return replace(found, trouble=Trouble.LOST)
        return found

    def _lost(self, item: _Item, candidate: Candidate) -> bool:
        """Whether sentences are missing: models that learned from single ones often translate a part of several."""
        sentences = len(item.passage.pieces)
        if not self._mender.translates or sentences < 2:
            return False
        counted = (len(split(candidate.text, language).pieces) for language in (self._languages.target, None))
        return max(counted) < sentences and len(candidate.ids) < SHORT * self._tokens(item.source)

    def _done(self, items: Sequence[_Item], name: str) -> Iterator[Mended]:
        if self._settings.retry:
            self._mend(items)
        for item in items:
            mended = _within(item.edges, self._joined(item))
            if mended.trouble is not None and not mended.shortened:
                log.warning("%s, line %d: its translation %s", name, item.line, mended.trouble.value)
            yield mended

    def _mend(self, items: Sequence[_Item]) -> None:
        """Search again for what is in trouble."""
        several = [
            item
            for item in items
            if item.whole and len(item.passage.pieces) > 1 and item.found[0].trouble and not item.found[0].shortened
        ]
        again = iter(self._again([piece for item in several for piece in item.passage.pieces], self._settings))
        for item in several:
            item.parts = item.passage.pieces
            item.before, item.found = item.found[0], []
            for _ in item.parts:
                item.found.append(self._look(item, next(again)))
        ill = [(item, place) for item in items for place, each in enumerate(item.found) if each.trouble is not None]
        mended = self._mender.mend(
            [item.parts[place] for item, place in ill], [item.found[place] for item, place in ill]
        )
        for (item, place), each in zip(ill, mended, strict=True):
            item.found[place] = each

    def _again(self, texts: list[str], settings: SearchSettings) -> list[Translation]:
        return list(self._search(texts, settings)) if texts else []

    def _joined(self, item: _Item) -> Mended:
        """The translation of a text from those of its parts."""
        if item.whole:
            (whole,) = item.found
            return whole if self._order != "drawn" else replace(whole, candidates=_ranked(whole.candidates))
        if not item.passage.pieces:
            return self._mender.unchanged(item.source)
        by_score = self._order == "scores"
        ways = best_together(item.found, self._settings.nbest) if by_score else in_turn(item.found)
        joined = tuple(self._candidate(item.passage, way) for way in ways)
        remedies = ["sentence by sentence"] * (item.before is not None)
        remedies += dict.fromkeys(each.remedy for each in item.found if each.remedy is not None)
        mended = Mended(
            joined if self._order == "chosen" else _ranked(joined),
            any(each.shortened for each in item.found),
            max((each.trouble for each in item.found if each.trouble), key=lambda each: each.badness, default=None),
            "; ".join(remedies) or None,
        )
        return mended if item.before is None else min(mended, item.before, key=lambda each: each.badness)

    def _candidate(self, passage: Passage, way: Sequence[Candidate]) -> Candidate:
        ids = tuple(number for each in way for number in each.ids)
        log_probability = sum(each.log_probability for each in way)
        tokens = len(ids) + sum(each.finished for each in way)
        return Candidate(
            ids,
            log_probability,
            score=log_probability / length_penalty(tokens, self._settings.alpha),
            finished=all(each.finished for each in way),
            text=passage.join_translated([each.text for each in way], self._languages.target),
        )


def _within(edges: tuple[str, str], mended: Mended) -> Mended:
    """With white space around every candidate."""
    before, after = edges
    if not before and not after:
        return mended
    return replace(
        mended, candidates=tuple(replace(each, text=before + each.text + after) for each in mended.candidates)
    )


def _ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=rank, reverse=True))


def in_turn(found: Sequence[Translation]) -> list[list[Candidate]]:
    """The first candidates of all translations, the second ones, and so on; what has fewer says its last one again.

    So joined, draws are draws, and the choices of something else come before what it did not choose.
    """
    most = max(len(translation.candidates) for translation in found)
    return [[each.candidates[min(place, len(each.candidates) - 1)] for each in found] for place in range(most)]


def best_together(found: Sequence[Translation], most: int) -> list[list[Candidate]]:
    """The best ways to take one candidate of each translation: fewest unfinished ones first, then by sum of scores."""
    ways: list[tuple[int, float, _Link | None]] = [(0, 0.0, None)]
    for translation in found:
        longer = (
            (unfinished - (not each.finished), score + each.score, _Link(each, way))
            for unfinished, score, way in ways
            for each in translation.candidates
        )
        ways = heapq.nlargest(most, longer, key=lambda way: way[:2])
    return [_unrolled(way) for _, _, way in ways]


class _Link(NamedTuple):
    """A way from its last candidate on, so that ways share what they have in common."""

    candidate: Candidate
    before: _Link | None


def _unrolled(way: _Link | None) -> list[Candidate]:
    candidates = []
    while way is not None:
        candidates.append(way.candidate)
        way = way.before
    return candidates[::-1]
