"""Texts of any length: in order, whole, with their white space; what went wrong is searched for again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import count, islice, product
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.model.store import Languages
from regard.pipelines.passages import Passages, best_together
from regard.search.beam import length_penalty
from regard.search.engine import NOTHING, Candidate, Translation
from regard.search.settings import SearchSettings
from regard.search.trouble import Mended, Trouble
from regard.search.windows import windows
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

EN_DE = Languages(source="en", target="de")
LETTERS = str.maketrans(ascii_lowercase + ascii_uppercase, ascii_uppercase[1:] + "A" + ascii_lowercase[1:] + "a")


def other(text: str) -> str:
    """The same in another language, where each letter is the next one."""
    return text.translate(LETTERS)


LINE = "a small dog runs. two men talk!"
TOKENIZER = Tokenizer.learn([LINE, other(LINE)] * 3, TokenizerSettings(size=302))
PAIR = TokenizerPair(TOKENIZER, TOKENIZER)


def said(text: str, finished: bool = True) -> Candidate:
    return Candidate(tuple(TOKENIZER.encode([text])[0]), -1.0, -0.5, finished, text)


class Stub:
    """Translates by `other`, except what it has another answer for; remembers what it was given."""

    def __init__(self, answers: dict[str, Candidate] | None = None, window: int = 4) -> None:
        self.answers, self.window = answers or {}, window
        self.given: list[list[str]] = []

    def __call__(
        self, texts: Iterable[str], settings: SearchSettings, *, patience: float | None = None, name: str = "input"
    ) -> Iterator[Translation]:
        for window in windows(texts, self.window, patience):
            self.given.append(window)
            for text in window:
                mended = settings.no_repeat > 0 or settings.min_tokens > 0
                answer = None if mended else self.answers.get(text)
                yield Translation((answer or said(other(text)),)) if text.strip() else NOTHING


def run(search: Stub, texts: Iterable[str], languages: Languages = EN_DE, **options: Any) -> list[Mended]:
    reads, writes = options.pop("reads", 300), options.pop("writes", 300)
    passages = Passages(search, PAIR, SearchSettings.parse(options, "test"), reads, writes, languages)
    return list(passages.translate(texts))


def test_a_text_that_fits_goes_as_it_is():
    search = Stub()
    texts = ["a dog runs. two men talk.", "  two spaces", ""]
    assert [each.best.text for each in run(search, texts, Languages())] == [
        other("a dog runs. two men talk."),
        other("  two spaces"),
        "",
    ]
    assert search.given == [texts]


def test_white_space_around_a_text_is_kept_and_not_translated():
    search = Stub()
    (found,) = run(search, ["\ufeff\ta dog \r"])
    assert found.best.text == "\ufeff\t" + other("a dog") + " \r"
    assert search.given == [["a dog"]]


def test_no_model_for_translation_is_given_a_line_break():
    for text in ("a dog\n\ntwo men", "a dog\u2028two men"):
        search, as_it_is = Stub(), Stub()
        assert run(search, [text])[0].best.text == other(text)
        assert search.given == [["a dog", "two men"]]
        run(as_it_is, [text], Languages())
        assert as_it_is.given == [[text]]


LONG = "A dog runs.  Two men talk!\n\n---\n\tWhy? " + "a small dog, " * 20


@pytest.mark.parametrize("languages", [EN_DE, Languages()])
def test_a_text_that_does_not_fit_is_translated_in_pieces_and_nothing_is_lost(languages: Languages):
    search = Stub()
    (found,) = run(search, [LONG], languages, reads=20)
    assert found.best.text == other(LONG)
    assert not found.shortened
    assert found.trouble is None
    pieces = [piece for window in search.given for piece in window]
    assert pieces[:2] == ["A dog runs.", "Two men talk!"]
    assert all(len(TOKENIZER.encode([piece])[0]) <= 20 for piece in pieces)
    assert ("---" in pieces) is (languages is not EN_DE)


@pytest.mark.parametrize(
    ("options", "languages", "split"),
    [
        ({}, EN_DE, True),
        ({"writes": 100}, Languages(), False),
        ({"writes": 100, "split_tokens": 400}, EN_DE, False),
        ({"split_tokens": 400}, EN_DE, False),
        ({"split_tokens": 100}, Languages(), True),
        ({"split_tokens": 400, "reads": 250}, EN_DE, True),
        ({"split": "never", "reads": 100}, EN_DE, False),
        ({"split": "always"}, Languages(), True),
    ],
)
def test_what_is_long(options: dict[str, Any], languages: Languages, split: bool):
    text = ("a dog runs. " * 70).strip()
    assert 256 < len(TOKENIZER.encode([text])[0]) < 400
    search = Stub(window=100)
    run(search, [text], languages, **{"reads": 1000, **options})
    assert (search.given == [[text]]) is not split


def test_white_space_and_marks_alone_ask_no_model_however_long():
    search = Stub()
    long = "!? " * 500
    found = run(search, [long, "\u200b", " \u3000"], reads=10)
    assert [each.best.text for each in found] == [long, "", ""]
    assert search.given == [[""] * 3]


@given(
    texts=st.lists(st.text(st.sampled_from("ab. !\n,\u3000我。-"), max_size=60), max_size=12),
    split=st.sampled_from(["long", "always"]),
    window=st.integers(1, 9),
    reach=st.integers(4, 40),
)
def test_order_and_content_of_any_texts(texts: list[str], split: str, window: int, reach: int):
    found = run(Stub(window=window), texts, split=split, reads=reach, retry=False)
    joined = ["".join(each.best.text.split()) for each in found]
    assert joined == ["".join(other(text).split()) for text in texts]


def test_joined_numbers_are_those_of_the_pieces():
    answers = {"Two men talk!": Candidate((7, 8, 9), -3.0, -1.0, False, "Zwei")}
    (found,) = run(Stub(answers), ["A dog runs. Two men talk!"], split="always", retry=False)
    dog = said(other("A dog runs."))
    assert found.best.ids == (*dog.ids, 7, 8, 9)
    assert found.best.log_probability == -4.0
    assert found.best.score == pytest.approx(-4.0 / length_penalty(len(dog.ids) + 1 + 3, 0.6))
    assert not found.best.finished
    assert found.best.text == other("A dog runs.") + " Zwei"


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(-9, 0)), min_size=1, max_size=4), max_size=4), st.data())
def test_the_best_ways_are_those_of_all(numbers: list[list[tuple[bool, int]]], data: st.DataObject):
    most = data.draw(st.integers(1, 6))
    found = [
        Translation(tuple(Candidate((), 0.0, float(score), finished, "") for finished, score in each))
        for each in numbers
    ]

    def rank(way: Iterable[Candidate]) -> tuple[int, float]:
        chosen = list(way)
        return -sum(not each.finished for each in chosen), sum(each.score for each in chosen)

    ways = best_together(found, most)
    every = sorted(map(rank, product(*(each.candidates for each in found))), reverse=True)
    assert [rank(way) for way in ways] == every[:most]


def test_a_book_of_sentences_is_joined():
    found = [Translation((said("a"), said("b")))] * 200_000
    one, other = best_together(found, 2)
    assert len(one) == len(other) == 200_000


LOOP = Candidate((7,) * 9, -1.0, -1.0, True, "die die die")


def test_trouble_is_mended_once_for_all_that_was_taken_in(caplog: pytest.LogCaptureFixture):
    search = Stub({"a dog": LOOP, "a cat": LOOP, "an owl": said("")}, window=10)
    with caplog.at_level(logging.WARNING, "regard"):
        found = run(search, ["a dog", "two men", "a cat", "an owl"])
    assert [each.best.text for each in found] == [other("a dog"), other("two men"), other("a cat"), other("an owl")]
    assert [each.remedy is None for each in found] == [False, True, False, False]
    assert search.given[1:] == [["an owl"], ["a dog", "a cat"]]
    assert caplog.records == []


def test_without_retry_nothing_is_searched_for_again():
    search = Stub({"a dog": LOOP})
    (found,) = run(search, ["a dog"], retry=False)
    assert (found.best, found.trouble, found.remedy) == (LOOP, None, None)
    assert search.given == [["a dog"]]


def test_what_stays_in_trouble_is_named_by_its_line(caplog: pytest.LogCaptureFixture):
    class Stubborn(Stub):
        def __call__(self, texts: Iterable[str], settings: SearchSettings, **options: Any) -> Iterator[Translation]:
            return super().__call__(texts, SearchSettings(), **options)

    with caplog.at_level(logging.WARNING, "regard"):
        found = run(Stubborn({"a dog": LOOP}), ["A man. A cat. An owl.", "a dog"], split="always")
    assert found[1].trouble is Trouble.LOOP
    assert [record.getMessage() for record in caplog.records] == ["input, line 2: its translation repeats itself"]


TWO = "a dog runs. two men talk!"


@pytest.mark.parametrize("first", [LOOP, said(other("a dog runs.")), said(other("a dog"), finished=False)])
def test_several_sentences_in_trouble_go_one_by_one(first: Candidate):
    search = Stub({TWO: first})
    (found,) = run(search, [TWO])
    assert (found.best.text, found.remedy) == (other(TWO), "sentence by sentence")
    assert search.given == [[TWO], ["a dog runs.", "two men talk!"]]


def test_a_sentence_of_several_may_need_a_remedy_of_its_own():
    search = Stub({TWO: LOOP, "two men talk!": LOOP})
    (found,) = run(search, [TWO])
    assert found.best.text == other(TWO)
    assert found.remedy == "sentence by sentence; no three tokens twice"
    assert search.given[-1] == ["two men talk!"]


@pytest.mark.parametrize(
    ("answer", "languages", "lost"),
    [
        (other("a dog runs, two men talk"), EN_DE, False),
        (other("a dog."), EN_DE, True),
        (other("a dog."), Languages(), False),  # a summary may well be shorter
    ],
)
def test_sentences_are_missing_where_there_are_fewer_and_the_output_is_short(
    answer: str, languages: Languages, lost: bool
):
    (found,) = run(Stub({TWO: said(answer)}), [TWO], languages)
    assert (found.remedy == "sentence by sentence") is lost


def test_the_whole_is_kept_where_its_sentences_are_worse():
    class Empty(Stub):
        def __call__(self, texts: Iterable[str], settings: SearchSettings, **options: Any) -> Iterator[Translation]:
            given = list(texts)
            return iter([Translation((said((other("a dog") if text == TWO else "")),)) for text in given])

    (found,) = run(Empty(), [TWO])
    assert (found.best.text, found.trouble) == (other("a dog"), Trouble.LOST)


def test_half_a_surrogate_pair_is_named_by_its_line(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "regard"):
        found = run(Stub(), [other("a. b. c."), "a \ud83d dog"], split="always")
    assert found[1].best.text == other("a \ufffd dog")
    assert [record.getMessage() for record in caplog.records] == [
        "input, line 2: holds half of a surrogate pair, which is no character; read as U+FFFD"
    ]


def test_an_endless_stream_is_read_a_window_ahead_only():
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in count():
            read += 1
            yield f"{number}. a dog runs." if number % 3 else "a dog"

    search = Stub({"a dog": LOOP}, window=8)
    passages = Passages(search, PAIR, SearchSettings(), 300, 300, EN_DE)
    found = list(islice(passages.translate(endless()), 100))
    assert [each.best.text for each in found[:3]] == [other("a dog"), other("1. a dog runs."), other("2. a dog runs.")]
    assert read <= 100 + 2 * 8


def test_a_line_typed_is_answered_before_the_next_even_if_it_is_mended():
    typed: list[str] = []
    answers = iter(Passages(Stub({"a dog": LOOP}), PAIR, SearchSettings(), 300, 300, EN_DE).translate(
        (typed.append(text) or text for text in ["a dog", "two men"]), patience=0.01
    ))  # fmt: skip
    assert next(answers).best.text == other("a dog")
    assert next(answers).best.text == other("two men")


def test_an_error_of_the_input_comes_after_what_came_before_it():
    def broken() -> Iterator[str]:
        yield from ["a dog", "two men"]
        raise OSError("gone")

    answers = Passages(Stub({"a dog": LOOP}), PAIR, SearchSettings(), 300, 300, EN_DE).translate(broken())
    assert [next(answers).best.text, next(answers).best.text] == [other("a dog"), other("two men")]
    with pytest.raises(OSError, match="gone"):
        next(answers)
