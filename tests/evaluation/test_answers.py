"""Exact matches and edit rates, by values counted by hand."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.answers import edits
from regard.evaluation.metrics import MetricSettings, compare, corpus_scores

BOTH = MetricSettings(metrics=("exact", "edit"))


def scores(hypotheses: list[str], *references: list[str], **settings: object) -> list[float]:
    found = corpus_scores(hypotheses, references, BOTH.model_copy(update=settings))
    assert [score.name for score in found] == ["exact", "edit"]
    return [round(score.value, 6) for score in found]


def test_lines_that_are_right_and_tokens_that_are_not() -> None:
    """K AH Z is right; of AO R S one phone is replaced and one is missing: 2 edits over 3 + 3 phones."""
    assert scores(["K AH Z", "AH R"], ["K AH Z", "AO R S"]) == [50.0, round(200 / 6, 6)]


def test_the_nearest_reference_counts_and_an_empty_one_is_none() -> None:
    """The second word has two references; of the first, the second reference is absent."""
    assert scores(["a", "a b"], ["a", "a b c d"], ["", "a b"]) == [100.0, 0.0]
    assert scores(["", "x"], ["a", "a b"], ["", ""]) == [0.0, 100.0]


def test_white_space_and_case() -> None:
    assert scores([" K  AH Z "], ["K AH Z"]) == [100.0, 0.0]
    assert scores(["k ah z"], ["K AH Z"]) == [0.0, 100.0]
    assert scores(["k ah z"], ["K AH Z"], lowercase=True) == [100.0, 0.0]


def test_more_edits_than_tokens_are_above_a_hundred() -> None:
    assert scores(["a b c d"], ["a"]) == [0.0, 300.0]


def test_signatures_say_how_many_references_and_the_case() -> None:
    (exact, _) = corpus_scores(["a"], [["a"], ["b"]], BOTH)
    assert "nrefs:2" in exact.signature
    assert "case:mixed" in exact.signature


def test_two_systems_are_compared() -> None:
    references = ["a b"] * 40
    better = ["a b"] * 38 + ["a"] * 2
    worse = ["a b"] * 10 + ["a"] * 30
    exact, edit = compare(better, worse, [references], BOTH, samples=200)
    assert (exact.value, exact.other) == (95.0, 25.0)
    assert (edit.value, edit.other) == (2.5, 37.5)
    assert exact.p_value < 0.01
    assert edit.p_value < 0.01


WORDS = st.lists(st.sampled_from("ab"), max_size=5)


@given(WORDS, WORDS)
def test_edits_are_those_of_the_definition(first: list[str], second: list[str]) -> None:
    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = distance(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(same, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    assert edits(first, second) == distance(len(first), len(second))


@pytest.mark.parametrize(("words", "others", "count"), [("kitten", "sitting", 3), ("", "abc", 3), ("flaw", "lawn", 2)])
def test_published_examples(words: str, others: str, count: int) -> None:
    assert edits(words, others) == count
