"""Scores of sacreBLEU against values computed by hand, their signatures, and significance."""

from __future__ import annotations

import math

import pytest

from regard.errors import UserError
from regard.evaluation.metrics import MetricSettings, compare, corpus_scores


def bleu(hypotheses: list[str], references: list[list[str]], **settings: object) -> float:
    (score,) = corpus_scores(hypotheses, references, MetricSettings.parse({"metrics": ["bleu"], **settings}, "test"))
    assert score.name == "BLEU"
    return score.value


def test_bleu_by_hand():
    # 1- to 4-grams that match: 5 of 6, 3 of 5, 2 of 4, 1 of 3; equal lengths, so no brevity penalty.
    value = bleu(["the cat sat on the mat"], [["the cat sat on a mat"]])
    assert value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, abs=1e-9)


def test_bleu_is_of_the_corpus_and_punishes_brevity():
    hypotheses, references = ["a b c d e", "a b c d"], ["a b c d e", "a b c d e f g"]
    # All n-grams match, but 9 words stand for 12: exp(1 - 12 / 9).
    assert bleu(hypotheses, [references]) == pytest.approx(100 * math.exp(1 - 12 / 9), abs=1e-9)


def test_the_better_of_several_references_counts():
    assert bleu(["a b c d"], [["w x y z"], ["a b c d"]]) == pytest.approx(100)


def test_chrf_by_hand():
    # Characters: 3 of 4 and 3 of 4; pairs: 2 of 3 and 2 of 3; triples 1 of 2; the one of four differs.
    (score,) = corpus_scores(["abcx"], [["abcd"]], MetricSettings(metrics=("chrf",)))
    assert score.name == "chrF2"
    assert score.value == pytest.approx(100 * (3 / 4 + 2 / 3 + 1 / 2 + 0) / 4, abs=1e-9)


def test_ter_by_hand():
    (score,) = corpus_scores(["a b c x"], [["a b c d e"]], MetricSettings(metrics=("ter",)))
    assert score.name == "TER"
    assert score.value == pytest.approx(100 * 2 / 5)


def test_signatures_name_every_choice():
    settings = MetricSettings(metrics=("bleu", "chrf", "ter"), tokenize="none", lowercase=True, chrf_word_order=2)
    scores = corpus_scores(["A b c d"], [["a b c d"], ["a b c e"]], settings)
    assert [score.name for score in scores] == ["BLEU", "chrF2++", "TER"]
    assert scores[0].signature.startswith("nrefs:2|case:lc|eff:no|tok:none|smooth:exp|version:")
    assert scores[1].signature.startswith("nrefs:2|case:lc|eff:yes|nc:6|nw:2|space:no|version:")
    assert scores[0].value == pytest.approx(100)
    plain = corpus_scores(["A b c d"], [["a b c d"]])
    assert [score.name for score in plain] == ["BLEU", "chrF2"]
    assert plain[0].signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert plain[0].value < 100


@pytest.mark.parametrize(
    ("language", "tokenization"),
    [(None, "13a"), ("de", "13a"), ("zh", "zh"), ("zh-Hans", "zh"), ("ZH_TW", "zh"), ("ja", "char"), ("th", "char")],
)
def test_words_are_cut_as_suits_the_language(language, tokenization):
    assert MetricSettings(language=language).tokenization == tokenization
    assert MetricSettings(language=language, tokenize="intl").tokenization == "intl"


def test_chinese_is_not_one_long_word():
    hypothesis, reference = ["今天天气很好。"], [["今天天气不好。"]]
    assert bleu(hypothesis, reference, language="zh") > 20
    assert bleu(hypothesis, reference) < 1


def test_significance():
    references = [f"sentence {n} has some words and number {n * n}" for n in range(60)]
    good = [text if n % 10 else text.replace("words", "word") for n, text in enumerate(references)]
    poor = [text.replace("some words", "a word") if n % 3 else text for n, text in enumerate(references)]
    first, again = (compare(good, poor, [references], samples=200) for _ in range(2))
    assert first == again
    assert [comparison.name for comparison in first] == ["BLEU", "chrF2"]
    for comparison, score, other in zip(
        first, corpus_scores(good, [references]), corpus_scores(poor, [references]), strict=True
    ):
        assert (comparison.value, comparison.other) == (pytest.approx(score.value), pytest.approx(other.value))
        assert comparison.p_value == pytest.approx(1 / 201)  # no resample as extreme: the smallest possible value
        assert 0 < comparison.interval < comparison.other_interval
        assert "bs:200|seed:12345|" in comparison.signature
    same = compare(good, good, [references], samples=200)
    assert [comparison.p_value for comparison in same] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], [["a", "b"]], "the translation has 1 and the reference has 2"),
        (["a", "b"], [["a", "b"], ["a"]], "reference 1 has 2 and reference 2 has 1"),
        ([], [[]], "nothing to score"),
        (["a"], [], "nothing to score"),
    ],
)
def test_numbers_of_lines_must_agree(hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        corpus_scores(hypotheses, references)


def test_numbers_of_lines_must_agree_with_the_other_system():
    with pytest.raises(UserError, match="the other translation has 1"):
        compare(["a", "b"], ["a"], [["a", "b"]])


@pytest.mark.parametrize("mark", ["\u2028", "\x0b", "\x85", "\r"])
def test_a_strange_line_end_inside_a_line_moves_nothing(mark):
    hypotheses = [f"one{mark}two three four five", "six seven eight nine"]
    assert bleu(hypotheses, [list(hypotheses)]) == pytest.approx(100)
