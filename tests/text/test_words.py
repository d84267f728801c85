from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.tokenizer import Tokenizer, TokenizerSettings
from regard.text.words import words, words_of_tokens


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs", "我 喜欢 狗", "你好"] * 4, TokenizerSettings(size=290))


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[start:end] for start, end in words(text, tokenizer.spans([text])[0])]


def test_words_stand_between_white_space(tokenizer: Tokenizer) -> None:
    assert cut(tokenizer, " a  dog,\truns. ") == ["a", "dog,", "runs."]
    assert cut(tokenizer, "") == cut(tokenizer, "  ") == []


def test_without_spaces_words_are_tokens() -> None:
    text, tokens = "我喜欢 dog狗 ok", [(0, 1), (1, 3), (3, 7), (7, 8), (8, 9), (9, 10), (10, 11)]
    assert [text[start:end] for start, end in words(text, tokens)] == ["我", "喜欢", "dog", "狗", "ok"]


def test_a_character_of_several_tokens_is_not_cut() -> None:
    text, tokens = "你好", [(0, 1), (0, 1), (0, 2), (1, 2), (1, 2)]
    assert [text[start:end] for start, end in words(text, tokens)] == ["你好"]
    assert [text[start:end] for start, end in words(text, [tokens[0], tokens[1], tokens[3]])] == ["你", "好"]


def test_tokens_know_their_words() -> None:
    text = "a dog, it runs"
    spans = [(0, 1), (2, 6), (7, 9), (10, 14)]
    assert words_of_tokens(text, spans, [(0, 1), (1, 4), (4, 6), (6, 7), (7, 12), (12, 14)]) == [
        [0],
        [1],
        [1],
        [],
        [2, 3],
        [3],
    ]


def test_the_space_before_a_text_stands_for_none_of_it() -> None:
    tokenizer = Tokenizer.learn(["a dog runs"] * 4, TokenizerSettings(size=270))
    assert tokenizer.pieces(tokenizer.encode(["Zoo"])[0]) == ["▁", "Z", "o", "o"]
    assert tokenizer.spans(["Zoo", " Zoo", ""]) == [
        [(0, 0), (0, 1), (1, 2), (2, 3)],
        [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)],
        [],
    ]


@given(st.text(max_size=20))
def test_words_hold_all_that_is_visible_and_tokens_find_them(text: str) -> None:
    tokenizer = Tokenizer.learn(["a dog runs"] * 4, TokenizerSettings(size=270))
    spans = tokenizer.spans([text])[0]
    assert len(spans) == len(tokenizer.encode([text])[0])
    found = words(text, spans)
    assert "".join(text[start:end] for start, end in found) == "".join(text.split())
    linked = {number for numbers in words_of_tokens(text, found, spans) for number in numbers}
    assert linked == set(range(len(found)))
