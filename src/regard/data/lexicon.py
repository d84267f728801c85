"""A lexicon learned from pairs: how probably each token is translated by which, and which stand for each other.

Model 2 of IBM with the diagonal prior of fast_align (Brown et al. 1993; Dyer, Chahuneau and Smith 2013, "A Simple,
Fast, and Effective Reparameterization of IBM Model 2"). Target token j of m comes from source token i of n with prior
probability

    (1 - p0) exp(-lambda |i / n - j / m|) / Z_j,        or with p0 from none of them: from the empty word,

and is then drawn from t(target | source), which the EM algorithm learns.

Suffixes: P pairs, S source tokens of all pairs (each pair's empty word after its own), T target tokens of all pairs, L
links, of which there is one between each target token and each source token of its pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

EMPTY = 0.08
"""p0, as in fast_align."""
TENSION = 4.0
"""lambda, as fast_align begins."""
ITERATIONS = 5
BLOCK = 2**20
"""About so many links are worked on at a time."""
MOST_LINKS = 100_000_000
"""Of a larger corpus a sample is learned from, as what is remembered of a link takes some 10 bytes, and of a pair of
tokens some 30: half a million pairs of 14 tokens a side, or 100,000 of 30."""

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class Texts(Protocol):
    """Token ids by sentence: a list of arrays, or a column of a file."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class Lexicon:
    """t(target | source) of all that stood in one pair; where a sum is wanted, each source's is 1."""

    source_size: int
    """Source ids; the one after the last stands for the empty word."""
    target_size: int
    keys: Places
    """source * target_size + target, ascending."""
    probabilities: Floats
    frequencies: Floats
    """How often each target id stood in what was learned from."""
    log_likelihoods: tuple[float, ...] = field(default=())
    """Of the targets, in nats, before each iteration: they never fall."""

    def probability(self, keys: Places) -> Floats:
        """t of some keys; 0 for what never stood in one pair."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.probabilities[places], 0.0)

    def align(self, sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> list[NDArray[np.int32]]:
        """For each token of each target the place of the likeliest token of its source, or -1 where it has none.

        Of equally likely ones it is the first. Each pair has tokens on both sides.
        """
        links = Links.between(sources, targets, self.source_size, self.target_size)
        weights_L = links.priors_L * self.probability(links.keys_L)
        best_T = np.maximum.reduceat(weights_L, links.starts_T)
        is_best_L = weights_L == np.repeat(best_T, links.widths_T)
        candidates_L = np.where(is_best_L, np.arange(len(weights_L)), len(weights_L))
        chosen_T = np.minimum.reduceat(candidates_L, links.starts_T) - links.starts_T
        chosen_T[(chosen_T == links.widths_T - 1) | (best_T == 0)] = -1
        ends = np.cumsum([len(target) for target in targets])[:-1]
        return np.split(chosen_T.astype(np.int32), ends)


@dataclass(frozen=True, eq=False)
class Links:
    """All links of some pairs, in the order of the target tokens, each one's in the order of the source."""

    keys_L: Places
    priors_L: Floats
    starts_T: Places
    """The first link of each target token."""
    widths_T: Places
    """How many it has: the tokens of its source and, last, the empty word."""

    @classmethod
    def between(
        cls, sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]], empty: int, target_size: int
    ) -> Links:
        """`empty` is the id of the empty word."""
        widths_P = np.array([len(source) + 1 for source in sources])
        heights_P = np.array([len(target) for target in targets])
        ends_P = np.cumsum(widths_P)
        sources_S = np.full(ends_P[-1], empty)
        not_empty_S = np.ones(len(sources_S), bool)
        not_empty_S[ends_P - 1] = False
        sources_S[not_empty_S] = np.concatenate(sources)

        widths_T = np.repeat(widths_P, heights_P)
        starts_T = _before(widths_T)
        token_L = np.repeat(np.arange(len(widths_T)), widths_T)
        place_L = np.arange(len(token_L)) - starts_T[token_L]
        source_L = sources_S[np.repeat(ends_P - widths_P, heights_P)[token_L] + place_L]
        keys_L = source_L * target_size + np.concatenate(targets)[token_L]

        place_T = np.arange(len(widths_T)) - np.repeat(_before(heights_P), heights_P)
        there_T = (place_T + 1) / np.repeat(heights_P, heights_P)
        priors_L = np.exp(-TENSION * np.abs((place_L + 1) / (widths_T - 1)[token_L] - there_T[token_L]))
        empty_T = starts_T + widths_T - 1
        priors_L[empty_T] = 0.0
        priors_L *= ((1 - EMPTY) / np.add.reduceat(priors_L, starts_T))[token_L]
        priors_L[empty_T] = EMPTY
        return cls(keys_L, priors_L, starts_T, widths_T)


