"""Batches for causal language models: every token once, nothing across borders, an order that continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.binarise import binarise_texts
from regard.data.packing import PackedBatch, PackedBatches, PackingSettings
from regard.data.tokens import Documents, TokenDataset
from regard.errors import UserError
from regard.text.tokenizer import TokenizerPair

MakeCorpus = Callable[..., TokenDataset]
BOS, EOS = 1, 2


@pytest.fixture
def corpus(tmp_path: Path, tokenizers: TokenizerPair) -> MakeCorpus:
    """Documents of so many tokens, no two of them alike where there is room."""

    def make(lengths: list[int], documents: Documents = "lines") -> TokenDataset:
        texts = [
            "".join(Random(index).choices("0123456789", k=length - 1)) or "d" for index, length in enumerate(lengths)
        ]
        binarise_texts(texts, tokenizers.source, tmp_path / "text.arrow", documents=documents)
        dataset = TokenDataset.open(tmp_path / "text.arrow", tokenizers.source)
        assert dataset.lengths.tolist() == lengths
        return dataset

    return make


def whole(dataset: TokenDataset) -> list[list[int]]:
    """Each document as a model is to see it."""
    end = [] if dataset.documents == "file" else [EOS]
    return [[BOS, *dataset.document(i).tolist(), *end] for i in range(len(dataset))]


def transitions(batches: Iterable[PackedBatch]) -> Counter[tuple[int, int]]:
    """Each token read, with the one to be predicted from it."""
    return Counter(
        pair
        for batch in batches
        for pair in zip(
            batch.tokens_BT[batch.scored_BT].tolist(), batch.targets_BT[batch.scored_BT].tolist(), strict=True
        )
    )


def contents(batches: Iterable[PackedBatch]) -> list[list[list[int]]]:
    return [[batch.tokens_BT.tolist(), batch.targets_BT.tolist()] for batch in batches]


def test_a_batch_by_hand(corpus: MakeCorpus) -> None:
    """Documents of 2, 4 and 1 tokens in rows of 8: 3, 5 and 2 predictions."""
    dataset = corpus([2, 4, 1])
    a, b, c = (dataset.document(i).tolist() for i in range(3))
    (batch,) = PackedBatches(dataset, PackingSettings(context=8, rows=2)).in_order()
    assert batch.tokens_BT.tolist() == [[BOS, *b, BOS, *a], [BOS, *c, 0, 0, 0, 0, 0, 0]]
    assert batch.targets_BT.tolist() == [[*b, EOS, *a, EOS], [*c, EOS, 0, 0, 0, 0, 0, 0]]
    assert batch.documents_BT is not None
    assert batch.documents_BT.tolist() == [[0] * 5 + [1] * 3, [0, 0] + [-1] * 6]
    assert batch.scored_BT.tolist() == [[True] * 8, [True] * 2 + [False] * 6]
    assert (batch.source_tokens, batch.target_tokens) == (10, 10)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    context=st.integers(1, 12),
    rows=st.integers(1, 4),
    pool=st.integers(1, 30),
    documents=st.sampled_from(["lines", "file"]),
)
def test_each_token_is_a_target_once_an_epoch(
    corpus: MakeCorpus, lengths: list[int], context: int, rows: int, pool: int, documents: Documents
) -> None:
    dataset = corpus(lengths, documents)
    batches = PackedBatches(dataset, PackingSettings(context=context, rows=rows, pool=pool), seed=3)
    expected = Counter(pair for ids in whole(dataset) for pair in pairwise(ids))
    for made in (list(batches.epoch(0)), list(batches.epoch(1)), list(batches.in_order())):
        assert transitions(made) == expected
        for batch in made:
            assert batch.target_tokens == int(batch.scored_BT.sum())
            assert batch.tokens_BT.shape[0] <= rows
            assert batch.tokens_BT.shape[1] <= context
            assert bool(batch.scored_BT.any(dim=0).all())
    assert batches.count(0) == len(list(batches.epoch(0)))
    made = list(batches.epoch(1))
    share = sum(batch.target_tokens for batch in made) / sum(batch.tokens_BT.numel() for batch in made)
    assert batches.real_share(1) == pytest.approx((share,) * 3)


def test_one_end_a_document_counts_and_no_padding(corpus: MakeCorpus) -> None:
    dataset = corpus([3, 9, 1, 6, 6, 2])
    for epoch in range(3):
        made = list(PackedBatches(dataset, PackingSettings(context=7, rows=2)).epoch(epoch))
        targets = torch.cat([batch.targets_BT[batch.scored_BT] for batch in made])
        assert int((targets == EOS).sum()) == 6
        assert not bool((targets == 0).any())
        assert not bool((targets == BOS).any())


def test_a_document_is_numbered_as_one(corpus: MakeCorpus) -> None:
    """Where numbers are equal, what is predicted is what is read next; where they change, a document begins."""
    made = list(PackedBatches(corpus([3, 2, 4, 1, 5, 2, 2, 1]), PackingSettings(context=9, rows=3)).epoch(0))
    borders = 0
    for batch in made:
        if batch.documents_BT is None:
            continue
        for tokens, targets, numbers in zip(batch.tokens_BT, batch.targets_BT, batch.documents_BT, strict=True):
            for place in range(1, len(numbers)):
                if numbers[place] == numbers[place - 1] != -1:
                    assert tokens[place] == targets[place - 1]
                elif numbers[place] != -1:
                    assert tokens[place] == BOS
                    borders += 1
    assert borders >= 4


def test_rows_of_one_document_need_no_numbers(corpus: MakeCorpus) -> None:
    for batch in PackedBatches(corpus([50], "file"), PackingSettings(context=8, rows=2)).epoch(0):
        assert batch.documents_BT is None


def test_a_long_text_is_cut_elsewhere_in_each_epoch(corpus: MakeCorpus) -> None:
    batches = PackedBatches(corpus([100], "file"), PackingSettings(context=10, rows=1))
    firsts = [{tuple(row.tolist()[:4]) for batch in batches.epoch(e) for row in batch.tokens_BT} for e in range(4)]
    assert all(len(one & other) < 4 for one, other in pairwise(firsts))


def test_the_order_is_a_function_of_seed_and_epoch(corpus: MakeCorpus) -> None:
    dataset = corpus([1 + i * 7 % 11 for i in range(60)])
    chosen = PackingSettings(context=16, rows=2)

    def order(seed: int, epoch: int) -> list[list[list[int]]]:
        return contents(PackedBatches(dataset, chosen, seed=seed).epoch(epoch))

    batches = PackedBatches(dataset, chosen, seed=1)
    list(batches.epoch(4))
    assert contents(batches.epoch(2)) == order(1, 2)
    assert len({str(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert contents(batches.in_order()) == contents(PackedBatches(dataset, chosen, seed=9, rank=1, ranks=2).in_order())


@pytest.mark.parametrize("order", ["packed", "random"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_start_continues_the_epoch(corpus: MakeCorpus, order: str, ranks: int) -> None:
    dataset = corpus([150], "file")
    chosen = PackingSettings.model_validate({"context": 8, "rows": 2, "order": order})
    together = contents(PackedBatches(dataset, chosen, seed=5).epoch(2))
    assert len(together) >= 9
    for start in (0, 1, 7, len(together)):
        for rank in range(ranks):
            batches = PackedBatches(dataset, chosen, seed=5, rank=rank, ranks=ranks)
            expected = [together[k] for k in range(start, len(together)) if k % ranks == rank]
            assert contents(batches.epoch(2, start)) == expected


def test_random_windows_are_pieces_of_the_text(corpus: MakeCorpus) -> None:
    dataset = corpus([150], "file")
    (text,) = whole(dataset)
    batches = PackedBatches(dataset, PackingSettings(context=10, rows=4, order="random"))
    assert batches.count(0) == 4  # 150 targets in batches of 40
    made = [batch for epoch in range(30) for batch in batches.epoch(epoch)]
    rows = [row for batch in made for row in zip(batch.tokens_BT, batch.targets_BT, strict=True)]
    pieces = [(text[i : i + 10], text[i + 1 : i + 11]) for i in range(len(text) - 10)]
    found = {pieces.index((tokens.tolist(), targets.tolist())) for tokens, targets in rows}
    assert len(rows) == 480
    assert {0, len(pieces) - 1} <= found
    assert len(found) > 120
    assert transitions(batches.in_order()) == Counter(pairwise(text))


def test_random_windows_of_what_is_not_one_long_text_are_refused(corpus: MakeCorpus) -> None:
    with pytest.raises(UserError, match=r"random windows are taken from one document, and this has 2"):
        PackedBatches(corpus([20, 20]), PackingSettings(context=8, order="random"))
    with pytest.raises(UserError, match=r"has 9 tokens to predict, fewer than a window of context: 10"):
        PackedBatches(corpus([9], "file"), PackingSettings(context=10, order="random"))
    assert PackedBatches(corpus([9], "file"), PackingSettings(context=9, rows=1, order="random")).count(0) == 1


def test_types_and_devices(corpus: MakeCorpus) -> None:
    (batch,) = PackedBatches(corpus([2, 3]), PackingSettings(context=9)).epoch(0)
    moved = batch.to("meta")
    assert moved.documents_BT is not None
    for tensor, dtype in (
        (moved.tokens_BT, torch.int64),
        (moved.targets_BT, torch.int64),
        (moved.scored_BT, torch.bool),
        (moved.documents_BT, torch.int64),
    ):
        assert (tensor.dtype, tensor.device.type) == (dtype, "meta")
    assert (moved.source_tokens, moved.target_tokens) == (7, 7)
