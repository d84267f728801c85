"""How far alignments are from those of people: the alignment error rate (Och and Ney 2003, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from regard.data.alignment import Link


@dataclass
class AlignmentErrors:
    """Counted over a corpus: AER = 1 - (|A and S| + |A and P|) / (|A| + |S|).

    A are the links found, S the sure ones of the reference and P its possible ones, which S are part of.
    """

    found: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, found: Iterable[Link], sure: Iterable[Link], possible: Iterable[Link] = ()) -> None:
        """Count one pair of sentences."""
        links, certain = set(found), set(sure)
        self.found += len(links)
        self.sure += len(certain)
        self.found_sure += len(links & certain)
        self.found_possible += len(links & (certain | set(possible)))

    @property
    def rate(self) -> float:
        """The alignment error rate, 0 at best; NaN where there is no link."""
        links = self.found + self.sure
        return 1 - (self.found_sure + self.found_possible) / links if links else math.nan

    @property
    def precision(self) -> float:
        """The share of the links found that are possible; NaN without any."""
        return self.found_possible / self.found if self.found else math.nan

    @property
    def recall(self) -> float:
        """The share of the sure links that were found; NaN without any."""
        return self.found_sure / self.sure if self.sure else math.nan
