"""What a parallel corpus looks like in numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from regard.data.corpus import Pair, SeenPairs, count_words

RATIO_EDGES = tuple(Fraction(edge) for edge in ("1/4", "1/2", "2/3", "4/5", "5/4", "3/2", "2", "4"))
"""Where the bins of the length ratio (target words / source words) meet."""

# Control characters other than TAB, U+FFFD (left by a failed decoding), private use, non-characters.
_STRANGE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ufffd\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff]")


@dataclass(frozen=True)
class Side:
    """One side of a corpus."""

    words: int
    characters: int
    lengths: dict[int, int]
    """Words in a line -> number of such lines, by increasing length."""

    @property
    def mean(self) -> float:
        """Mean words in a line."""
        return self.words / max(sum(self.lengths.values()), 1)

    @property
    def longest(self) -> int:
        """Words of the longest line."""
        return max(self.lengths, default=0)

    def percentile(self, percent: float) -> int:
        """The smallest length that `percent` per cent of the lines do not exceed."""
        wanted, reached = percent / 100 * sum(self.lengths.values()), 0
        for length, lines in self.lengths.items():
            reached += lines
            if reached >= wanted:
                return length
        return 0


@dataclass(frozen=True)
class Statistics:
    """The numbers of a parallel corpus; words are those of `count_words`."""

    pairs: int
    source: Side
    target: Side
    ratios: tuple[int, ...]
    """Pairs by target words / source words, binned at `RATIO_EDGES`; pairs with an empty side are in none."""
    empty: int
    """Pairs with a side without any word."""
    identical: int
    """Pairs with the same text on both sides."""
    duplicates: int
    """Pairs that stood before."""
    strange: int
    """Pairs with control or private-use characters or U+FFFD: text that was decoded wrongly, as a rule."""


def statistics(pairs: Iterable[Pair]) -> Statistics:
    """Measure a stream of pairs; memory grows only by the hashes that find duplicates (`SeenPairs`)."""
    seen = SeenPairs()
    lengths: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    characters = [0, 0]
    ratios = [0] * (len(RATIO_EDGES) + 1)
    totals = dict.fromkeys(("pairs", "empty", "identical", "duplicates", "strange"), 0)
    for pair in pairs:
        words = count_words(pair[0]), count_words(pair[1])
        for side, text in enumerate(pair):
            lengths[side][words[side]] += 1
            characters[side] += len(text)
        if all(words):
            ratios[bisect_right(RATIO_EDGES, words[1] / words[0])] += 1
        totals["pairs"] += 1
        totals["empty"] += not all(words)
        totals["identical"] += pair[0] == pair[1]
        totals["duplicates"] += not seen.add(*pair)
        totals["strange"] += any(map(_STRANGE.search, pair))
    source, target = (
        Side(sum(length * lines for length, lines in count.items()), total, dict(sorted(count.items())))
        for count, total in zip(lengths, characters, strict=True)
    )
    return Statistics(source=source, target=target, ratios=tuple(ratios), **totals)
