"""Any batch can be taken in halves: the same rows, and tokens that add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batches import Batches, BatchSettings
from regard.data.binarise import binarise_texts
from regard.data.dataset import PairDataset
from regard.data.examples import ImageBatches, ImageDataset, LabelledBatches
from regard.data.feed import TensorBatch
from regard.data.labelled import Example, LabelledDataset, Tagged, binarise_labelled, binarise_tagged
from regard.data.masking import MaskedBatches, MaskingSettings
from regard.data.packing import PackedBatches, PackingSettings
from regard.data.tokens import TokenDataset
from regard.text.tokenizer import Tokenizer, TokenizerSettings

LINES = ["a dog runs", "two", "cats sleep in the sun", "seven dogs", "a cat", "in the sun"]
MakeDataset = Callable[[list[tuple[int, int]]], PairDataset]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(LINES * 3, TokenizerSettings(size=275, mask=True))


@pytest.fixture
def feeds(tmp_path: Path, tokenizer: Tokenizer, make_dataset: MakeDataset) -> dict[str, Iterable[TensorBatch]]:
    """Batches of every kind, none of an even number of rows only."""
    binarise_texts(LINES, tokenizer, tmp_path / "text.arrow", documents="lines")
    texts = TokenDataset.open(tmp_path / "text.arrow", tokenizer)
    labels = [Example(line, str(len(line) % 2), "here") for line in LINES]
    binarise_labelled(labels, tokenizer, tmp_path / "labels.arrow", ("0", "1"))
    words = [Tagged(line.split(), [str(len(word) % 2) for word in line.split()], ["here"] * 9) for line in LINES]
    words = [Tagged(each.words, each.tags, each.origins[: len(each.words)]) for each in words]
    binarise_tagged(words, tokenizer, tmp_path / "words.arrow", ("0", "1"))
    images = ImageDataset(np.arange(5 * 4, dtype=np.float32).reshape(5, 1, 2, 2), np.array([0, 1, 0, 1, 1]), ("a", "b"))
    by_text = LabelledDataset.open(tmp_path / "labels.arrow", tokenizer)
    by_word = LabelledDataset.open(tmp_path / "words.arrow", tokenizer)
    return {
        "pairs": Batches(make_dataset([(n, 9 - n) for n in range(1, 8)]), BatchSettings(tokens=100)).epoch(0),
        "packed": PackedBatches(texts, PackingSettings(context=20, rows=3)).epoch(0),
        "a document a row": PackedBatches(texts, PackingSettings(context=9, rows=5)).epoch(0),
        "masked": MaskedBatches(texts, MaskingSettings(share=0.5)).epoch(0),
        "masked and packed": MaskedBatches(texts, MaskingSettings(context=20, rows="packed", share=0.5)).epoch(0),
        "labelled": LabelledBatches(by_text, BatchSettings()).epoch(0),
        "tagged": LabelledBatches(by_word, BatchSettings()).epoch(0),
        "images": ImageBatches(images, 5).epoch(0),
    }


def fields(batch: TensorBatch, kind: type | tuple[type, ...]) -> dict[str, Any]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, kind)}


def test_halves_are_the_whole(feeds: dict[str, Iterable[TensorBatch]]) -> None:
    for kind, feed in feeds.items():
        batches = list(feed)
        assert batches, kind
        for batch in batches:
            assert fields(batch.counted(), int) == fields(batch, int), kind
            if len(batch) == 1:
                continue
            first, second = batch.parts(2)
            assert type(first) is type(second) is type(batch)
            assert (len(first), len(second)) == (len(batch) // 2, len(batch) - len(batch) // 2)
            for name, tensor in fields(batch, torch.Tensor).items():
                assert torch.equal(torch.cat((getattr(first, name), getattr(second, name))), tensor), (kind, name)
            for name, row_numbers in fields(batch, tuple).items():
                assert getattr(first, name) + getattr(second, name) == row_numbers, (kind, name)
            for name, count in fields(batch, int).items():
                assert getattr(first, name) + getattr(second, name) == count, (kind, name)
                assert min(getattr(first, name), getattr(second, name)) > 0, (kind, name)


def test_a_single_row_has_no_halves(make_dataset: MakeDataset) -> None:
    (batch,) = Batches(make_dataset([(3, 4)]), BatchSettings()).epoch(0)
    with pytest.raises(ValueError, match="1 rows are not enough for 2 parts"):
        batch.parts(2)
