"""Processors for what an output must begin with, must say and must not say; each source has wishes of its own.

They look at the tokens of a row and keep nothing of it, so rows may come, go and be reordered. The first token of
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

    In a beam search, `selection.Banks` takes care that it is said before.
    """

    def __init__(self, demands: Sequence[Demand], limits: Sequence[int], end: int) -> None:
        self._demands, self._limits, self._end = demands, limits, end

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        for row, (source, said) in enumerate(_rows(tokens_RT, sources_R)):
            outlook = self._demands[source].outlook(said)
            room = self._limits[source] - len(said) - 2  # without this token and the end
            if outlook.otherwise > 0:
                scores_RV[row, self._end] = NEVER
            if outlook.otherwise > room and outlook.following:
                most = max(room, min(outlook.following.values()))
                _keep_only(scores_RV, row, [token for token, missing in outlook.following.items() if missing <= most])
            elif outlook.continued > room:
                scores_RV[row, [token for token in outlook.inner if outlook(token) > room]] = NEVER
        return scores_RV


def _rows(tokens_RT: Tensor, sources_R: Tensor) -> Iterable[tuple[int, tuple[int, ...]]]:
    """The source of each row and what it says so far."""
    return zip(sources_R.tolist(), map(tuple, tokens_RT[:, 1:].tolist()), strict=True)


def _keep_only(scores_RV: Tensor, row: int, tokens: Sequence[int]) -> None:
    kept = scores_RV[row, tokens]
    scores_RV[row] = NEVER
    scores_RV[row, tokens] = kept
