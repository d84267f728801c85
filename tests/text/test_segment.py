"""Sentences and what stands between them: nothing is lost, nothing is too long, no character is torn apart."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.segment import Passage, primary, split, visible

LANGUAGES = st.sampled_from([None, "en", "de", "zh", "hi", "el", "xx", "", "pt-BR", "zh_Hans", "zho_Hant"])
TRICKY = st.text(
    st.sampled_from("aÄ我 .!?,;\"'()«»。、，\n\r\t\x85\u2028\u200b\u200d\u0301\ufe0f👩🇩🇪🏽1-…•"), max_size=80
)
ANY = st.one_of(TRICKY, st.text(st.characters(exclude_categories=["Cs"]), max_size=80))


@given(text=ANY, language=LANGUAGES)
def test_sentences_and_gaps_are_the_text(text: str, language: str | None):
    passage = split(text, language)
    assert passage.join(passage.pieces) == text
    assert len(passage.gaps) == len(passage.pieces) + 1
    for piece in passage.pieces:
        assert visible(piece)
        assert piece == piece.strip()
    for gap in passage.gaps:
        assert not (visible(gap) if language is None else any(map(str.isalnum, gap)))


@given(text=ANY, language=LANGUAGES, most=st.integers(1, 12))
def test_every_piece_fits_and_nothing_is_lost(text: str, language: str | None, most: int):
    passage = split(text, language, lambda piece: len(piece) <= most)
    assert passage.join(passage.pieces) == text
    assert all(len(piece) <= most for piece in passage.pieces)


@given(st.text(st.sampled_from("a .!?\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), max_size=60))
def test_a_line_break_always_ends_a_sentence(text: str):
    for piece in split(text, "en").pieces:
        assert len(piece.splitlines()) == 1


@pytest.mark.parametrize(
    ("language", "text", "pieces", "gaps"),
    [
        ("en", "  Ask Dr. Brown.  Now!\n\nWhy?\t", ["Ask Dr. Brown.", "Now!", "Why?"], ["  ", "  ", "\n\n", "\t"]),
        ("de", "Am 3. Mai kam z. B. Dr. Ott. Er ging.", ["Am 3. Mai kam z. B. Dr. Ott.", "Er ging."], ["", " ", ""]),
        ("de-AT", "Am 3. Mai kam er. Gut.", ["Am 3. Mai kam er.", "Gut."], ["", " ", ""]),
        ("zh", "我很好。你呢？好！", ["我很好。", "你呢？", "好！"], ["", "", "", ""]),
        ("hi", "नमस्ते। कैसे हैं?", ["नमस्ते।", "कैसे हैं?"], ["", " ", ""]),
        (None, "one line\r\nanother", ["one line", "another"], ["", "\r\n", ""]),
        (None, "a\u200b. \u200b\nb", ["a\u200b.", "b"], ["", " \u200b\n", ""]),
        (None, "\ufeffYes.\u200b\u200f", ["Yes."], ["\ufeff", "\u200b\u200f"]),
        (None, "Yes.\n---\nNo.", ["Yes.", "---", "No."], ["", "\n", "\n", ""]),
        ("en", "Yes.\n---\nNo.\n😀", ["Yes.", "No."], ["", "\n---\n", "\n😀"]),
        ("en", "", [], [""]),
        ("en", " \u3000\u200b\n", [], [" \u3000\u200b\n"]),
    ],
)  # fmt: skip
def test_sentences_of_known_text(language: str | None, text: str, pieces: list[str], gaps: list[str]):
    assert split(text, language) == Passage(tuple(pieces), tuple(gaps))


def test_a_long_sentence_is_cut_after_a_clause_or_else_between_words():
    clauses = "he came to the town, saw all of its people and at once left them"
    assert split(clauses, "en", lambda text: len(text) <= 60).pieces == (
        "he came to the town,",
        "saw all of its people and at once left them",
    )
    words = split("one two three four five six", "en", lambda text: len(text) <= 14)
    assert words.pieces == ("one two three", "four five six")
    chinese = split("他来到这个城市，看见了所有的人", "zh", lambda text: len(text) <= 10)
    assert chinese.pieces == ("他来到这个城市，", "看见了所有的人")


def test_without_a_better_place_it_is_cut_between_whole_characters():
    families = "👨\u200d👩\u200d👧\u200d👦" * 30
    pieces = split(families, None, lambda text: len(text) <= 20).pieces
    assert "".join(pieces) == families
    assert all(re.fullmatch("(👨\u200d👩\u200d👧\u200d👦)+", piece) for piece in pieces)
    flags = split("🇩🇪🇫🇷🇯🇵" * 9, None, lambda text: len(text) <= 7).pieces
    assert all(re.fullmatch("(🇩🇪|🇫🇷|🇯🇵)+", piece) for piece in flags)
    accents = unicodedata.normalize("NFD", "éàü" * 20)
    assert all(
        unicodedata.combining(piece[0]) == 0 for piece in split(accents, None, lambda text: len(text) < 9).pieces
    )
    waves = split("👋🏽" * 30, None, lambda text: len(text) <= 4).pieces
    assert all(len(piece) % 2 == 0 for piece in waves)


def test_a_character_of_more_than_fits_is_cut_as_a_last_resort():
    piled = "a" + "\u0301" * 40
    assert all(len(piece) <= 8 for piece in split(piled, None, lambda text: len(text) <= 8).pieces)
    assert split("我", None, lambda text: False).pieces == ("我",)


def test_long_texts_are_looked_at_a_few_times_only():
    seen = 0

    def fits(text: str) -> bool:
        nonlocal seen
        seen += len(text)
        return len(text) <= 100

    for text in ("x" * 100_000, "no end, " * 12_500, "\u0301" * 100_000):
        seen = 0
        passage = split(text, None, fits)
        assert passage.join(passage.pieces) == text
        assert seen < 100_000 * 40


@pytest.mark.parametrize(
    ("source", "pieces", "language", "expected"),
    [
        ("How are you? Fine.", ["你好吗？", "很好。"], "zh", "你好吗？很好。"),
        ("How are you? Fine.", ["你好吗？", "很好。"], None, "你好吗？很好。"),
        ("How are you? Fine.", ["你好吗？", "很好。"], "zh_Hans", "你好吗？很好。"),
        ("How are you?  Fine.", ["你好吗？", "很好。"], "zh", "你好吗？  很好。"),
        ("How are you?\nFine.", ["你好吗？", "很好。"], "ja", "你好吗？\n很好。"),
        ("See Bonn. See Ulm.", ["Bonn.", "Ulm."], "zh", "Bonn. Ulm."),
        ("How are you? Fine.", ["你好吗？", "很好。"], "en", "你好吗？ 很好。"),
        ("你好吗？很好。", ["How are you?", "Fine."], "en", "How are you? Fine."),
        ("你好吗？很好。", ["How are you?", "Fine."], None, "How are you? Fine."),
        ("你好吗？很好。", ["元気？", "はい。"], "ja", "元気？はい。"),
        ("How are you? Fine.", ["Wie geht es dir?", ""], "de", "Wie geht es dir? "),
        (" Yes. \n No. ", ["Ja.", "Nein."], "de", " Ja. \n Nein. "),
    ],
)
def test_translations_are_joined_as_their_language_is_written(
    source: str, pieces: list[str], language: str | None, expected: str
):
    assert split(source).join_translated(pieces, language) == expected


def test_parts_of_a_word_are_joined_without_a_space():
    word = "x" * 40
    passage = split(word, None, lambda text: len(text) <= 10)
    assert passage.join_translated([piece.upper() for piece in passage.pieces], "en") == word.upper()


def test_codes_of_languages_without_script_and_region():
    assert [primary(code) for code in ("de", "pt-BR", "zh_Hant_TW", "EN", "")] == ["de", "pt", "zh", "en", ""]
