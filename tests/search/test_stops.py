"""Text from tokens as they come: cut before a stop string, and never shown before it is certain."""

from __future__ import annotations

from copy import deepcopy
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.search.stops import StopReader
from regard.text.tokenizer import Tokenizer, TokenizerSettings

TOKENIZER = Tokenizer.learn(["the dog runs", "two men talk"] * 3, TokenizerSettings(size=280))


def byte_by_byte(text: str) -> list[int]:
    """The ids of a text in which each byte is a token of its own."""
    ids = {TOKENIZER.bytes_of(number): number for number in range(4, 260)}
    return [ids[bytes([byte])] for byte in text.encode()]


def pieces(ids: list[int], *stops: str, prompt: str = "") -> tuple[list[str], bool]:
    """What is shown after each token and at the end, and whether a stop string came."""
    reader = StopReader(TOKENIZER, byte_by_byte(prompt), stops)
    return [*map(reader.push, ids), reader.finish()], reader.stopped


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """By looking at every beginning of the text: it ends where a stop string first is whole, the longest of those."""
    for end in range(len(text) + 1):
        whole = [stop for stop in stops if text[:end].endswith(stop)]
        if whole:
            return text[: end - max(map(len, whole))], True
    return text, False


@given(st.text("abé好", max_size=12), st.lists(st.text("abé好", min_size=1, max_size=4), max_size=3).map(tuple))
@example("aab", ("b", "ab"))
def test_text_ends_where_a_stop_string_is_first_whole(text: str, stops: tuple[str, ...]) -> None:
    expected, stopped = cut(text, stops)
    shown, found = pieces(byte_by_byte(text), *stops, prompt="x")
    assert ("".join(shown), found) == (expected, stopped)
    for so_far in accumulate(shown):  # nothing is ever taken back, and nothing of the stop string is ever seen
        assert expected.startswith(so_far)


@given(st.text("abé好", max_size=12), st.lists(st.text("abé好", min_size=1, max_size=4), max_size=3).map(tuple))
def test_the_borders_of_tokens_do_not_matter(text: str, stops: tuple[str, ...]) -> None:
    (ids,) = TOKENIZER.encode([text])
    one, other = pieces(ids, *stops), pieces(byte_by_byte(" " + text), *stops)
    assert ("".join(one[0]), one[1]) == ("".join(other[0]), other[1])


def test_of_several_stop_strings_in_one_token_the_first_counts() -> None:
    (token,) = (number for number in range(260, TOKENIZER.size) if TOKENIZER.bytes_of(number) == b" dog")
    for stops in (("g", "o"), ("o", "g"), ("og", "do")):
        expected = cut(" dog", stops)
        shown, stopped = pieces([token], *stops, prompt="x")
        assert ("".join(shown), stopped) == expected


def test_what_may_still_become_a_stop_string_is_held_back() -> None:
    shown, stopped = pieces(byte_by_byte("ab abab!"), "abc", "b!!", prompt="x")
    assert shown == ["", "", "ab ", "", "", "ab", "", "a", "b!"]
    assert not stopped


def test_a_character_is_shown_whole() -> None:
    assert pieces(byte_by_byte("é好"), prompt="x")[0] == ["", "é", "", "", "好", ""]
    assert pieces(byte_by_byte("é好")[:-1], prompt="x")[0] == ["", "é", "", "", "\ufffd"]


@pytest.mark.parametrize("prompt", ["", "the dog"])
def test_a_space_after_the_prompt_is_kept_and_one_before_a_whole_text_is_none(prompt: str) -> None:
    (ids,) = TOKENIZER.encode(["runs"])
    assert "".join(pieces(ids, prompt=prompt)[0]) == (" runs" if prompt else "runs")


@given(st.text("abé好", max_size=8), st.text("abé好", max_size=8), st.text("abé好", max_size=8))
def test_a_copy_goes_on_by_itself_from_the_same_place(before: str, one: str, other: str) -> None:
    reader = StopReader(TOKENIZER, byte_by_byte("x"), ("ab", "好é"))
    shown = "".join(map(reader.push, byte_by_byte(before)))
    copy = reader.copy()
    for each, text in ((copy, one), (reader, other)):
        rest = "".join(map(each.push, byte_by_byte(text))) + each.finish()
        assert (shown + rest, each.stopped) == cut(before + text, ("ab", "好é"))
    assert deepcopy(TOKENIZER) is TOKENIZER


def test_nothing_follows_a_stop_string() -> None:
    shown, stopped = pieces(byte_by_byte("a.bcd"), ".", prompt="x")
    assert (shown, stopped) == (["a", "", "", "", "", ""], True)
