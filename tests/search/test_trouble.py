"""Trouble is seen where it is and not where it is not; a remedy is kept where it helps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.search.engine import Candidate, Translation
from regard.search.settings import SearchSettings
from regard.search.trouble import REMEDIES, Mended, Mender, Trouble, copies, has_words, loops, repeats
from regard.text.tokenizer import TokenizerPair


def said(text: str, ids: Sequence[int] = (9,), log_probability: float = -1.0, finished: bool = True) -> Candidate:
    return Candidate(tuple(ids), log_probability, log_probability, finished, text)


def naive_repeats(items: Sequence[int], longest: int, turns: int) -> float:
    """By the definition: every beginning, every period, every number of items."""
    most = 1.0
    for start in range(len(items)):
        for period in range(1, longest + 1):
            for end in range(start + max(turns * period, 5), len(items) + 1):
                if all(items[place] == items[place - period] for place in range(start + period, end)):
                    most = max(most, (end - start) / period)
    return most


@given(st.lists(st.integers(0, 2), max_size=22), st.integers(1, 6), st.integers(2, 4))
def test_repeats_by_definition(items: list[int], longest: int, turns: int):
    assert repeats(items, longest, turns) == naive_repeats(items, longest, turns)


@given(
    before=st.lists(st.integers(0, 9), max_size=9),
    turn=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    times=st.integers(5, 40),
    after=st.lists(st.integers(0, 9), max_size=9),
)
def test_a_loop_is_found_wherever_it_stands(before: list[int], turn: list[int], times: int, after: list[int]):
    assert repeats([*before, *turn * times, *after]) >= times


@pytest.mark.parametrize(
    ("ids", "source", "loop"),
    [
        ([7] * 5, "a dog", True),
        ([7] * 4, "a dog", False),
        ([7, 8] * 3, "a dog", True),
        ([7, 8, 7, 8, 7], "a dog", False),
        ([5, 6, 7, 8] * 3, "a dog runs in a park", True),
        (list(range(50)) * 2, "a dog", False),
        (list(range(50)), "a dog", False),
        ([], "a dog", False),
        ([7] * 12, "ha ha ha ha ha ha ha ha ha ha ha ha", False),
        ([7] * 90, "ha ha ha ha ha ha ha ha ha ha ha ha", True),
        ([7] * 8, "1000000", False),
        ([7, 8] * 200, "word " * 200, False),
        ([5, 6, 7, 8] * 3, "A dog runs in a park. A dog runs in a park. A dog runs in a park.", False),
    ],
)
def test_a_loop_is_what_the_source_does_not_repeat_as_often(ids: list[int], source: str, loop: bool):
    assert loops(ids, source) is loop


@pytest.mark.parametrize(
    ("source", "output", "copy"),
    [
        ("two dogs play with a ball .", "two dogs play with a ball .", True),
        ("Two dogs play with a ball.", "two dogs play with a ball", True),
        ("two dogs play with a ball .", "zwei hunde spielen mit einem ball .", False),
        ("two dogs play with a ball .", "two dogs play with a balloon .", False),
        ("Angela Merkel", "Angela Merkel", False),
        ("Intel Core i7-9700K 3.60 GHz", "Intel Core i7-9700K 3.60 GHz", False),
        ("https://example.com/a/dog/runs/in/a/park", "https://example.com/a/dog/runs/in/a/park", False),
        ("see www.example.com", "see www.example.com", False),
        ("1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8", False),
        ("😀 😀 😀 😀 😀", "😀 😀 😀 😀 😀", False),
        ("我昨天在公园里看见了一只狗。", "我昨天在公园里看见了一只狗。", True),
        ("北京", "北京", False),
        ("כלב רץ בפארק עם כדור", "כלב רץ בפארק עם כדור", True),
    ],
)
def test_a_copy_says_what_had_to_be_translated(source: str, output: str, copy: bool):
    assert copies(source, output) is copy


class Scripted:
    """Answers to each text by what the settings are; remembers how often and for what it was asked."""

    def __init__(self, answers: dict[str, dict[str, list[Candidate]]]) -> None:
        self.answers, self.asked = answers, list[tuple[str, list[str]]]()

    def __call__(self, texts: list[str], settings: SearchSettings) -> list[Translation]:
        kind = f"no_repeat={settings.no_repeat}" if settings.no_repeat else f"min_tokens={settings.min_tokens}"
        self.asked.append((kind, texts))
        return [Translation(tuple(self.answers[text][kind][: settings.nbest])) for text in texts]


def mender(tokenizers: TokenizerPair, decode: Scripted, **options: int) -> Mender:
    return Mender(tokenizers, SearchSettings.parse({"beam": 2, **options}, "test"), decode, "en", "de")


def mended(tokenizers: TokenizerPair, decode: Scripted, first: dict[str, Candidate], **options: int) -> list[Mended]:
    asked = mender(tokenizers, decode, **options)
    return asked.mend(list(first), [asked.look(text, Translation((each,))) for text, each in first.items()])


LOOP = said("die die die die die die", [7] * 6)


def test_each_remedy_is_one_search_for_all_that_need_it(tokenizers: TokenizerPair):
    decode = Scripted(
        {
            "a dog": {"no_repeat=3": [said("ein Hund")]},
            "a cat": {"no_repeat=3": [LOOP], "no_repeat=2": [said("eine Katze")]},
            "an end": {"no_repeat=3": [said("ein Ende", finished=False)], "no_repeat=2": [said("ein Ende")]},
            "a word": {"min_tokens=1": [said("ein Wort")]},
        }
    )
    first = {
        "a dog": LOOP,
        "all is well": said("alles ist gut"),
        "a cat": LOOP,
        "an end": said("ein", finished=False),
        "a word": said("", []),
    }
    found = mended(tokenizers, decode, first)
    assert [each.best.text for each in found] == ["ein Hund", "alles ist gut", "eine Katze", "ein Ende", "ein Wort"]
    assert decode.asked == [
        ("min_tokens=1", ["a word"]),
        ("no_repeat=3", ["a dog", "a cat", "an end"]),
        ("no_repeat=2", ["a cat", "an end"]),
    ]
    assert [each.trouble for each in found] == [None] * 5
    assert [each.remedy for each in found] == [
        "no three tokens twice",
        None,
        "no two tokens twice",
        "no two tokens twice",
        "at least one token",
    ]


@pytest.mark.parametrize("text", ["dog", "我", "see https://a.b", "3 dogs", "我有3只狗。", "(a)"])
def test_words_beside_numbers_and_addresses(text: str):
    assert has_words(text)


def test_capitals_are_tried_in_lower_case_first(tokenizers: TokenizerPair):
    decode = Scripted({"a dog": {"min_tokens=0": [said("ein Hund")]}, "a cat": {"no_repeat=3": [said("eine Katze")]}})
    found = mended(tokenizers, decode, {"A DOG": LOOP, "a cat": LOOP})
    assert [(each.best.text, each.remedy) for each in found] == [
        ("ein Hund", "in lower case"),
        ("eine Katze", "no three tokens twice"),
    ]
    assert decode.asked == [("min_tokens=0", ["a dog"]), ("no_repeat=3", ["a cat"])]


def test_an_empty_output_that_turns_into_a_loop_is_mended_too(tokenizers: TokenizerPair):
    decode = Scripted({"a dog": {"min_tokens=1": [LOOP], "min_tokens=3": [LOOP], "no_repeat=3": [said("ein Hund")]}})
    (found,) = mended(tokenizers, decode, {"a dog": said("", [])})
    assert (found.best.text, found.remedy) == ("ein Hund", "no three tokens twice")


def test_without_a_remedy_that_helps_the_least_bad_is_kept(tokenizers: TokenizerPair):
    decode = Scripted(
        {
            "a dog": {"no_repeat=3": [said("ein Hund", finished=False)], "no_repeat=2": [LOOP]},
            "a cat": {"no_repeat=3": [said("")], "no_repeat=2": [said("")]},
            "a word": {"min_tokens=1": [said(" ")], "min_tokens=3": [said("\u200b")]},
        }
    )
    dog, cat, word = mended(tokenizers, decode, {"a dog": LOOP, "a cat": LOOP, "a word": said("", [])})
    assert (dog.best.text, dog.trouble, dog.remedy) == ("ein Hund", Trouble.UNFINISHED, "no three tokens twice")
    assert (cat.best, cat.trouble, cat.remedy) == (LOOP, Trouble.LOOP, None)
    assert (word.best.text, word.trouble) == ("", Trouble.EMPTY)


def test_candidates_without_trouble_come_first_and_as_many_as_asked_for(tokenizers: TokenizerPair):
    answers = [LOOP, said("ein Hund", finished=False), said("ein Hund"), said("Hund")]
    decode = Scripted({"a dog": {"no_repeat=3": answers}})
    (found,) = mended(tokenizers, decode, {"a dog": LOOP}, nbest=2)
    assert [each.text for each in found.candidates] == ["ein Hund", "Hund"]


SENTENCE = "two dogs play with a ball"


def test_a_copy_gives_way_to_something_else_that_is_likely(tokenizers: TokenizerPair):
    copy = said(SENTENCE, range(6), -0.7)
    near = said("two dogs play with a balloon", range(6), -0.8)
    other = said("zwei Hunde spielen mit einem Ball", range(6), -3.5)
    decode = Scripted({SENTENCE: {"min_tokens=0": [copy, near, other]}})
    (found,) = mended(tokenizers, decode, {SENTENCE: copy})
    assert (found.best, found.trouble, found.remedy) == (other, None, "anything but a copy")


def test_a_text_that_is_in_the_target_language_already_stays(tokenizers: TokenizerPair):
    copy = said(SENTENCE, range(6), -0.7)
    unlikely = said("vier graue Katzen liegen im Gras", range(6), -30.0)
    decode = Scripted({SENTENCE: {"min_tokens=0": [copy, unlikely]}})
    (found,) = mended(tokenizers, decode, {SENTENCE: copy})
    assert (found.best, found.trouble, found.remedy) == (copy, None, None)


@pytest.mark.parametrize(("source", "target"), [(None, None), ("en", None), ("en", "en-GB")])
def test_where_nothing_is_translated_a_copy_is_right(tokenizers: TokenizerPair, source: str | None, target: str | None):
    same = Mender(tokenizers, SearchSettings(), Scripted({}), source, target)
    assert same.trouble(SENTENCE, said(SENTENCE)) is None


@pytest.mark.parametrize(
    "text",
    [
        "12345",
        "😀 🎉",
        "(",
        "3.14 + 2 = ?",
        "https://a.b/c",
        "me@a.de",
        "1/3/1909, 2 p.m.",
        "550e8400-e29b-41d4",
        "#x_y",
    ],
)
def test_what_has_no_words_stays_as_it_is_if_it_comes_out_wrong(tokenizers: TokenizerPair, text: str):
    decode = Scripted({})
    (found,) = mended(tokenizers, decode, {text: LOOP})
    assert (found.best.text, found.best.finished, found.trouble, found.remedy) == (text, True, None, "unchanged")
    assert tokenizers.target.decode([list(found.best.ids)]) == [text]
    assert not has_words(text)
    assert decode.asked == []
    (fine,) = mended(tokenizers, decode, {text: said("anything")})
    assert fine.best.text == "anything"


def test_what_was_shortened_is_not_searched_for_again(tokenizers: TokenizerPair):
    found = Mended((LOOP,), shortened=True, trouble=Trouble.LOOP)
    assert mender(tokenizers, Scripted({})).mend(["a dog"], [found]) == [found]


@pytest.mark.parametrize(("source", "trouble"), [("a dog", Trouble.EMPTY), ("\u200b\x01", None)])
def test_nothing_visible_is_the_translation_of_nothing_visible(
    tokenizers: TokenizerPair, source: str, trouble: Trouble | None
):
    for text in ("", " ", "\u200b", "\x01\n"):
        assert mender(tokenizers, Scripted({})).trouble(source, said(text)) is trouble


def test_remedies_keep_the_rest_of_what_was_asked_for():
    settings = SearchSettings(beam=3, alpha=0.9, extra_tokens=7, batch_tokens=99)
    for remedy in REMEDIES:
        changed = remedy(settings)
        assert (changed.alpha, changed.extra_tokens, changed.batch_tokens) == (0.9, 7, 99)
        assert changed.beam == changed.nbest >= 4
        SearchSettings.parse(changed.model_dump(), "test")
        assert remedy.applies("A dog")
        assert remedy.applies("a dog") is (remedy.name != "in lower case")


def test_no_remedy_allows_what_was_excluded():
    """Searched for again, an output is no shorter than asked for, and repeats no more."""
    for least, turns in product((0, 2, 40), (0, 1, 2, 5)):
        for remedy in REMEDIES:
            changed = remedy(SearchSettings(min_tokens=least, no_repeat=turns))
            assert changed.min_tokens >= max(least, remedy.min_tokens)
            for asked in filter(None, (turns, remedy.no_repeat)):
                assert 0 < changed.no_repeat <= asked
