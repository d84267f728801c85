"""Text to an Arrow file of ids, and the data set that maps it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import encoding
from regard.data.arrow import id_type
from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.data.learn import tag_sources
from regard.errors import JobError, UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

PAIRS = [("a dog runs", "ein Hund läuft"), ("two cats", "zwei Katzen"), ("42 \u2028 dogs", "42\u00a0Hunde 😀")]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three lines, so that a few lines take all paths."""
    monkeypatch.setattr(encoding, "CHUNK_ROWS", 3)


def decoded(dataset: PairDataset, tokenizers: TokenizerPair) -> list[tuple[str, str]]:
    pairs = [dataset.pair(i) for i in range(len(dataset))]
    sources = tokenizers.source.decode([source.tolist() for source, _ in pairs])
    targets = tokenizers.target.decode([target.tolist() for _, target in pairs])
    return list(zip(sources, targets, strict=True))


def test_the_text_comes_back(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "pairs.arrow"
    report = binarise(PAIRS, tokenizers, path)
    dataset = PairDataset.open(path, tokenizers)
    assert decoded(dataset, tokenizers) == PAIRS
    assert dataset.source_lengths.tolist() == [len(ids) for ids in tokenizers.source.encode([s for s, _ in PAIRS])]
    assert dataset.target_lengths.tolist() == [len(ids) for ids in tokenizers.target.encode([t for _, t in PAIRS])]
    assert dataset.source_lengths.dtype == dataset.target_lengths.dtype == np.int32
    assert (report.read, report.kept, report.skipped) == (3, 3, {})
    assert report.source_tokens == dataset.source_lengths.sum()
    assert report.target_tokens == dataset.target_lengths.sum()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_tag_stands_before_each_source(
    tmp_path: Path, tokenizers: TokenizerPair, small_chunks: None, processes: int
) -> None:
    tagged, path = tag_sources(tokenizers, ["bt"]), tmp_path / "pairs.arrow"
    pairs = [*PAIRS, ("", "leer"), ("a dog runs", "1234567")]
    longest = max(map(len, tokenizers.source.encode([source for source, _ in PAIRS])))
    report = binarise(pairs, tagged, path, processes=processes, max_length=longest, tag="bt")
    assert {reason: each.count for reason, each in report.skipped.items()} == {
        f"source longer than {longest} tokens": 1,
        "empty source": 1,
    }
    dataset = PairDataset.open(path, tagged)
    kept = decoded(dataset, tagged)
    assert set(PAIRS) - set(kept) == {PAIRS[2]}
    for index, (source, _) in enumerate(kept):
        assert dataset.pair(index)[0].tolist() == [tokenizers.source.size, *tokenizers.source.encode([source])[0]]


def test_any_arrow_reader_opens_the_file(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "pairs.arrow"
    binarise(PAIRS, tokenizers, path)
    table = pa.ipc.open_file(path).read_all()
    table.validate(full=True)
    assert table.schema.field("source").type.value_type == pa.uint16()
    assert table.column("target").to_pylist() == tokenizers.target.encode([target for _, target in PAIRS])
    assert table.schema.metadata[b"source_tokenizer"].decode() == tokenizers.source.fingerprint


@pytest.mark.parametrize(("size", "kind"), [(65_536, pa.uint16()), (65_537, pa.uint32())])
def test_ids_are_as_narrow_as_the_vocabulary_allows(size: int, kind: pa.DataType) -> None:
    assert id_type(size) == kind


def test_pairs_that_cannot_be_used_are_skipped_and_reported(
    tmp_path: Path, tokenizers: TokenizerPair, small_chunks: None
) -> None:
    pairs = [
        PAIRS[0],
        ("", "leer"),
        PAIRS[1],
        ("9" * 50, "long"),  # second chunk
        ("blank", " \u00a0"),
        ("9" * 60, "longer"),
        ("empty", ""),  # third chunk
        PAIRS[2],
    ]
    path = tmp_path / "pairs.arrow"
    report = binarise(pairs, tokenizers, path, max_length=50)
    assert decoded(PairDataset.open(path), tokenizers) == PAIRS
    assert (report.read, report.kept) == (8, 3)
    assert {reason: (skipped.count, skipped.first_line) for reason, skipped in report.skipped.items()} == {
        "empty source": (1, 2),
        "source longer than 50 tokens": (2, 4),
        "empty target": (2, 5),
    }
    assert "skipped 2: source longer than 50 tokens (first in line 4)" in str(report)


def test_a_pair_of_exactly_the_longest_length_is_kept(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "pairs.arrow"
    assert binarise([("1" * 9, "2" * 9)], tokenizers, path, max_length=10).kept == 1
    assert PairDataset.open(path).source_lengths.tolist() == [10]


def test_no_usable_pair_is_an_error_and_leaves_no_file(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    with pytest.raises(UserError, match=r"no pair to train on .*empty source \(first in line 1\)"):
        binarise([("", "x")], tokenizers, tmp_path / "pairs.arrow")
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_processes_does_not_change_the_file(tmp_path: Path, small_chunks: None) -> None:
    two = TokenizerPair(
        Tokenizer.learn(["a dog runs"] * 3, TokenizerSettings(size=265)),
        Tokenizer.learn(["ein Hund läuft"] * 3, TokenizerSettings(size=270)),
    )
    pairs = [(f"dog {i}" if i % 7 else "", f"Hund {i * i}") for i in range(40)]
    told: list[int] = []
    reports = [
        binarise(pairs, two, tmp_path / f"{processes}.arrow", processes=processes, progress=told.append)
        for processes in (1, 2)
    ]
    assert reports[0] == reports[1]
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()
    assert told == 2 * [*range(3, 40, 3), 40]


def test_a_mistake_in_the_input_ends_the_workers_and_leaves_no_file(
    tmp_path: Path, tokenizers: TokenizerPair, small_chunks: None
) -> None:
    def broken() -> Iterator[tuple[str, str]]:
        yield from PAIRS * 10
        raise UserError("a.en, line 31: not UTF-8")

    with pytest.raises(UserError, match="line 31"):
        binarise(broken(), tokenizers, tmp_path / "pairs.arrow", processes=2)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_is_one_sentence(
    tmp_path: Path, tokenizers: TokenizerPair, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_start_worker", os.abort)
    with pytest.raises(JobError, match="worker process of the binarisation died"):
        binarise(PAIRS * 10, tokenizers, tmp_path / "pairs.arrow", processes=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_sentence(tokenizers: TokenizerPair) -> None:
    with pytest.raises(JobError, match=r"^/dev/full: could not be written"):
        binarise(PAIRS, tokenizers, Path("/dev/full"))


def test_another_tokenizer_is_refused(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "pairs.arrow"
    binarise(PAIRS, tokenizers, path)
    other = Tokenizer.learn(["something else entirely"] * 2, TokenizerSettings(size=270))
    for pair, side in (
        (TokenizerPair(other, tokenizers.target), "source"),
        (TokenizerPair(tokenizers.source, other), "target"),
    ):
        with pytest.raises(UserError, match=rf"pairs\.arrow: was made with another {side} tokenizer"):
            PairDataset.open(path, pair)


def test_every_truncation_is_refused(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path, half = tmp_path / "pairs.arrow", tmp_path / "half.arrow"
    binarise(PAIRS, tokenizers, path)
    content = path.read_bytes()
    for size in range(0, len(content), 13):
        half.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"half\.arrow: not a complete Arrow file"):
            PairDataset.open(half, tokenizers)


@given(st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, tokenizers: TokenizerPair, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    binarise(PAIRS, tokenizers, folder / "pairs.arrow")
    content = bytearray((folder / "pairs.arrow").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "damaged.arrow").write_bytes(content)
    try:
        dataset = PairDataset.open(folder / "damaged.arrow")
    except UserError:
        return
    for index in range(len(dataset)):
        source, target = dataset.pair(index)
        assert len(source) == dataset.source_lengths[index]
        assert len(target) == dataset.target_lengths[index]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "not of binarised pairs"),
        ({"format": "regard.pairs", "version": "99"}, "format version 99, this regard reads 1"),
    ],
)
def test_foreign_and_later_files_are_refused(tmp_path: Path, metadata: dict[str, str], message: str) -> None:
    path = tmp_path / "other.arrow"
    table = pa.table({"source": [[1]], "target": [[2]]}).replace_schema_metadata(metadata)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=message):
        PairDataset.open(path)


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"just text, long enough to hold a magic number\n")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "text"):
        with pytest.raises(UserError, match=str(path)):
            PairDataset.open(path)


def test_a_pickled_data_set_maps_the_file_again(tmp_path: Path, tokenizers: TokenizerPair, small_chunks: None) -> None:
    path = tmp_path / "pairs.arrow"
    binarise(PAIRS * 1000, tokenizers, path, processes=1)
    dataset = PairDataset.open(path, tokenizers)
    frozen = pickle.dumps(dataset)
    assert len(frozen) < len(pickle.dumps(tokenizers)) + 1000
    assert decoded(pickle.loads(frozen), tokenizers) == PAIRS * 1000


def test_pairs_are_views_that_cannot_be_written_to(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "pairs.arrow"
    binarise(PAIRS, tokenizers, path)
    dataset = PairDataset.open(path)
    source, _ = dataset.pair(0)
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 5
    for index in (-1, 3):
        with pytest.raises(IndexError):
            dataset.pair(index)
