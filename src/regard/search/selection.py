"""Which of the candidates get the places of a beam: the most probable, or those that serve something else as well.

Shapes: N sources, W growing hypotheses of each, R = N * W rows, C candidates of a row, K = W * C of a source, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from regard.search.processors import NEVER
from regard.search.requests import Demand


@dataclass(frozen=True)
class Standing:
    """How a search stands."""

    sources: Sequence[int]
    """The numbers of the sources still searched."""
    places_N: Int[np.ndarray, " N"]
    """How many places each has left."""
    lengths_N: Int[np.ndarray, " N"]
    """How many tokens the outputs of each have."""
    tokens_RT: Int[np.ndarray, "R T"]
    """The tokens of all rows, side by side at their ends."""

    def outputs(self, place: int) -> list[tuple[int, ...]]:
        """What the rows of the source at this place say."""
        width = len(self.tokens_RT) // len(self.sources)
        rows_WT = self.tokens_RT[place * width : (place + 1) * width]
        return [tuple(row[len(row) - self.lengths_N[place] :]) for row in rows_WT.tolist()]


@runtime_checkable
class Selection(Protocol):
    """Puts candidates into the order in which they get places."""

    each: int
    """Of each row, so many times as many candidates are looked at as a beam has places."""

    def further(self, standing: Standing) -> list[list[int]]:
        """Tokens of each row that are candidates whatever their rank; no list at all when there are none."""
        ...

    def order(
        self, standing: Standing, scores_NK: Float[np.ndarray, "N K"], tokens_NK: Int[np.ndarray, "N K"]
    ) -> Int[np.ndarray, "N K"]:
        """The candidates of each source, first come first served. Scores are log-probabilities of whole outputs."""
        ...


class MostProbable:
    """Beam search itself."""

    each = 1

    def further(self, standing: Standing) -> list[list[int]]:
        return []

    def order(
        self, standing: Standing, scores_NK: Float[np.ndarray, "N K"], tokens_NK: Int[np.ndarray, "N K"]
    ) -> Int[np.ndarray, "N K"]:
        return np.argsort(-scores_NK, axis=1, kind="stable")

    def order_one(
        self, standing: Standing, place: int, scores_K: Float[np.ndarray, " K"], tokens_K: Int[np.ndarray, " K"]
    ) -> Int[np.ndarray, " K"]:
        """The candidates of the source at this place."""
        return np.argsort(-scores_K, kind="stable")


class Diverse:
    """Diverse beam search (Vijayakumar et al. 2016, arXiv 1610.02424, equation 5, with Hamming diversity).

    The groups of an input are sources of the search, one after the other. In each step the first chooses as if it were
    alone; to the next, a token costs `strength` for each hypothesis of a group before that has just chosen it. How a
    group chooses, is up to another selection.
    """

    def __init__(self, groups: int, strength: float, within: MostProbable | Banks) -> None:
        self._groups, self._strength, self._within = groups, strength, within
        self.each = groups  # as many as other groups may have taken, and its own

    def further(self, standing: Standing) -> list[list[int]]:
        return self._within.further(standing)

    def order(
        self, standing: Standing, scores_NK: Float[np.ndarray, "N K"], tokens_NK: Int[np.ndarray, "N K"]
    ) -> Int[np.ndarray, "N K"]:
        order_NK = np.empty_like(tokens_NK)
        input_before, chosen_M = -1, np.empty(0, dtype=np.int64)
        for n, source in enumerate(standing.sources):
            if source // self._groups != input_before:
                input_before, chosen_M = source // self._groups, np.empty(0, dtype=np.int64)
            counts_K = (tokens_NK[n, :, None] == chosen_M).sum(axis=1)
            scores_K = scores_NK[n] - self._strength * counts_K
            order_NK[n] = self._within.order_one(standing, n, scores_K, tokens_NK[n])
            taken_M = order_NK[n, : standing.places_N[n]]
            chosen_M = np.concatenate((chosen_M, tokens_NK[n, taken_M[scores_NK[n, taken_M] > NEVER]]))
        return order_NK


class Banks:
    """Dynamic beam allocation (Post and Vilar 2018, arXiv 1804.06609) for what outputs must say.

    Candidates that still miss equally many tokens are a bank, and banks take turns in getting a place: first the best
    of each, beginning with the one that misses least, then the second of each, and so on.
    """

    each = 1

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._demands = demands

    def further(self, standing: Standing) -> list[list[int]]:
        return [
            list(self._demands[source].outlook(said).following)
            for place, source in enumerate(standing.sources)
            for said in standing.outputs(place)
        ]

    def order(
        self, standing: Standing, scores_NK: Float[np.ndarray, "N K"], tokens_NK: Int[np.ndarray, "N K"]
    ) -> Int[np.ndarray, "N K"]:
        pairs = zip(scores_NK, tokens_NK, strict=True)
        return np.stack([self.order_one(standing, n, *pair) for n, pair in enumerate(pairs)])

    def order_one(
        self, standing: Standing, place: int, scores_K: Float[np.ndarray, " K"], tokens_K: Int[np.ndarray, " K"]
    ) -> Int[np.ndarray, " K"]:
        """The candidates of the source at this place."""
        banks_K = self._banks(self._demands[standing.sources[place]], standing.outputs(place), tokens_K)
        ranks: Counter[int] = Counter()
        keys = []
        for candidate in np.argsort(-scores_K, kind="stable").tolist():
            bank = banks_K[candidate]
            keys.append((bool(scores_K[candidate] == NEVER), ranks[bank], bank, candidate))
            ranks[bank] += 1
        return np.array([candidate for *_, candidate in sorted(keys)])

    def _banks(self, demand: Demand, outputs: list[tuple[int, ...]], tokens_K: Int[np.ndarray, " K"]) -> list[int]:
        banks: list[int] = []
        for said, tokens_C in zip(outputs, tokens_K.reshape(len(outputs), -1).tolist(), strict=True):
            outlook = demand.outlook(said)
            banks += map(outlook, tokens_C)
        return banks
