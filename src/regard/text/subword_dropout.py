"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267, algorithm 1): another segmentation of the same text each time.

Byte pair encoding joins, in each step, the best pair of neighbours in a word: the one that was learned first, of equal
ones the leftmost. With dropout each pair that could be joined is left out of the step with a probability, the rate;
where all are left out the word stays as it is. The pairs left out before the best remaining one are therefore a
geometric variable, and that is what is drawn here: once for each step of each word, never shared among words.

Shape suffixes: N words, W places of a word, one before it and some after it included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.text.learned import LearnedTokenizer
from regard.text.tokenizer import Tokenizer

Numbers = NDArray[np.int64]

# A space between two characters that are none begins a word, whatever stands before or after: what lies between two of
# them is cut by itself, once.
_WORD_GROUPS = re.compile(r"(?<=\S)(?= \S)")
_KNOWN_GROUPS = 2**18
_BLOCK = 2**17
"""Places of words that are joined side by side: so many that they stay in a processor's cache."""
_NONE = np.iinfo(np.int32).max
"""The rank of two neighbours that cannot be joined."""


def segments(starts: Numbers, sizes: NDArray[np.integer]) -> Numbers:
    """The indices of runs of items, one run after the other: `sizes[k]` from `starts[k]` on."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.repeat(starts - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)


class WordBorders:
    """Finds the words in the ids of texts; byte pair encoding never joins what belongs to two of them."""

    def __init__(self, tokenizer: LearnedTokenizer) -> None:
        self._cutter = Backend.from_str(json.dumps(tokenizer.document)).pre_tokenizer
        self._pieces = _Pieces(tokenizer)
        self._known: dict[str, list[int]] = {}

    def begins(self, ids: NDArray[np.integer], lengths: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of the ids begin a word, for texts of `lengths` ids, one after the other.

        Raises:
            ValueError: the ids are none that the tokenizer gives for a text.
        """
        spelled, sizes = self._pieces.spell(ids)
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        content = spelled.tobytes()
        text_sizes = np.diff(offsets[np.concatenate(([0], np.cumsum(lengths)))])
        words: list[int] = []
        place = 0
        for size in text_sizes.tolist():
            for group in _WORD_GROUPS.split(content[place : place + size].decode()):
                words += self._known.get(group) or self._cut(group)
            place += size
        marks = np.zeros(len(content) + 1, dtype=np.bool_)
        marks[np.cumsum([0, *words])] = True
        # An id without bytes, such as a tag, is a word of its own.
        begins: NDArray[np.bool_] = marks[offsets[:-1]] | (sizes == 0)
        if np.count_nonzero(begins) != len(words) + np.count_nonzero(sizes == 0):
            raise ValueError("the words of a text do not begin where its ids do")
        return begins

    def _cut(self, group: str) -> list[int]:
        """The sizes of the words of some text, in bytes, each of which is spelled by one letter."""
        sizes = [len(spelled) for spelled, _ in self._cutter.pre_tokenize_str(group)]
        if len(self._known) == _KNOWN_GROUPS:
            self._known.clear()
        self._known[group] = sizes
        return sizes


