"""Reading, cleaning and measuring pairs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpus import CleaningReport, CleaningSettings, SeenPairs, clean, count_words, open_pairs
from regard.data.statistics import statistics
from regard.errors import UserError

PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze")]


def cleaned(pairs: list[tuple[str, str]], **settings: object) -> tuple[list[tuple[str, str]], CleaningReport]:
    report = CleaningReport()
    return list(clean(pairs, CleaningSettings(**settings), report)), report


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress], ids=["plain", "gzip"])
def test_two_files_and_one_file_of_two_columns_hold_the_same_pairs(tmp_path: Path, pack) -> None:
    source, target, both = tmp_path / "a.en", tmp_path / "a.de", tmp_path / "a.tsv"
    source.write_bytes(pack(b"a dog\na cat\n"))
    target.write_bytes(pack(b"ein Hund\neine Katze\n"))
    both.write_bytes(pack(b"a dog\tein Hund\na cat\teine Katze\n"))
    assert list(open_pairs(source, target)) == PAIRS
    assert list(open_pairs(both)) == PAIRS


def test_unequal_numbers_of_lines_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\n")
    with pytest.raises(UserError, match=r"a\.en has 3 lines and .*a\.de has 2"):
        list(open_pairs(tmp_path / "a.en", tmp_path / "a.de"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("  ", 0), ("a dog's  life", 3), ("Größe ist egal", 3), ("我喜欢茶", 4), ("USB 接口", 3), ("ทดสอบ", 5)],
)
def test_words_of_scripts_with_and_without_spaces(text: str, words: int) -> None:
    assert count_words(text) == words


def test_each_rule_drops_its_pairs_and_reports_the_first() -> None:
    long = "w " * 11
    pairs = [
        ("good", "gut"),
        ("", "leer"),
        (" ", "leer"),
        (long, long),
        ("one", "eins zwei drei vier"),
        ("same", "same"),
        ("good", "gut"),
        ("good ", "gut"),
    ]
    kept, report = cleaned(pairs, max_words=10, max_ratio=3, drop_identical=True)
    assert kept == [("good", "gut")]
    assert {reason: (dropped.count, dropped.line) for reason, dropped in report.dropped.items()} == {
        "empty side": (2, 2),
        "more than 10 words": (1, 4),
        "length ratio above 3": (1, 5),
        "source and target identical": (1, 6),
        "duplicate": (2, 7),
    }
    assert (report.read, report.kept, report.changed) == (8, 1, 0)
    assert report.dropped["length ratio above 3"].target == "eins zwei drei vier"


@pytest.mark.parametrize(("white_space", "kept"), [("keep", " a \u00a0b\t"), ("strip", "a \u00a0b"), ("fold", "a b")])
def test_white_space(white_space: str, kept: str) -> None:
    pairs, report = cleaned([(" a \u00a0b\t", "c")], white_space=white_space)
    assert pairs == [(kept, "c")]
    assert report.changed == (white_space != "keep")


def test_nothing_is_dropped_when_every_rule_is_off() -> None:
    pairs = [("", "x"), ("a", "a"), ("a", "a"), ("a", "b " * 100)]
    kept, report = cleaned(pairs, white_space="keep", drop_empty=False, deduplicate=False, max_ratio=1000)
    assert kept == pairs
    assert report.dropped == {}


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=40))
def test_every_pair_is_kept_or_counted(pairs: list[tuple[str, str]]) -> None:
    kept, report = cleaned(pairs, max_ratio=2)
    assert report.read == len(pairs)
    assert report.kept == len(kept) == len(set(kept))
    assert report.kept + sum(dropped.count for dropped in report.dropped.values()) == len(pairs)


def test_seen_pairs_is_a_set_that_tells_the_sides_apart() -> None:
    seen = SeenPairs()
    pairs = [(f"source {i % 3000}", f"target {i % 1500}") for i in range(6000)]  # grows the table twice
    assert sum(seen.add(*pair) for pair in pairs) == len(set(pairs)) == 3000
    assert seen.add("ab", "c")
    assert seen.add("a", "bc")
    assert not seen.add("ab", "c")


def test_statistics_of_a_corpus_counted_by_hand() -> None:
    pairs = [("a b", "c"), ("a b", "c"), ("", "c d e"), ("x", "x"), ("a", "\ufffd b c d")]
    measured = statistics(pairs)
    assert (measured.pairs, measured.empty, measured.identical) == (5, 1, 1)
    assert (measured.duplicates, measured.strange) == (1, 1)
    assert (measured.source.words, measured.target.words) == (6, 10)
    assert (measured.source.characters, measured.target.characters) == (8, 15)
    assert measured.target.lengths == {1: 3, 3: 1, 4: 1}
    assert measured.target.mean == 2.0
    assert [measured.target.percentile(percent) for percent in (0, 50, 60, 80, 100)] == [1, 1, 1, 3, 4]
    assert measured.target.longest == 4
    # ratios 1/2, 1/2, 1, 4; an edge belongs to the bin above it
    assert measured.ratios == (0, 0, 2, 0, 1, 0, 0, 0, 1)


def test_statistics_of_nothing() -> None:
    measured = statistics([])
    assert (measured.pairs, measured.source.mean, measured.source.longest) == (0, 0.0, 0)
