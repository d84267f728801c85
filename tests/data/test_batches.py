"""Batches: what is in them, in which order, and how the order continues."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.corpus import open_pairs
from regard.data.dataset import PairDataset
from regard.data.learn import learn_tokenizers
from regard.errors import UserError
from regard.text.tokenizer import TokenizerSettings

MakeDataset = Callable[[list[tuple[int, int]]], PairDataset]
PAD, BOS, EOS = 0, 1, 2
LENGTHS = [(1 + i * 7 % 11, 1 + i * 5 % 13) for i in range(200)]


def indices(batches: list[Batch]) -> list[tuple[int, ...]]:
    return [batch.indices for batch in batches]


def test_a_batch_holds_its_pairs_marked_and_padded(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([(2, 4), (3, 1)])
    (batch,) = Batches(dataset, BatchSettings(tokens=10)).epoch(0)
    (a, b), (c, d) = (([int(i) for i in side] for side in dataset.pair(index)) for index in batch.indices)
    if batch.indices == (1, 0):
        (a, b), (c, d) = (c, d), (a, b)
        batch = Batch(*(getattr(batch, name).flip(0) for name in TENSORS), (0, 1), 7, 7)
    assert batch.source_BS.tolist() == [[*a, EOS, PAD], [*c, EOS]]
    assert batch.target_in_BT.tolist() == [[BOS, *b], [BOS, *d, PAD, PAD, PAD]]
    assert batch.target_out_BT.tolist() == [[*b, EOS], [*d, EOS, PAD, PAD, PAD]]
    assert batch.source_mask_BS.tolist() == [[True] * 3 + [False], [True] * 4]
    assert batch.target_mask_BT.tolist() == [[True] * 5, [True] * 2 + [False] * 3]
    assert (batch.source_tokens, batch.target_tokens) == (7, 7)


TENSORS = ["source_BS", "source_mask_BS", "target_in_BT", "target_out_BT", "target_mask_BT"]


def test_types_and_devices(make_dataset: MakeDataset) -> None:
    (batch,) = Batches(make_dataset([(2, 4)]), BatchSettings()).epoch(0)
    assert [getattr(batch, name).dtype for name in TENSORS] == [
        torch.int64, torch.bool, torch.int64, torch.int64, torch.bool
    ]  # fmt: skip
    moved = batch.to("meta")
    assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
    assert (moved.indices, moved.source_tokens, moved.target_tokens) == (batch.indices, 3, 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40),
    tokens=st.integers(10, 60),
    most=st.none() | st.integers(1, 5),
    pool=st.integers(1, 50),
)
def test_each_pair_once_within_the_budget(
    make_dataset: MakeDataset, lengths: list[tuple[int, int]], tokens: int, most: int | None, pool: int
) -> None:
    dataset = make_dataset(lengths)
    batches = Batches(dataset, BatchSettings(tokens=tokens, max_sentences=most, pool=pool), seed=3)
    for made in (list(batches.epoch(0)), list(batches.epoch(1)), list(batches.in_order())):
        assert sorted(index for batch in made for index in batch.indices) == list(range(len(lengths)))
        for batch in made:
            assert len(batch.indices) * max(batch.source_BS.shape[1], batch.target_out_BT.shape[1]) <= tokens
            assert most is None or len(batch.indices) <= most
            assert batch.source_tokens == sum(lengths[i][0] + 1 for i in batch.indices)
            assert batch.target_tokens == int(batch.target_mask_BT.sum())
            assert torch.equal(batch.target_mask_BT, batch.target_out_BT != PAD)
            assert torch.equal(batch.target_mask_BT, batch.target_in_BT != PAD)
    share = batches.real_share(0)
    made = list(batches.epoch(0))
    assert batches.count(0) == len(made)
    real = [sum(batch.source_tokens for batch in made), sum(batch.target_tokens for batch in made)]
    padded = [sum(batch.source_BS.numel() for batch in made), sum(batch.target_in_BT.numel() for batch in made)]
    assert share == pytest.approx((sum(real) / sum(padded), real[0] / padded[0], real[1] / padded[1]))


def test_the_order_is_a_function_of_seed_and_epoch(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(LENGTHS)

    def order(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return indices(list(Batches(dataset, BatchSettings(tokens=100), seed=seed).epoch(epoch)))

    batches = Batches(dataset, BatchSettings(tokens=100), seed=1)
    list(batches.epoch(4))
    assert indices(list(batches.epoch(2))) == order(1, 2)
    assert len({str(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_pairs_of_equal_length_meet_others_in_each_epoch(make_dataset: MakeDataset) -> None:
    batches = Batches(make_dataset([(5, 5)] * 200), BatchSettings(tokens=60), seed=1)
    first, second = (set(map(frozenset, indices(list(batches.epoch(epoch))))) for epoch in (0, 1))
    assert not first & second


def test_batches_of_an_epoch_are_not_in_order_of_length(make_dataset: MakeDataset) -> None:
    made = list(Batches(make_dataset(LENGTHS), BatchSettings(tokens=100), seed=1).epoch(0))
    widths = [batch.target_in_BT.shape[1] for batch in made]
    assert widths != sorted(widths)
    assert widths != sorted(widths, reverse=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_start_continues_the_epoch(make_dataset: MakeDataset, ranks: int) -> None:
    dataset = make_dataset(LENGTHS)
    whole = indices(list(Batches(dataset, BatchSettings(tokens=60), seed=5).epoch(2)))
    for start in (0, 1, 7, len(whole) - 1, len(whole), len(whole) + 5):
        for rank in range(ranks):
            batches = Batches(dataset, BatchSettings(tokens=60), seed=5, rank=rank, ranks=ranks)
            expected = [whole[k] for k in range(start, len(whole)) if k % ranks == rank]
            assert indices(list(batches.epoch(2, start))) == expected


def test_a_start_does_not_build_what_it_skips(make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(make_dataset(LENGTHS), BatchSettings(tokens=60))
    built: list[object] = []
    build = batches._build
    monkeypatch.setattr(batches, "_build", lambda *chosen: built.append(chosen) or build(*chosen))
    next(batches.epoch(0, start=10))
    assert len(built) == 1


def test_validation_sees_every_pair_in_order_of_length_on_every_rank(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(LENGTHS)
    first = list(Batches(dataset, BatchSettings(tokens=60), rank=0, ranks=2).in_order())
    second = list(Batches(dataset, BatchSettings(tokens=60), seed=9, rank=1, ranks=2).in_order())
    assert indices(first) == indices(second)
    longest = [max(LENGTHS[i]) for batch in first for i in batch.indices]
    assert longest == sorted(longest)


def test_a_pair_above_the_budget_is_refused(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([(2, 3), (9, 3), (1, 10)])
    with pytest.raises(UserError, match=r"2 of 3 pairs exceed the budget of 8 tokens, the longest with 11; raise"):
        Batches(dataset, BatchSettings(tokens=8))
    assert Batches(dataset, BatchSettings(tokens=11)).count(0) == 3


def test_the_order_of_a_known_seed_stays(make_dataset: MakeDataset) -> None:
    """A change here breaks the resumption of runs that earlier versions began."""
    batches = Batches(make_dataset(LENGTHS[:20]), BatchSettings(tokens=40), seed=1)
    assert indices(list(batches.epoch(0)))[:3] == [(2, 15, 14), (1, 4, 12, 9), (5, 18)]


def _multi30k() -> Path:
    default = Path(__file__).parents[2].parent / "shared" / "data"
    return Path(os.environ.get("REGARD_DATA", default)) / "multi30k" / "raw"


@pytest.mark.skipif(not _multi30k().exists(), reason="the Multi30k corpus is not on this machine")
@pytest.mark.parametrize("tokens", [1800, 4096])
def test_little_padding_on_real_text(tmp_path: Path, tokens: int) -> None:
    def pairs():
        return open_pairs(_multi30k() / "train.en", _multi30k() / "train.de")

    tokenizers = learn_tokenizers(pairs, TokenizerSettings(size=8000))
    binarise(pairs(), tokenizers, tmp_path / "train.arrow", processes=1)
    batches = Batches(PairDataset.open(tmp_path / "train.arrow", tokenizers), BatchSettings(tokens=tokens))
    share = batches.real_share(0)
    assert min(share) > 0.95
    assert np.mean([len(batch.indices) for batch in batches.in_order()]) > tokens / 20
