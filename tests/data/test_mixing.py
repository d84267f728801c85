"""Sources with weights: how often each row is seen, and that this is a function of seed and epoch."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.data.mixing import Mixture

MakeDataset = Callable[[list[tuple[int, int]]], PairDataset]


def test_weight_2_is_twice_and_weight_1_is_once() -> None:
    mixture = Mixture([3, 4], [2, 1])
    for epoch in range(3):
        assert sorted(mixture.epoch(epoch).tolist()) == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6]


def test_one_half_is_another_half_each_time_until_all_were_seen() -> None:
    mixture = Mixture([1000], [0.5], seed=3)
    halves = [set(mixture.epoch(epoch).tolist()) for epoch in range(4)]
    assert all(len(half) == 500 for half in halves)
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(range(1000))
    assert 150 < len(halves[0] & halves[2]) < 350  # shuffled anew: about half of a half
    assert set(range(500)) != halves[0]


@given(
    sources=st.lists(
        st.tuples(st.integers(1, 12), st.floats(0.05, 4, allow_nan=False, allow_infinity=False)), min_size=1, max_size=3
    ),
    epochs=st.integers(1, 9),
)
def test_all_rows_of_a_source_are_seen_equally_often(sources: list[tuple[int, float]], epochs: int) -> None:
    rows, weights = zip(*sources, strict=True)
    mixture = Mixture(rows, weights, seed=1)
    seen = Counter(index for epoch in range(epochs) for index in mixture.epoch(epoch).tolist())
    start = 0
    for count, of_an_epoch in zip(rows, mixture.counts, strict=True):
        times = [seen[index] for index in range(start, start + count)]
        assert sum(times) == epochs * of_an_epoch
        assert max(times) - min(times) <= 1
        start += count
    assert set(seen) <= set(range(start))


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    def halves(seed: int) -> list[list[int]]:
        mixture = Mixture([20, 30], [0.3, 1.7], seed)
        return [mixture.epoch(epoch).tolist() for epoch in (5, 2)]

    backwards = Mixture([20, 30], [0.3, 1.7], 7)
    assert [backwards.epoch(epoch).tolist() for epoch in (2, 5)][::-1] == halves(7)
    assert halves(7) != halves(8)


def test_a_source_is_never_left_out_altogether() -> None:
    assert Mixture([3], [0.01]).counts == (1,)


@pytest.fixture
def parts(make_dataset: MakeDataset) -> list[PairDataset]:
    first = make_dataset([(2, 3), (4, 1), (1, 1)])
    first.path.rename(first.path.with_name("first.arrow"))
    first = PairDataset.open(first.path.with_name("first.arrow"), first.tokenizers)
    return [first, make_dataset([(5, 2), (1, 6)])]


def test_joined_data_sets_are_one(parts: list[PairDataset]) -> None:
    both = PairDataset.joined(parts)
    for whole in (both, pickle.loads(pickle.dumps(both))):
        pairs = [tuple(side.tolist() for side in whole.pair(index)) for index in range(len(whole))]
        assert pairs == [tuple(side.tolist() for side in part.pair(i)) for part in parts for i in range(len(part))]
        assert whole.source_lengths.tolist() == [2, 4, 1, 5, 1]
        assert whole.target_lengths.tolist() == [3, 1, 1, 2, 6]
        assert [len(part) for part in whole.parts] == [3, 2]
    alone = PairDataset.joined(parts[:1])
    assert alone is parts[0]
    assert alone.parts == (alone,)


def test_batches_hold_what_the_weights_say(parts: list[PairDataset]) -> None:
    batches = Batches(PairDataset.joined(parts), BatchSettings(tokens=14), seed=1, weights=[1, 2.5])
    for epoch in range(4):
        made = list(batches.epoch(epoch))
        seen = Counter(index for batch in made for index in batch.indices)
        assert [seen[index] for index in range(3)] == [1, 1, 1]
        assert sorted([seen[3], seen[4]]) == [2, 3]
        assert len(made) == batches.count(epoch)
        resumed = Batches(PairDataset.joined(parts), BatchSettings(tokens=14), seed=1, weights=[1, 2.5])
        assert [batch.indices for batch in resumed.epoch(epoch, 2)] == [batch.indices for batch in made[2:]]
        share = batches.real_share(epoch)
        real, padded = (
            sum(f(batch) for batch in made) for f in (lambda b: b.source_tokens, lambda b: b.source_BS.numel())
        )
        assert share.source == pytest.approx(real / padded)


def test_weights_of_one_change_nothing(parts: list[PairDataset]) -> None:
    both = PairDataset.joined(parts)
    plain, weighted = (Batches(both, BatchSettings(tokens=14), seed=4, weights=given) for given in (None, [1, 1]))
    for a, b in zip(plain.epoch(3), weighted.epoch(3), strict=True):
        assert a.indices == b.indices
        assert np.array_equal(a.source_BS, b.source_BS)