class SubwordDropout:
    """Segments words anew, by byte pair encoding with dropout.

    Raises `UserError` for a tokenizer of another kind, which has no merges that could be dropped.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, LearnedTokenizer) or tokenizer.document["model"]["type"] != "BPE":
            raise UserError(
                "subword_dropout leaves out merges of byte pair encoding, and this tokenizer has none that are known; "
                "it works with those that regard learns by tokenizer.kind: bpe"
            )
        self._tokenizer, self._pieces = tokenizer, _Pieces(tokenizer)
        numbers = tokenizer.document["model"]["vocab"]
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in tokenizer.document["model"]["merges"]]
        left, right, joined = (
            np.array([numbers[piece] for piece in pieces], dtype=np.int64)
            for pieces in ([a for a, _ in merges], [b for _, b in merges], [a + b for a, b in merges])
        )
        self._joined = joined.astype(np.int32)
        self._nothing = tokenizer.size
        """In place of an id, where there is none."""
        self._ranks = _Table(self._key(left, right), np.arange(len(merges), dtype=np.int32), _NONE)

    def borders(self) -> WordBorders:
        """Where words begin in the ids of this tokenizer."""
        return WordBorders(self._tokenizer)

    def sample(
        self, ids: NDArray[np.integer], begins: NDArray[np.bool_], rate: float, random: np.random.Generator
    ) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
        """The ids of words segmented anew, and how many each word has now.

        Args:
            ids: words as the tokenizer segments them, one after the other.
            begins: which of the ids are the first of a word.
            rate: the probability that a pair is left out of a step; 0 leaves all words as they are, 1 gives bytes.
        """
        firsts = np.flatnonzero(begins)
        sizes = np.diff(firsts, append=len(ids)).astype(np.int32)
        if not rate or not len(ids):
            return ids, sizes
        _, piece_sizes = self._pieces.bounds(ids)
        steps = np.add.reduceat(piece_sizes, firsts) - sizes
        # Until the first pair is left out a word is joined as always: those where that comes too late are done.
        undropped = random.geometric(rate, len(steps)) - 1
        chosen = np.flatnonzero(undropped < steps)
        chosen = chosen[np.argsort(steps[chosen] + sizes[chosen], kind="stable")]
        spelled, _ = self._pieces.spell(ids[segments(firsts[chosen], sizes[chosen])])
        joined, joined_sizes = self._join(
            self._pieces.of_bytes[spelled], (steps + sizes)[chosen], undropped[chosen], rate, random
        )
        starts = firsts.copy()
        starts[chosen] = len(ids) + np.cumsum(joined_sizes) - joined_sizes
        sizes[chosen] = joined_sizes
        everything = np.concatenate((ids, joined.astype(ids.dtype)))
        return everything[segments(starts, sizes)], sizes

    def _join(
        self,
        spelled: NDArray[np.int32],
        sizes: NDArray[np.integer],
        undropped: NDArray[np.integer],
        rate: float,
        random: np.random.Generator,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The ids of words, joined from those of their bytes; the words come by increasing size."""
        results, result_sizes = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        ends = np.cumsum(sizes)
        for words in _blocks(sizes + 2):
            block = sizes[words]
            tokens_NW = np.full((len(block), block[-1] + 2), self._nothing, dtype=np.int32)
            places = np.arange(tokens_NW.shape[1])
            tokens_NW[(places > 0) & (places <= block[:, None])] = spelled[ends[words][0] - block[0] : ends[words][-1]]
            self._join_block(tokens_NW, undropped[words], rate, random)
            kept_NW = tokens_NW != self._nothing
            results.append(tokens_NW[kept_NW])
            result_sizes.append(np.count_nonzero(kept_NW, axis=1).astype(np.int32))
        return np.concatenate(results), np.concatenate(result_sizes)

    def _join_block(
        self, tokens_NW: NDArray[np.int32], undropped: NDArray[np.integer], rate: float, random: np.random.Generator
    ) -> None:
        """Join pairs in place, a step of each word at a time; of two joined places the second has no id afterwards.

        The first `undropped` steps of a word leave out no pair, and the next one leaves out one at least.
        """
        width = tokens_NW.shape[1]
        tokens = tokens_NW.reshape(-1)
        ranks = np.append(self._rank(tokens[:-1], tokens[1:]), np.int32(_NONE))
        ranks_NW = ranks.reshape(tokens_NW.shape)
        before, after = np.arange(-1, len(tokens) - 1), np.arange(1, len(tokens) + 1)
        words = np.arange(len(tokens_NW))
        step = 0
        while len(words):
            dropped = np.where(step < undropped[words], 0, (step == undropped[words]) + _losses(rate, words, random))
            place, rank = _best_left(ranks_NW[words], dropped)
            going_on = rank < _NONE
            words, place, rank = words[going_on], place[going_on], rank[going_on]
            here = words * width + place
            gone, joined = after[here], self._joined[rank]
            left, right = before[here], after[gone]
            tokens[here], tokens[gone], ranks[gone] = joined, self._nothing, _NONE
            after[here], before[right] = right, here
            ranks[here], ranks[left] = self._rank(joined, tokens[right]), self._rank(tokens[left], joined)
            step += 1

    def _rank(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int32]:
        """How early each pair was learned, or `_NONE`."""
        return self._ranks[self._key(left, right)]

    def _key(self, left: NDArray[np.integer], right: NDArray[np.integer]) -> Numbers:
        return left.astype(np.int64) * (self._nothing + 1) + right


