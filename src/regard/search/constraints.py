"""Processors for what an output must begin with, must say and must not say; each source has wishes of its own.

All that they know of a row is its tokens, so rows may come, go and be reordered. The first token of
`tokens_RT` is what the decoder begins with.

Shapes: R rows of a search, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from regard.search.processors import NEVER
from regard.search.requests import Beginning, Demand
from regard.search.spelling import Phrase, Spelling


class Begin:
    """Lets an output begin in one way only."""

    def __init__(self, beginnings: Sequence[Beginning], spelled: Spelling) -> None:
        self._beginnings, self._spelled = beginnings, spelled

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        for row, (source, said) in enumerate(_rows(tokens_RT, sources_R)):
            allowed = self._allowed(self._beginnings[source], said)
            if allowed is not None:
                _keep_only(scores_RV, row, allowed)
        return scores_RV

    def _allowed(self, beginning: Beginning, said: tuple[int, ...]) -> list[int] | None:
        """None when the beginning has been said."""
        if len(said) < len(beginning.ids):
            return [beginning.ids[len(said)]]
        rest = beginning.rest[len(self._spelled.text(said[len(beginning.ids) :])) :] if beginning.rest else b""
        return self._spelled.starting(rest) + self._spelled.within(rest) if rest else None


class Forbid:
    """Forbids each token that would complete a phrase, however the phrase is cut into tokens."""

    def __init__(self, phrases: Sequence[Sequence[Phrase]], spelled: Spelling) -> None:
        self._phrases, self._spelled = phrases, spelled
        self._longest = max((len(each) for several in phrases for each in several), default=0)

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        for row, (source, said) in enumerate(_rows(tokens_RT, sources_R)):
            text = self._spelled.text(said[-self._longest - 4 :])
            for phrase in self._phrases[source]:
                scores_RV[row, phrase.completing(text)] = NEVER
        return scores_RV


class Must:
    """Forbids the end before everything is said that must be, and says it where just enough room is left.

    In a beam search, `selection.Banks` takes care that it is said before. Without that, and if so told, what is missing
    begins where the model would end: better than more and more words until no room is left.
    """

    def __init__(self, demands: Sequence[Demand], limits: Sequence[int], end: int, at_end: bool = False) -> None:
        self._demands, self._limits, self._end, self._at_end = demands, limits, end, at_end
        self._begun: set[tuple[int, tuple[int, ...]]] = set()
        """Sources and their outputs that have begun to say something where the model would have ended."""

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        for row, (source, said) in enumerate(_rows(tokens_RT, sources_R)):
            outlook = self._demands[source].outlook(said)
            room = self._limits[source] - len(said) - 2  # without this token and the end
            begun = (source, said) in self._begun
            if outlook.following:
                now = begun or (self._at_end and int(scores_RV[row].argmax()) == self._end)
                scores_RV[row, self._end] = NEVER
                if now or outlook.otherwise > room:
                    nearer = self._nearer(source, said) if now else []
                    most = max(room, min(outlook.following.values()))
                    tokens = nearer or [token for token, missing in outlook.following.items() if missing <= most]
                    self._begun |= {(source, (*said, token)) for token in nearer}
                    _keep_only(scores_RV, row, tokens)
                    continue
            most = outlook.otherwise if begun else room  # a word that was said for this does not go on
            if outlook.continued > most:
                scores_RV[row, [token for token in outlook.inner if outlook(token) > most]] = NEVER
        return scores_RV

    def _nearer(self, source: int, said: tuple[int, ...]) -> list[int]:
        """The tokens after which less is missing."""
        demand = self._demands[source]
        missing = demand.missing(said)
        return [token for token, then in demand.outlook(said).following.items() if then < missing]


def _rows(tokens_RT: Tensor, sources_R: Tensor) -> Iterable[tuple[int, tuple[int, ...]]]:
    """The source of each row and what it says so far."""
    return zip(sources_R.tolist(), map(tuple, tokens_RT[:, 1:].tolist()), strict=True)


def _keep_only(scores_RV: Tensor, row: int, tokens: Sequence[int]) -> None:
    kept = scores_RV[row, tokens]
    scores_RV[row] = NEVER
    scores_RV[row, tokens] = kept
