"""BPE-dropout: against the algorithm of the paper written out, against known probabilities, and at its two ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.subword_dropout import SubwordDropout, _Table, segments
from regard.text.tokenizer import Tokenizer, TokenizerSettings

TEXT = [
    "the lowest of the lower towers, the newest of the widest: don't l'homme 1984 (well-known)",
    "low lower lowest new newer newest wide wider widest wow banana bananas ananas",
    "天气很好我们去公园散步吧 天气很好 我们去公园",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXT * 3, TokenizerSettings(size=400))


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    rows = tokenizer.encode(list(texts))
    return np.array([i for row in rows for i in row], np.uint16), np.array([len(row) for row in rows])


def sampled(tokenizer: Tokenizer, texts: Sequence[str], rate: float, seed: int = 0) -> list[tuple[bytes, ...]]:
    """The pieces of each word of the texts, segmented anew."""
    dropout = SubwordDropout(tokenizer)
    ids, lengths = encoded(tokenizer, texts)
    begins = dropout.borders().begins(ids, lengths)
    values, sizes = dropout.sample(ids, begins, rate, np.random.default_rng(seed))
    assert sizes.sum() == len(values)
    assert values.dtype == ids.dtype
    pieces = [tokenizer.bytes_of(number) for number in values.tolist()]
    ends = np.cumsum(sizes).tolist()
    return [tuple(pieces[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]


def as_in_the_paper(
    word: bytes, ranks: dict[tuple[bytes, bytes], int], dropped: Callable[[], bool]
) -> tuple[bytes, ...]:
    """Algorithm 1, a merge at a time."""
    split = [word[place : place + 1] for place in range(len(word))]
    while True:
        merges = [(ranks[pair], place) for place, pair in enumerate(pairwise(split)) if pair in ranks]
        merges = [merge for merge in merges if not dropped()]
        if not merges:
            return tuple(split)
        _, place = min(merges)
        split[place : place + 2] = [split[place] + split[place + 1]]


def ranks_of(tokenizer: Tokenizer) -> dict[tuple[bytes, bytes], int]:
    numbers = tokenizer.document["model"]["vocab"]
    return {
        tuple(tokenizer.bytes_of(numbers[piece]) for piece in pair): rank
        for rank, pair in enumerate(tokenizer.document["model"]["merges"])
    }


def probabilities(word: bytes, ranks: dict[tuple[bytes, bytes], int], rate: float) -> dict[tuple[bytes, ...], float]:
    """Of each segmentation of a word, computed from those of the segmentations a merge before."""
    start = tuple(word[place : place + 1] for place in range(len(word)))
    reached: Counter[tuple[bytes, ...]] = Counter({start: 1.0})
    ended: Counter[tuple[bytes, ...]] = Counter()
    while reached:
        following: Counter[tuple[bytes, ...]] = Counter()
        for split, share in reached.items():
            pairs = pairwise(split)
            merges = sorted((ranks[pair], place) for place, pair in enumerate(pairs) if pair in ranks)
            for better, (_, place) in enumerate(merges):
                joined = (*split[:place], split[place] + split[place + 1], *split[place + 2 :])
                following[joined] += share * rate**better * (1 - rate)
            ended[split] += share * rate ** len(merges)
        reached = following
    return ended


def chi_square(counts: Counter[tuple[bytes, ...]], expected: dict[tuple[bytes, ...], float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; what is expected less than 5 times is taken together."""
    total = sum(counts.values())
    assert counts.keys() <= expected.keys()
    common = [split for split, share in expected.items() if share * total >= 5]
    pairs = [(counts[split], expected[split] * total) for split in common]
    seen, due = total - sum(pair[0] for pair in pairs), total - sum(pair[1] for pair in pairs)
    pairs += [(seen, due)] if due >= 5 else []
    return sum((seen - due) ** 2 / due for seen, due in pairs), len(pairs) - 1


