"""Pairs that a model writes one side of: which pair each line gives, or why none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from regard.evaluation.metrics import SentenceScore
from regard.pipelines import Translator
from regard.pipelines.synthesis import back_translate, distill
from regard.search.engine import NOTHING, Candidate, Translation
from regard.search.settings import SamplingSettings


def said(*texts: str, finished: bool = True, shortened: bool = False) -> Translation:
    """Candidates, best first."""
    return Translation(tuple(Candidate((5,), -1.0, -1.0, finished, text) for text in texts), shortened)


class Stub(Translator):
    """Says what it was told, and remembers what it was asked."""

    def __init__(self, answers: dict[str, Translation]) -> None:
        self.answers, self.asked, self.options = answers, list[str](), dict[str, Any]()

    def stream(self, texts: Iterable[str], **options: Any) -> Iterator[Translation]:
        self.options = options
        for text in texts:
            self.asked.append(text)
            yield self.answers[text]


ANSWERS = {
    "Hund": said("dog"),
    "": NOTHING,
    "Katze": said("a\ncat"),
    "leer": said(" "),
    "endlos": said("and and and", finished=False),
    "lang": said("long", shortened=True),
}
REASONS = ["empty line", "empty translation", "translation without an end", "longer than the model can read"]


def test_back_translation_puts_what_was_made_first() -> None:
    translator, sampling = Stub(ANSWERS), SamplingSettings(seed=1)
    outcomes = list(back_translate(translator, iter(ANSWERS), sampling, nbest=1))
    assert outcomes == [("dog", "Hund"), REASONS[0], ("a cat", "Katze"), *REASONS[1:]]
    assert translator.asked == list(ANSWERS)
    assert translator.options == {"sampling": sampling, "patience": None, "nbest": 1}


def test_distillation_puts_it_second() -> None:
    outcomes = list(distill(Stub(ANSWERS), ((text, None) for text in ANSWERS)))
    assert outcomes == [("Hund", "dog"), REASONS[0], ("Katze", "a cat"), *REASONS[1:]]


def test_of_several_the_one_most_like_the_target_is_taken() -> None:
    answers = {"Hund": said("the cat sat there", "a dog sat there", "a dog sat here today")}
    pair = ("Hund", "a dog sat there now")
    assert list(distill(Stub(answers), [pair])) == [("Hund", "a dog sat there")]
    assert list(distill(Stub(answers), [("Hund", None)])) == [("Hund", "the cat sat there")]
    assert list(distill(Stub(answers), [("Hund", "nothing alike")])) == [("Hund", "the cat sat there")]


def test_only_whole_candidates_are_compared() -> None:
    unfinished = Candidate((5,), -2.0, -2.0, False, "a dog sat")
    answers = {"Hund": Translation((*said("dog").candidates, unfinished, *said(" ").candidates))}
    assert list(distill(Stub(answers), [("Hund", "a dog sat")])) == [("Hund", "dog")]


def test_inputs_are_read_as_they_are_needed() -> None:
    translator = Stub(ANSWERS)
    outcomes = back_translate(translator, iter(ANSWERS), None)
    next(outcomes)
    assert translator.asked == ["Hund"]


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_a_sentence_is_most_like_itself(name: Any) -> None:
    score = SentenceScore(name)
    assert score("two words", "two words") == pytest.approx(100)
    assert score("two words", "two words more") > score("two birds", "two words more") > 0


def test_sentences_without_spaces_are_cut_as_their_language_is() -> None:
    assert SentenceScore("bleu", "zh")("我喜欢狗", "我喜欢猫") > 40
    assert SentenceScore("bleu")("我喜欢狗", "我喜欢猫") == pytest.approx(0)
