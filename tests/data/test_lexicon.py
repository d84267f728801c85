from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import lexicon
from regard.data.lexicon import Lexicon, learn_lexicon

# the house = das haus, the book = das buch, a book = ein buch
THE, HOUSE, BOOK, A = range(4)
DAS, HAUS, BUCH, EIN = range(4)
SOURCES = [np.array(ids) for ids in ([THE, HOUSE], [THE, BOOK], [A, BOOK])]
TARGETS = [np.array(ids) for ids in ([DAS, HAUS], [DAS, BUCH], [EIN, BUCH])]


def t(found: Lexicon, target: int, source: int) -> float:
    return float(found.probability(np.array([source * found.target_size + target]))[0])


@pytest.fixture
def model_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """No diagonal and no empty word: what is left is Model 1."""
    monkeypatch.setattr(lexicon, "TENSION", 0.0)
    monkeypatch.setattr(lexicon, "EMPTY", 0.0)


def test_two_iterations_of_model_1_by_hand(model_1: None) -> None:
    # At first all is alike, and each target token counts a half for both source tokens of its pair:
    # "the" counts das 1/2 + 1/2, haus 1/2, buch 1/2.
    first = learn_lexicon(SOURCES, TARGETS, 4, 4, iterations=1)
    assert [t(first, target, THE) for target in (DAS, HAUS, BUCH, EIN)] == pytest.approx([1 / 2, 1 / 4, 1 / 4, 0])
    assert [t(first, target, HOUSE) for target in (DAS, HAUS, BUCH, EIN)] == pytest.approx([1 / 2, 1 / 2, 0, 0])
    # Then das in "the house" is of "the" by (1/2) / (1/2 + 1/2), and in "the book", where book says das by 1/4, by
    # (1/2) / (1/2 + 1/4) = 2/3. haus is of "the" by (1/4) / (1/4 + 1/2) = 1/3, buch by (1/4) / (1/4 + 1/2) = 1/3.
    das, haus, buch = 1 / 2 + 2 / 3, 1 / 3, 1 / 3
    total = das + haus + buch
    second = learn_lexicon(SOURCES, TARGETS, 4, 4, iterations=2)
    expected = [das / total, haus / total, buch / total, 0]
    assert [t(second, target, THE) for target in (DAS, HAUS, BUCH, EIN)] == pytest.approx(expected)


def test_the_likelihood_before_the_first_iteration_is_that_of_chance(model_1: None) -> None:
    found = learn_lexicon(SOURCES, TARGETS, 4, 4, iterations=3)
    assert found.log_likelihoods[0] == pytest.approx(6 * math.log(1 / 4))
    assert len(found.log_likelihoods) == 3


def test_one_iteration_with_diagonal_and_empty_word_by_hand() -> None:
    # One pair of two tokens each. Target token 1 of 2: |1/2 - 1/2| = 0 and |2/2 - 1/2| = 1/2.
    near, far = 1.0, math.exp(-lexicon.TENSION / 2)
    share = (1 - lexicon.EMPTY) / (near + far)
    found = learn_lexicon(SOURCES[:1], TARGETS[:1], 4, 4, iterations=1)
    assert t(found, DAS, THE) == pytest.approx(near * share / (near * share + far * share), rel=1e-6)
    assert t(found, DAS, HOUSE) == pytest.approx(far / (near + far), rel=1e-6)
    assert t(found, DAS, 4) == pytest.approx(1 / 2)
    assert found.frequencies.tolist() == pytest.approx([1, 1, 0, 0])


def test_many_iterations_find_the_dictionary() -> None:
    found = learn_lexicon(SOURCES * 5, TARGETS * 5, 4, 4, iterations=30)
    for source, target in ((THE, DAS), (HOUSE, HAUS), (BOOK, BUCH), (A, EIN)):
        assert t(found, target, source) > 0.9
    aligned = found.align([np.array([BOOK, THE])], [np.array([DAS, BUCH])])
    assert [each.tolist() for each in aligned] == [[1, 0]]


def test_what_never_stood_together_stands_for_nothing() -> None:
    found = learn_lexicon(SOURCES, TARGETS, 4, 5)
    assert t(found, EIN, HOUSE) == 0.0
    assert [each.tolist() for each in found.align([np.array([HOUSE])], [np.array([4, HAUS])])] == [[-1, 0]]


words = st.lists(st.integers(0, 7), min_size=1, max_size=6)
corpora = st.lists(st.tuples(words, words), min_size=1, max_size=12)


@given(corpora)
def test_the_likelihood_never_falls_and_each_source_has_a_distribution(
    corpus: list[tuple[list[int], list[int]]],
) -> None:
    sources, targets = ([np.array(pair[side]) for pair in corpus] for side in (0, 1))
    found = learn_lexicon(sources, targets, 8, 8, iterations=6)
    assert all(later >= sooner - 1e-6 for sooner, later in pairwise(found.log_likelihoods))
    sums = np.bincount(found.keys // 8, found.probabilities)
    assert sums[np.unique(found.keys // 8)] == pytest.approx(1.0)
    assert found.frequencies == pytest.approx(np.bincount(np.concatenate(targets), minlength=8))


@given(corpora)
def test_alignments_are_those_of_a_plain_loop(corpus: list[tuple[list[int], list[int]]]) -> None:
    sources, targets = ([np.array(pair[side]) for pair in corpus] for side in (0, 1))
    found = learn_lexicon(sources, targets, 8, 8, iterations=2)
    for source, target, aligned in zip(sources, targets, found.align(sources, targets), strict=True):
        for j, place in enumerate(aligned, start=1):
            near = [
                math.exp(-lexicon.TENSION * abs(i / len(source) - j / len(target))) for i in range(1, len(source) + 1)
            ]
            weights = [
                (1 - lexicon.EMPTY) * each / sum(near) * t(found, target[j - 1], number)
                for each, number in zip(near, source, strict=True)
            ]
            weights.append(lexicon.EMPTY * t(found, target[j - 1], 8))
            best = len(source) if place == -1 else place
            assert weights[best] == pytest.approx(max(weights))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn_lexicon(SOURCES * 4, TARGETS * 4, 4, 4)
    monkeypatch.setattr(lexicon, "BLOCK", 5)
    divided = learn_lexicon(SOURCES * 4, TARGETS * 4, 4, 4)
    assert (whole.keys == divided.keys).all()
    assert whole.probabilities == pytest.approx(divided.probabilities)


def test_of_a_large_corpus_a_sample_is_enough() -> None:
    said: list[str] = []
    found = learn_lexicon(SOURCES * 10, TARGETS * 10, 4, 4, most_links=40, say=said.append)
    assert found.frequencies.sum() == pytest.approx(20)  # 10 of 30 pairs, of 4 links and 2 target tokens each
    assert "from 10 pairs (a sample of 30)" in said[0]
