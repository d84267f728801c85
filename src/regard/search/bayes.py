"""Minimum Bayes risk: the candidate that is most like all others, instead of the most probable one.

Kumar and Byrne 2004; with samples as candidates: Eikema and Aziz 2020, arXiv 2005.10283.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]
"""How good the first text would be if the second were the right one."""


def expected_utilities(texts: Sequence[str], weights: Sequence[float], utility: Utility) -> list[float]:
    """The mean utility of each text when each could be the right one, as probably as its share of the weights.

    For n texts, `utility` is asked n * n times.
    """
    total = sum(weights)
    return [
        sum(weight * utility(text, other) for other, weight in zip(texts, weights, strict=True)) / total
        for text in texts
    ]
