"""Batches for masked language models: what is hidden, how often, and that it is decided by the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from regard.data.binarise import binarise_texts
from regard.data.masking import MaskedBatch, MaskedBatches, MaskingSettings
from regard.data.tokens import TokenDataset
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

PAD, BOS, EOS, UNK, MASK = range(5)
MakeCorpus = Callable[[list[int]], TokenDataset]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs", "two dogs"] * 9, TokenizerSettings(size=275, mask=True))


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> MakeCorpus:
    def make(lengths: list[int]) -> TokenDataset:
        texts = ["".join(Random(i).choices("0123456789", k=n - 1)) or "dog" for i, n in enumerate(lengths)]
        binarise_texts(texts, tokenizer, tmp_path / "text.arrow", documents="lines")
        dataset = TokenDataset.open(tmp_path / "text.arrow", tokenizer)
        assert dataset.lengths.tolist() == lengths
        return dataset

    return make


def contents(batches: list[MaskedBatch]) -> list[tuple[list[list[int]], list[list[int]]]]:
    return [(batch.tokens_BS.tolist(), batch.scored_BS.tolist()) for batch in batches]


def settings(**values: object) -> MaskingSettings:
    return MaskingSettings.model_validate(values)


def test_rows_are_documents_in_their_frame(corpus: MakeCorpus) -> None:
    dataset = corpus([3, 1])
    (batch,) = MaskedBatches(dataset, settings()).in_order()
    a, b = dataset.document(0).tolist(), dataset.document(1).tolist()
    assert batch.targets_BS.tolist() == [[BOS, *b, EOS, PAD, PAD], [BOS, *a, EOS]]
    assert batch.real_BS is not None
    assert batch.real_BS.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert batch.documents_BS is None
    assert batch.source_tokens == 8
    assert batch.target_tokens == int(batch.scored_BS.sum()) == 2


def test_rows_are_documents_side_by_side(corpus: MakeCorpus) -> None:
    dataset = corpus([3, 1, 4])
    (batch,) = MaskedBatches(dataset, settings(context=8, tokens=16, rows="packed")).in_order()
    a, b, c = (dataset.document(i).tolist() for i in range(3))
    assert sorted(batch.targets_BS.tolist()) == sorted([[BOS, *c, EOS, PAD, PAD], [BOS, *a, EOS, BOS, *b, EOS]])
    assert batch.documents_BS is not None
    assert sorted(batch.documents_BS.tolist()) == [[0] * 6 + [-1] * 2, [0] * 5 + [1] * 3]
    assert batch.real_BS is None


@pytest.mark.parametrize("rows", ["documents", "packed"])
def test_each_token_stands_once_in_an_epoch(corpus: MakeCorpus, rows: str) -> None:
    lengths = [1 + i * 7 % 23 for i in range(50)]
    dataset = corpus(lengths)
    batches = MaskedBatches(dataset, settings(context=12, tokens=60, rows=rows, pool=20), seed=3)
    expected = Counter(int(number) for i in range(len(dataset)) for number in dataset.document(i))
    for made in (list(batches.epoch(0)), list(batches.epoch(1)), list(batches.in_order())):
        found = Counter(int(number) for batch in made for number in batch.targets_BS.flatten())
        assert all(found[number] == count for number, count in expected.items())
        assert found[BOS] == found[EOS] >= len(dataset)
        for batch in made:
            assert batch.tokens_BS.numel() <= 60
            assert batch.tokens_BS.shape[1] <= 12
            assert batch.source_tokens == int((batch.targets_BS != PAD).sum())
            unscored = ~batch.scored_BS
            assert torch.equal(batch.tokens_BS[unscored], batch.targets_BS[unscored])
            assert int(batch.targets_BS[batch.scored_BS].min()) > MASK
            assert bool(batch.scored_BS.any(dim=1).all())
    made = list(batches.epoch(1))
    assert batches.count(1) == len(made)
    share = sum(batch.source_tokens for batch in made) / sum(batch.tokens_BS.numel() for batch in made)
    assert batches.real_share(1) == pytest.approx((share,) * 3)


def fates(tokens: Tensor, targets: Tensor, scored: Tensor, candidates: Tensor) -> dict[str, float]:
    """Shares of what became of the tokens that could be hidden."""
    read, right = tokens[scored], targets[scored]
    return {
        "chosen": float(scored.sum() / candidates.sum()),
        "hidden": float((read == MASK).float().mean()),
        "swapped": float(((read != MASK) & (read != right)).float().mean()),
        "kept": float((read == right).float().mean()),
    }


def test_the_shares_are_those_of_the_paper_and_of_a_foreign_collator(corpus: MakeCorpus, tokenizer: Tokenizer) -> None:
    dataset = corpus([100] * 400)
    (batch,) = MaskedBatches(dataset, settings(tokens=10**6), seed=1).epoch(0)
    ours = fates(batch.tokens_BS, batch.targets_BS, batch.scored_BS, batch.targets_BS > MASK)
    assert ours == pytest.approx({"chosen": 0.15, "hidden": 0.8, "swapped": 0.1, "kept": 0.1}, abs=0.015)
    swapped = batch.tokens_BS[batch.scored_BS & (batch.tokens_BS != MASK) & (batch.tokens_BS != batch.targets_BS)]
    assert int(swapped.min()) > MASK
    assert len(set(swapped.tolist())) > 200

    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pieces = {str(i): i for i in range(tokenizer.size)}
    foreign = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces)),
        pad_token="0", bos_token="1", eos_token="2", unk_token="3", mask_token="4",
    )  # fmt: skip
    collator = transformers.DataCollatorForLanguageModeling(foreign, mlm_probability=0.15, seed=0)
    made = collator([row.tolist() for row in batch.targets_BS])
    theirs = fates(made["input_ids"], batch.targets_BS, made["labels"] != -100, batch.targets_BS > MASK)
    assert ours == pytest.approx(theirs, abs=0.02)


def test_short_rows_have_one_token_to_guess_and_long_ones_their_share(corpus: MakeCorpus) -> None:
    for length, counts in ((1, {1}), (6, {1}), (10, {1, 2}), (20, {3}), (30, {4, 5})):
        (batch,) = MaskedBatches(corpus([length] * 50), settings(tokens=10**6)).epoch(0)
        assert set(batch.scored_BS.sum(dim=1).tolist()) == counts


def test_other_shares(corpus: MakeCorpus) -> None:
    dataset = corpus([20] * 20)
    (batch,) = MaskedBatches(dataset, settings(share=1, masked=1, swapped=0)).epoch(0)
    assert torch.equal(batch.scored_BS, batch.targets_BS > MASK)
    assert torch.equal(batch.tokens_BS == MASK, batch.scored_BS)
    (batch,) = MaskedBatches(dataset, settings(share=0.5, masked=0, swapped=0)).epoch(0)
    assert torch.equal(batch.tokens_BS, batch.targets_BS)
    assert batch.target_tokens == 20 * 10
    for values, message in (
        ({"masked": 0.8, "swapped": 0.3}, "parts of one whole"),
        ({"context": 10, "tokens": 9}, "a row of context: 10 exceeds the budget"),
    ):
        with pytest.raises(UserError, match=message):
            MaskingSettings.parse(values, "recipe")


@pytest.mark.parametrize("rows", ["documents", "packed"])
def test_what_is_hidden_is_a_function_of_seed_and_epoch(corpus: MakeCorpus, rows: str) -> None:
    dataset = corpus([10 + i % 5 for i in range(40)])
    chosen = settings(context=32, tokens=64, rows=rows)

    def made(seed: int, epoch: int) -> list[tuple[list[list[int]], list[list[int]]]]:
        return contents(list(MaskedBatches(dataset, chosen, seed).epoch(epoch)))

    batches = MaskedBatches(dataset, chosen, 1)
    list(batches.epoch(4))
    assert contents(list(batches.epoch(2))) == made(1, 2)
    assert len({str(made(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    for start in (0, 3, 5):
        own = MaskedBatches(dataset, chosen, 1, rank=1, ranks=2)
        assert contents(list(own.epoch(2, start))) == [
            batch for k, batch in enumerate(made(1, 2)) if k >= start and k % 2 == 1
        ]


def test_other_tokens_are_hidden_in_each_epoch_and_the_same_in_each_validation(corpus: MakeCorpus) -> None:
    dataset = corpus([40])
    batches = MaskedBatches(dataset, settings(), seed=1)
    hidden = [tuple(batch.scored_BS.flatten().tolist()) for epoch in range(20) for batch in batches.epoch(epoch)]
    assert len(set(hidden)) == 20
    first = contents(list(batches.in_order()))
    list(batches.epoch(7))
    assert contents(list(batches.in_order())) == first
    assert contents(list(MaskedBatches(dataset, settings(), seed=1, rank=1, ranks=3).in_order())) == first


def test_a_vocabulary_without_a_mask_is_refused(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    binarise_texts(["a dog"], tokenizers.source, tmp_path / "text.arrow", documents="lines")
    dataset = TokenDataset.open(tmp_path / "text.arrow", tokenizers.source)
    with pytest.raises(UserError, match=r"no mask token.*tokenizer.mask: true"):
        MaskedBatches(dataset, settings())


def test_a_row_without_room_for_text_is_refused(corpus: MakeCorpus) -> None:
    with pytest.raises(UserError, match="context: 2 leaves no room for text beside the 2 positions around it"):
        MaskedBatches(corpus([3]), settings(context=2))
    assert MaskedBatches(corpus([3]), settings(context=3)).count(0) == 1


def test_types_and_devices(corpus: MakeCorpus) -> None:
    for rows in ("documents", "packed"):
        (batch,) = MaskedBatches(corpus([2, 3]), settings(rows=rows)).epoch(0)
        moved = batch.to("meta")
        kinds = {
            name: (value.dtype, value.device.type) for name, value in vars(moved).items() if isinstance(value, Tensor)
        }
        assert set(kinds.values()) == {(torch.int64, "meta"), (torch.bool, "meta")}
        assert len(kinds) == 4
        assert (moved.source_tokens, moved.target_tokens) == (batch.source_tokens, batch.target_tokens)