def _blocks(widths: NDArray[np.integer]) -> Iterator[slice]:
    """Words of like, increasing width, side by side: as many as go into `_BLOCK` places, but one at least."""
    first = 0
    while first < len(widths):
        window = widths[first : first + max(1, _BLOCK // int(widths[first]))]
        count = max(1, int(np.count_nonzero(window * np.arange(1, len(window) + 1) <= _BLOCK)))
        yield slice(first, first + count)
        first += count


def _losses(rate: float, words: Numbers, random: np.random.Generator) -> Numbers:
    """For each word, how many of the best pairs are left out of a step if there are enough."""
    if rate == 1:
        return np.full(len(words), _NONE)
    return random.geometric(1 - rate, len(words)) - 1


def _best_left(ranks_NW: NDArray[np.int32], dropped: Numbers) -> tuple[Numbers, NDArray[np.int32]]:
    """The place and rank of the best pair of each word once so many better ones are left out."""
    words = np.arange(len(ranks_NW))
    place = ranks_NW.argmin(axis=1)
    rank = ranks_NW[words, place]
    again = np.flatnonzero(dropped)
    while len(again):
        ranks_NW[again, place[again]] = _NONE
        place[again] = ranks_NW[again].argmin(axis=1)
        rank[again] = ranks_NW[again, place[again]]
        dropped[again] -= 1
        again = again[(dropped[again] > 0) & (rank[again] < _NONE)]
    return place, rank


class _Table:
    """Values of distinct keys from 0 on, many looked up at a time: a hash table with open addressing.

    At most an eighth of it is full, so that most keys are found at once; a binary search takes ten times as long.
    """

    def __init__(self, keys: Numbers, values: NDArray[np.int32], default: int) -> None:
        """All other keys have the value `default`."""
        bits = max(1, (8 * len(keys)).bit_length())
        self._shift = np.uint64(64 - bits)
        # No key is moved beyond its slot so often that it would need more room than this.
        self._keys = np.full(2**bits + len(keys), -1, dtype=np.int64)
        self._values = np.full(len(self._keys), default, dtype=np.int32)
        slots = self._slots(keys)
        waiting = np.arange(len(keys))
        while len(waiting):
            free = waiting[self._keys[slots[waiting]] < 0]
            self._keys[slots[free]] = keys[free]  # of several keys for a slot the last one has it
            waiting = waiting[self._keys[slots[waiting]] != keys[waiting]]
            slots[waiting] += 1
        self._values[slots] = values

    def __getitem__(self, keys: Numbers) -> NDArray[np.int32]:
        slots = self._slots(keys)
        found = self._keys[slots]
        missed = np.flatnonzero((found != keys) & (found >= 0))
        while len(missed):
            slots[missed] += 1
            found = self._keys[slots[missed]]
            missed = missed[(found != keys[missed]) & (found >= 0)]
        return self._values[slots]

    def _slots(self, keys: Numbers) -> Numbers:
        """Where each key should be: the first bits of its product with 2^64 divided by the golden ratio."""
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> self._shift).astype(np.int64)


class _Pieces:
    """The bytes of each id."""

    def __init__(self, tokenizer: LearnedTokenizer) -> None:
        pieces = [tokenizer.bytes_of(number) for number in range(tokenizer.size)]
        self._sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._content = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        numbers = {piece: number for number, piece in enumerate(pieces)}
        self.of_bytes = np.array([numbers[bytes([byte])] for byte in range(256)], dtype=np.int32)
        """The id of each byte."""

    def bounds(self, ids: NDArray[np.integer]) -> tuple[Numbers, Numbers]:
        """Where the bytes of each id begin, and how many they are."""
        return self._starts[ids], self._sizes[ids]

    def spell(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.uint8], Numbers]:
        """The bytes of all ids, one after the other, and how many each has."""
        starts, sizes = self.bounds(ids)
        return self._content[segments(starts, sizes)], sizes