@dataclass(frozen=True, eq=False)
class _Block:
    """The links of some pairs as EM needs them: what is used again and again is found by small numbers."""

    own: Places
    """Where in the table the entries are that this block has links for."""
    entry_L: NDArray[np.int32]
    """Which of its own entries a link is for."""
    priors_L: NDArray[np.float32]
    starts_T: NDArray[np.int32]

    def expect(self, probabilities: Floats, counts: Floats) -> float:
        """Add to `counts` how often each entry is expected to have been used; the log-likelihood of the targets."""
        weights_L = self.priors_L * probabilities[self.own][self.entry_L]
        likelihoods_T = np.add.reduceat(weights_L, self.starts_T)
        weights_L /= np.repeat(likelihoods_T, np.diff(self.starts_T, append=len(weights_L)))
        counts[self.own] += np.bincount(self.entry_L, weights_L, minlength=len(self.own))
        return float(np.log(likelihoods_T).sum())


def learn_lexicon(
    sources: Texts,
    targets: Texts,
    source_size: int,
    target_size: int,
    *,
    iterations: int = ITERATIONS,
    most_links: int = MOST_LINKS,
    say: Callable[[str], None] | None = None,
) -> Lexicon:
    """Learn t(target | source) from pairs of token ids, of which each side has at least one.

    What comes out depends on its arguments only. Memory is bounded by `most_links`: of a corpus with more, pairs at
    even distances are learned from. `say` is told how it went, in a line.
    """
    chosen = _sample(sources, targets, most_links)
    blocks, keys = _table(_links(sources, targets, chosen, source_size, target_size))
    source_of, target_of = np.divmod(keys, target_size)
    probabilities = np.full(len(keys), 1 / target_size)
    counts = np.zeros(len(keys))
    log_likelihoods = []
    for _ in range(iterations):
        counts[:] = 0.0
        log_likelihoods.append(sum(block.expect(probabilities, counts) for block in blocks))
        totals = np.bincount(source_of, counts)
        # A token all of whose links were ever less likely has a count of 0 in the end.
        probabilities = counts / np.maximum(totals, np.finfo(np.float64).tiny)[source_of]
    frequencies = np.bincount(target_of, counts, minlength=target_size).astype(np.float64)
    if say is not None:
        tokens = sum(len(block.starts_T) for block in blocks)
        rises = " to ".join(f"{-value / tokens:.2f}" for value in (log_likelihoods[0], log_likelihoods[-1]))
        of = "" if len(chosen) == len(sources) else f" (a sample of {len(sources):,})"
        say(f"lexicon: {len(keys):,} pairs of tokens from {len(chosen):,} pairs{of}, {rises} nats a token")
    return Lexicon(source_size, target_size, keys, probabilities, frequencies, tuple(log_likelihoods))


def _sample(sources: Texts, targets: Texts, most_links: int) -> Places:
    """The pairs to learn from: all, or where they have too many links a part of them at even distances."""
    links = sum(len(sources[index]) * len(targets[index]) for index in range(len(sources)))
    count = max(1, int(len(sources) * min(1.0, most_links / max(links, 1))))
    return np.arange(count) * len(sources) // count


def _links(sources: Texts, targets: Texts, chosen: Places, empty: int, target_size: int) -> Iterator[Links]:
    """The links of the chosen pairs, block by block."""
    some: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    links = 0
    for index in chosen.tolist():
        source, target = sources[index], targets[index]
        some[0].append(source)
        some[1].append(target)
        links += (len(source) + 1) * len(target)
        if links >= BLOCK:
            yield Links.between(*some, empty, target_size)
            some, links = ([], []), 0
    if links:
        yield Links.between(*some, empty, target_size)


def _table(blocks: Iterator[Links]) -> tuple[list[_Block], Places]:
    """The blocks as EM needs them, and the keys of all entries."""
    found: list[_Block] = []
    for links in blocks:
        own, entry_L = np.unique(links.keys_L, return_inverse=True)
        priors_L, starts_T = links.priors_L.astype(np.float32), links.starts_T.astype(np.int32)
        found.append(_Block(own, entry_L.astype(np.int32), priors_L, starts_T))
    keys: Places = np.unique(np.concatenate([block.own for block in found]))
    return [replace(block, own=np.searchsorted(keys, block.own)) for block in found], keys


def _before(sizes: Places) -> Places:
    """The sum of the sizes before each."""
    return np.cumsum(sizes) - sizes
