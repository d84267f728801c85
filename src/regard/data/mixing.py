"""How often each source of training text is seen: which rows an epoch consists of, some of them several times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.data.budget import Indices


class Mixture:
    """Several sources whose rows stand one source after the other in one data set, each with its weight.

    The weight is how often an epoch sees each row of a source: twice with weight 2, one row in two with weight 0.5. The
    rows of a source are dealt like cards: shuffled, dealt until none is left, shuffled again. So each has been seen as
    often as any other of its source, give or take one, whatever the weight, and an epoch is a pure function of the
    seed and its number.

    Args:
        rows: how many each source has.
        weights: as many numbers above 0.
        seed: decides the shuffling.
    """

    def __init__(self, rows: Sequence[int], weights: Sequence[float], seed: int = 0) -> None:
        self._rows, self._seed = tuple(rows), seed
        self.counts = tuple(max(1, round(count * weight)) for count, weight in zip(rows, weights, strict=True))
        """How many rows of each source an epoch has, those that come again counted."""

    def epoch(self, epoch: int) -> Indices:
        """The rows of an epoch, by source; what stands next to each other is not in random order."""
        starts = np.cumsum((0, *self._rows[:-1]), dtype=np.int32)
        return np.concatenate([start + self._dealt(source, epoch) for source, start in enumerate(starts)])

    def _dealt(self, source: int, epoch: int) -> Indices:
        """The rows of one source, counted from its first."""
        rows, count = self._rows[source], self.counts[source]
        first, last = epoch * count, (epoch + 1) * count
        rounds = range(first // rows, -(-last // rows))
        return np.concatenate(
            [self._shuffled(source, each)[max(first - each * rows, 0) : last - each * rows] for each in rounds]
        )

    def _shuffled(self, source: int, time: int) -> Indices:
        rows = np.arange(self._rows[source], dtype=np.int32)
        if self.counts[source] % len(rows):  # else it is dealt whole, and batches have an order of their own
            np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, source, time]))).shuffle(rows)
        return rows