WORDS = ["widest", "lower", "bananas", "天气很好", "don't"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_each_segmentation_comes_as_often_as_the_paper_says(tokenizer: Tokenizer, word: str, rate: float) -> None:
    many = 4000
    counts = Counter(sampled(tokenizer, [word] * many, rate, seed=7))
    spelled = f" {word}".encode()
    ranks = ranks_of(tokenizer)
    expected = probabilities(spelled, ranks, rate)
    assert sum(expected.values()) == pytest.approx(1)
    statistic, freedom = chi_square(counts, expected)
    assert freedom >= 2
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 4
    # The same counts are far from what a slightly different rate would give.
    other = probabilities(spelled, ranks, rate + 0.05)
    statistic, freedom = chi_square(counts, other)
    assert statistic > freedom + 4 * (2 * freedom) ** 0.5 + 4


def test_the_written_out_algorithm_has_these_probabilities_too(tokenizer: Tokenizer) -> None:
    random = np.random.default_rng(3)
    ranks = ranks_of(tokenizer)
    counts = Counter(as_in_the_paper(b" lowest", ranks, lambda: bool(random.random() < 0.3)) for _ in range(4000))
    statistic, freedom = chi_square(counts, probabilities(b" lowest", ranks, 0.3))
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 4


def test_a_word_of_one_merge_is_split_as_often_as_the_rate_says() -> None:
    tokenizer = Tokenizer.learn(["a"] * 3, TokenizerSettings(size=261))  # " a" is its only piece of two bytes
    words = sampled(tokenizer, ["a"] * 10_000, 0.1)
    split = words.count((b" ", b"a"))
    assert words.count((b" a",)) == 10_000 - split
    assert abs(split - 1000) < 4 * (10_000 * 0.1 * 0.9) ** 0.5


texts = st.lists(
    st.text(st.sampled_from("lowestnwidrba'’- ,.19天气很好\n\t\x1c\xa0\u2028é\u0301"), min_size=1, max_size=80),
    min_size=1,
    max_size=6,
)


@given(texts=texts)
def test_nothing_left_out_gives_the_tokenizer_s_own_ids(tokenizer: Tokenizer, texts: list[str]) -> None:
    dropout = SubwordDropout(tokenizer)
    ids, lengths = encoded(tokenizer, texts)
    begins = dropout.borders().begins(ids, lengths)
    values, sizes = dropout.sample(ids, begins, 0.0, np.random.default_rng(0))
    assert values.tolist() == ids.tolist()
    firsts = np.flatnonzero(begins)
    assert sizes.tolist() == np.diff(firsts, append=len(ids)).tolist()
    # Joined from bytes, too, when the draw says that nothing is left out.
    spelled, _ = dropout._pieces.spell(ids)
    word_bytes = np.add.reduceat(dropout._pieces.bounds(ids)[1], firsts)
    order = np.argsort(word_bytes, kind="stable")
    starts = np.cumsum(word_bytes) - word_bytes
    sorted_bytes = dropout._pieces.of_bytes[spelled[segments(starts[order], word_bytes[order])]]
    undropped = np.full(len(order), 10_000)
    joined, joined_sizes = dropout._join(sorted_bytes, word_bytes[order], undropped, 0.5, np.random.default_rng(0))
    assert joined_sizes.tolist() == sizes[order].tolist()
    assert joined.tolist() == ids[segments(firsts[order], sizes[order])].tolist()


@given(texts=texts, rate=st.floats(0.001, 1), seed=st.integers(0, 99))
def test_whatever_is_left_out_the_text_is_the_same(
    tokenizer: Tokenizer, texts: list[str], rate: float, seed: int
) -> None:
    words = sampled(tokenizer, texts, rate, seed)
    assert b"".join(b"".join(word) for word in words) == b"".join(f" {text}".encode() for text in texts)
    assert sampled(tokenizer, texts, rate, seed) == words


@given(texts=texts)
def test_words_begin_where_the_tokenizer_cuts_them(tokenizer: Tokenizer, texts: list[str]) -> None:
    ids, lengths = encoded(tokenizer, texts)
    begins = SubwordDropout(tokenizer).borders().begins(ids, lengths)
    expected = []
    for encoding in tokenizer._backend.encode_batch(texts, add_special_tokens=False):
        words = encoding.word_ids
        expected += [place == 0 or words[place] != words[place - 1] for place in range(len(words))]
    assert begins.tolist() == expected


def test_a_vocabulary_of_bytes_has_nothing_to_leave_out() -> None:
    tokenizer = Tokenizer.learn(["abc"], TokenizerSettings(size=260))
    assert sampled(tokenizer, ["abc a"], 0.5) == [(b" ", b"a", b"b", b"c"), (b" ", b"a")]


def test_pairs_are_found_in_a_table_however_crowded() -> None:
    random = np.random.default_rng(0)
    keys = random.permutation(5000)[:700].astype(np.int64)
    table = _Table(keys, np.arange(700, dtype=np.int32), -1)
    values = dict(zip(keys.tolist(), range(700), strict=True))
    assert table[np.arange(5000)].tolist() == [values.get(key, -1) for key in range(5000)]
    crowded = _Crowded(keys[:40], np.arange(40, dtype=np.int32), -1)
    assert crowded[keys[:50]].tolist() == [*range(40), *[-1] * 10]


class _Crowded(_Table):
    """Every key should be in the same place."""

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return np.full(len(keys), 511)


def test_everything_left_out_gives_bytes(tokenizer: Tokenizer) -> None:
    for word in sampled(tokenizer, TEXT, 1.0):
        assert {len(piece) for piece in word} == {1}


def test_occurrences_of_a_word_are_segmented_independently(tokenizer: Tokenizer) -> None:
    """Neighbours are alike as often as any two are."""
    words = sampled(tokenizer, ["widest"] * 4000, 0.3, seed=5)
    shares = [count / 4000 for count in Counter(words).values()]
    alike = sum(share**2 for share in shares)
    same = sum(first == second for first, second in zip(words[::2], words[1::2], strict=True))
    assert abs(same - 2000 * alike) < 4 * (2000 * alike * (1 - alike)) ** 0.5


def test_ids_without_text_and_empty_input_stay(tokenizer: Tokenizer) -> None:
    dropout = SubwordDropout(tokenizer)
    ids, lengths = encoded(tokenizer, ["lower"])
    begins = dropout.borders().begins(np.insert(ids, 0, tokenizer.bos), lengths + 1)
    assert begins.tolist() == [True, True] + [False] * (len(ids) - 1)
    values, sizes = dropout.sample(np.insert(ids, 0, tokenizer.bos), begins, 1.0, np.random.default_rng(0))
    assert (values[0], len(values), sizes.tolist()) == (tokenizer.bos, 7, [1, 6])
    nothing = np.empty(0, np.uint16)
    assert dropout.borders().begins(nothing, np.array([0])).tolist() == []
    values, sizes = dropout.sample(nothing, nothing.astype(bool), 0.5, np.random.default_rng(0))
    assert (len(values), len(sizes)) == (0, 0)


def test_long_and_short_words_side_by_side(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many words are joined side by side is a matter of speed."""
    lines = ["天气很好我们去公园散步吧" * 5, "low", "widest " * 50]
    assert [b"".join(word) for word in sampled(tokenizer, lines, 0.4)] == [
        b"".join(word) for word in sampled(tokenizer, lines, 0.0)
    ]
    monkeypatch.setattr("regard.text.subword_dropout._BLOCK", 1)
    assert prod(map(len, sampled(tokenizer, ["low"], 1.0))) == 4
    words = sampled(tokenizer, lines, 0.4)
    assert b"".join(map(b"".join, words)) == b"".join(f" {line}".encode() for line in lines)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_other_kinds_are_refused(kind: str) -> None:
    tokenizer = Tokenizer.learn(TEXT, TokenizerSettings.parse({"kind": kind, "size": 300}, "test"))
    with pytest.raises(UserError, match="subword_dropout leaves out merges of byte pair encoding"):
        SubwordDropout(tokenizer)
