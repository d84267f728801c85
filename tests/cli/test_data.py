"""`regard data`: the steps of preparation, one after the other on small files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.cli.data import app
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.text.tokenizer import TokenizerPair

PAIRS = [
    ("a dog runs", "ein Hund läuft"),
    ("two cats sleep", "zwei Katzen schlafen"),
    ("a dog runs ", "ein Hund läuft"),
    ("", "niemand [b]"),
    ("a [b]dog[/b]", "ein Hund"),
]


def regard_data(*arguments: object) -> None:
    app([str(argument) for argument in arguments], result_action="return_value", exit_on_error=False)


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    source, target = tmp_path / "train.en.gz", tmp_path / "train.de"
    source.write_bytes(gzip.compress("".join(f"{source}\n" for source, _ in PAIRS).encode()))
    target.write_bytes("".join(f"{target}\n" for _, target in PAIRS).encode())
    return ["--source", source, "--target", target]


def test_clean_writes_what_is_left_and_says_what_is_not(
    tmp_path: Path, files: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    regard_data("clean", *files, "--out", tmp_path / "clean")
    assert (tmp_path / "clean" / "train.en").read_bytes() == b"a dog runs\ntwo cats sleep\na [b]dog[/b]\n"
    assert (tmp_path / "clean" / "train.de").read_text("utf-8").split("\n")[2] == "ein Hund"
    shown = capsys.readouterr().out
    assert "3 of 5 pairs kept" in shown
    rows = {row.split()[1]: row for row in shown.splitlines() if row.startswith(("│", "|"))}
    assert "niemand [b]" in rows["empty"]
    assert rows["duplicate"].split()[3:6:2] == ["1", "3"]


def test_clean_of_one_file_of_two_columns(tmp_path: Path) -> None:
    both = tmp_path / "train.tsv"
    both.write_bytes(b"one\teins\none\teins\ntwo\tzwei\n")
    regard_data("clean", "--source", both, "--out", tmp_path / "clean", "--no-deduplicate", "--max-words", "1")
    assert (tmp_path / "clean" / "train.tsv").read_bytes() == both.read_bytes()


def test_clean_does_not_overwrite_its_input(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n")
    (tmp_path / "b").write_bytes(b"y\n")
    with pytest.raises(UserError, match="would overwrite the input"):
        regard_data("clean", "--source", tmp_path / "a", "--target", tmp_path / "b", "--out", tmp_path)
    assert (tmp_path / "a").read_bytes() == b"x\n"


def test_clean_that_leaves_nothing_is_an_error(tmp_path: Path, files: list[object]) -> None:
    with pytest.raises(UserError, match=r"no pair of .* is left"):
        regard_data("clean", *files, "--out", tmp_path / "clean", "--min-words", "50")


def test_stats_draws_text(files: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    regard_data("stats", *files)
    shown = capsys.readouterr().out
    assert shown.startswith("5 pairs\n")
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "pairs", "have", "an", "empty", "side"] in lines
    assert ["0", "1"] in [line[:2] for line in lines]
    assert ["3", "3"] in [line[:2] for line in lines]
    assert ["4/5", "to", "5/4", "4"] in [line[:4] for line in lines]


@pytest.mark.parametrize("joint", [True, False])
def test_tokenizer_and_binarise(
    tmp_path: Path, files: list[object], capsys: pytest.CaptureFixture[str], joint: bool
) -> None:
    folder, out = tmp_path / "new" / "tokenizer", tmp_path / "train.arrow"
    regard_data("tokenizer", *files, "--out", folder, "--size", "265", "--joint" if joint else "--no-joint")
    regard_data("binarise", *files, "--tokenizer", folder, "--out", out)
    tokenizers = TokenizerPair.load(folder)
    assert tokenizers.joint == joint
    dataset = PairDataset.open(out, tokenizers)
    assert tokenizers.target.decode([dataset.pair(1)[1].tolist()]) == ["zwei Katzen schlafen"]
    assert "4 of 5 pairs" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--processes", "--max-length"])
def test_numbers_below_one_are_refused(tmp_path: Path, files: list[object], option: str) -> None:
    with pytest.raises(UserError, match=f"{option} 0"):
        regard_data("binarise", *files, "--tokenizer", tmp_path, "--out", tmp_path / "x", option, "0")
