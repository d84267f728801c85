"""Pairs segmented anew in each epoch: what changes, what stays, and the batches that are made of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from regard.data.arrow import Chunk, Lists
from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.data.resampled import ResampledPairs, SubwordDropoutSettings
from regard.errors import UserError
from regard.text.extension import with_tags
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SOURCES = [f"the small dogs run {count} times over the wide meadow{'s' * (count % 3)}" for count in range(60)]
TARGETS = [f"die kleinen Hunde rennen {count} Mal über die weite Wiese, Wiese" for count in range(60)]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    source, target = (Tokenizer.learn(lines, TokenizerSettings(size=340)) for lines in (SOURCES, TARGETS))
    return TokenizerPair(source, target)


@pytest.fixture
def pairs(tmp_path: Path, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch) -> PairDataset:
    monkeypatch.setattr("regard.data.encoding.CHUNK_ROWS", 17)  # several record batches
    binarise(zip(SOURCES, TARGETS, strict=True), tokenizers, tmp_path / "pairs.arrow")
    return PairDataset.open(tmp_path / "pairs.arrow", tokenizers)


Rows = list[tuple[list[int], list[int]]]


def rows(pairs: PairDataset) -> Rows:
    return [(source.tolist(), target.tolist()) for source, target in map(pairs.pair, range(len(pairs)))]


def texts(tokenizers: TokenizerPair, found: Rows) -> list[tuple[str, str]]:
    sources, targets = zip(*found, strict=True)
    return list(zip(tokenizers.source.decode([*sources]), tokenizers.target.decode([*targets]), strict=True))


def resampled(pairs: PairDataset, source: float = 0.2, target: float = 0.2, **other: int) -> ResampledPairs:
    settings = SubwordDropoutSettings(source=source, target=target)
    return ResampledPairs(pairs, settings, **{"seed": 1, "longest": 400} | other)


def test_an_epoch_holds_the_same_text_in_other_pieces(pairs: PairDataset, tokenizers: TokenizerPair) -> None:
    found = rows(resampled(pairs).at(3))
    assert texts(tokenizers, found) == list(zip(SOURCES, TARGETS, strict=True))
    for side in (0, 1):
        changed = [new[side] != old[side] for new, old in zip(found, rows(pairs), strict=True)]
        assert sum(changed) > 55
        assert sum(len(row[side]) for row in found) > 1.1 * sum(len(row[side]) for row in rows(pairs))


def test_lengths_and_types_are_those_of_the_rows(pairs: PairDataset) -> None:
    epoch = resampled(pairs).at(0)
    assert epoch.source_lengths.tolist() == [len(source) for source, _ in rows(epoch)]
    assert epoch.target_lengths.tolist() == [len(target) for _, target in rows(epoch)]
    source, _ = epoch.pair(0)
    assert source.dtype == np.uint16
    assert not source.flags.writeable


def test_a_pure_function_of_seed_and_epoch(pairs: PairDataset) -> None:
    first = resampled(pairs)
    seen = {(seed, epoch): rows(resampled(pairs, seed=seed).at(epoch)) for seed in (1, 2) for epoch in (0, 1)}
    assert rows(first.at(1)) == seen[1, 1]
    assert rows(first.at(0)) == seen[1, 0]
    assert len({str(found) for found in seen.values()}) == 4


def test_the_sides_have_rates_of_their_own(pairs: PairDataset) -> None:
    sources, targets = zip(*rows(pairs), strict=True)
    only_source = resampled(pairs, target=0).at(0)
    assert [target for _, target in rows(only_source)] == list(targets)
    assert [source for source, _ in rows(only_source)] != list(sources)
    both = resampled(pairs).at(0)
    assert [source for source, _ in rows(both)] == [source for source, _ in rows(only_source)]


def test_the_sides_are_drawn_apart(pairs: PairDataset, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    same = TokenizerPair(tokenizers.source, tokenizers.source)
    binarise(zip(SOURCES, SOURCES, strict=True), same, tmp_path / "same.arrow")
    epoch = resampled(PairDataset.open(tmp_path / "same.arrow", same)).at(0)
    assert sum(source == target for source, target in rows(epoch)) < 10


def test_a_line_that_would_be_too_long_stays(pairs: PairDataset) -> None:
    before, free = rows(pairs), rows(resampled(pairs, 0.5, 0.5).at(0))
    bound = int(np.median([len(source) for source, _ in free]))
    assert bound > max(len(side) for row in before for side in row) - 10
    held = rows(resampled(pairs, 0.5, 0.5, longest=bound).at(0))
    for side in (0, 1):
        expected = [new[side] if len(new[side]) <= bound else old[side] for new, old in zip(free, before, strict=True)]
        assert [row[side] for row in held] == expected
    assert any(new[0] == old[0] for new, old in zip(held, before, strict=True))


def test_at_the_end_there_are_bytes(pairs: PairDataset) -> None:
    for (source, target), given in zip(
        rows(resampled(pairs, 1, 1).at(0)), zip(SOURCES, TARGETS, strict=True), strict=True
    ):
        assert (len(source), len(target)) == tuple(len(f" {text}".encode()) for text in given)


def test_pickled_and_back(pairs: PairDataset) -> None:
    made = resampled(pairs)
    for copy in (pickle.loads(pickle.dumps(made)).at(2), pickle.loads(pickle.dumps(made.at(2)))):
        assert rows(copy) == rows(made.at(2))


def test_joined_data_sets_remain_known_by_their_parts(pairs: PairDataset) -> None:
    both = PairDataset.joined([pairs, pairs])
    epoch = resampled(both).at(0)
    assert [len(part) for part in resampled(both).parts] == [60, 60]
    assert rows(epoch)[:60] != rows(epoch)[60:]
    assert resampled(pairs).parts == (pairs,)


def indices(batches: list[Batch]) -> list[tuple[int, ...]]:
    return [batch.indices for batch in batches]


@pytest.mark.parametrize("ranks", [1, 3])
def test_batches_are_planned_from_the_lengths_of_the_epoch(pairs: PairDataset, ranks: int) -> None:
    settings = BatchSettings(tokens=300)
    feeds = [Batches(resampled(pairs), settings, seed=1, rank=rank, ranks=ranks) for rank in range(ranks)]
    for epoch in (0, 1):
        own = resampled(pairs).at(epoch)
        made = [batch for feed in feeds for batch in feed.epoch(epoch)]
        assert sorted(index for batch in made for index in batch.indices) == list(range(60))
        assert {feed.count(epoch) for feed in feeds} == {len(made)}
        for batch in made:
            assert len(batch.indices) * max(batch.source_BS.shape[1], batch.target_out_BT.shape[1]) <= 300
            for row, index in enumerate(batch.indices):
                source, target = own.pair(index)
                assert batch.source_BS[row][batch.source_mask_BS[row]].tolist()[:-1] == source.tolist()
                assert batch.target_out_BT[row][batch.target_mask_BT[row]].tolist()[:-1] == target.tolist()
        real = sum(batch.source_tokens + batch.target_tokens for batch in made)
        positions = sum(batch.source_BS.numel() + batch.target_in_BT.numel() for batch in made)
        assert feeds[0].real_share(epoch).both == pytest.approx(real / positions)


def test_a_start_continues_the_epoch_and_validation_is_as_ever(pairs: PairDataset) -> None:
    settings = BatchSettings(tokens=300)
    whole = list(Batches(resampled(pairs), settings, seed=1).epoch(2))
    feed = Batches(resampled(pairs), settings, seed=1)
    feed.count(0)
    rest = list(feed.epoch(2, 2))
    assert [batch.target_in_BT.tolist() for batch in rest] == [batch.target_in_BT.tolist() for batch in whole[2:]]
    plain, own = Batches(pairs, settings).in_order(), feed.in_order()
    assert [batch.source_BS.tolist() for batch in own] == [batch.source_BS.tolist() for batch in plain]


def test_an_epoch_goes_on_while_another_is_counted(pairs: PairDataset) -> None:
    settings = BatchSettings(tokens=300)
    expected = [batch.source_BS.tolist() for batch in Batches(resampled(pairs), settings).epoch(0)]
    feed = Batches(resampled(pairs), settings)
    found = []
    for batch in feed.epoch(0):
        found.append(batch.source_BS.tolist())
        feed.count(1)
    assert found == expected


def test_one_number_is_for_both_sides() -> None:
    both = SubwordDropoutSettings(source=0.1, target=0.1)
    assert SubwordDropoutSettings.model_validate(0.1) == both
    assert SubwordDropoutSettings.model_validate(both.model_dump()) == both
    assert SubwordDropoutSettings() == SubwordDropoutSettings(source=0, target=0)
    with pytest.raises(UserError, match="source: input should be less than or equal to 1"):
        SubwordDropoutSettings.parse({"source": 1.5}, "recipe")


def test_ids_of_no_text_are_named(pairs: PairDataset, tokenizers: TokenizerPair) -> None:
    _, target = pairs.sides
    for strange in (5000, tokenizers.source.encode(["é"])[0][-1]):
        chunk = Chunk(np.array([0, 1], np.int32), np.array([strange], np.uint16))
        other = PairDataset(pairs.path, Lists(pairs.path, [chunk]), target, tokenizers)
        with pytest.raises(UserError, match=r"pairs\.arrow: not a complete Arrow file of pairs"):
            resampled(other)


def test_a_tag_stays_before_its_source(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    tagged = TokenizerPair(with_tags(tokenizers.source, ["bt"]), tokenizers.target)
    binarise(zip(SOURCES, TARGETS, strict=True), tagged, tmp_path / "tagged.arrow", tag="bt")
    found = rows(resampled(PairDataset.open(tmp_path / "tagged.arrow", tagged)).at(0))
    tag = tagged.source.tags["bt"]
    assert all(source[0] == tag and tag not in source[1:] for source, _ in found)
    assert texts(tagged, found) == list(zip(SOURCES, TARGETS, strict=True))


def test_without_tokenizers_there_is_nothing_to_segment_by(pairs: PairDataset) -> None:
    with pytest.raises(ValueError, match="opened without its tokenizers"):
        resampled(PairDataset.open(pairs.path))
