"""The losses of language models and classifiers, against plain loops over single texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.binarise import binarise_texts
from regard.data.budget import BatchSettings
from regard.data.examples import ImageBatches, ImageDataset, LabelledBatches
from regard.data.feed import AnyBatch, Feed
from regard.data.labelled import Example, LabelledDataset, Tagged, binarise_labelled, binarise_tagged
from regard.data.masking import MaskedBatches, MaskingSettings
from regard.data.packing import PackedBatches, PackingSettings
from regard.data.tokens import TokenDataset
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder
from regard.text.tokenizer import Tokenizer, TokenizerSettings
from regard.training.loss import (
    LossSums,
    causal_loss,
    classification_loss,
    masked_loss,
    token_classification_loss,
)
from regard.training.trainer import Trainer, TrainingSettings
from regard.training.validation import Validation, ValidationSettings, validation_loss

TEXTS = ["a dog runs", "two cats sleep in the sun", "one", "seven dogs", "the sun", "a cat", "in", "dogs and cats run"]
LABELS = ("few", "many")
BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXTS * 3, TokenizerSettings(size=272, mask=True))


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    path = tmp_path_factory.mktemp("texts") / "texts.arrow"
    binarise_texts(TEXTS, tokenizer, path, documents="lines")
    return TokenDataset.open(path, tokenizer)


def settings(**values: object) -> ModelSettings:
    small = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return ModelSettings.parse({**small, **values}, "test")


def decoder(tokenizer: Tokenizer, **values: object) -> CausalDecoder:
    torch.manual_seed(0)
    return CausalDecoder(settings(**values), tokenizer.size)


def encoder(tokenizer: Tokenizer | None, head: HeadSettings, **values: object) -> BidirectionalEncoder:
    torch.manual_seed(0)
    return BidirectionalEncoder(settings(**values), tokenizer and tokenizer.size, head)


def gradients(model: torch.nn.Module, loss: Tensor) -> list[Tensor]:
    """Of all weights that take part."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def smoothed(logits_NV: Tensor, targets_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    return (
        functional.cross_entropy(logits_NV, targets_N, reduction="sum", label_smoothing=smoothing),
        functional.cross_entropy(logits_NV, targets_N, reduction="sum"),
    )


def check(sums: LossSums, model: torch.nn.Module, expected: tuple[Tensor, Tensor]) -> None:
    loss, nll = expected
    assert sums.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert sums.nll.item() == pytest.approx(nll.item(), rel=1e-5)
    assert not sums.nll.requires_grad
    for one, other in zip(gradients(model, sums.loss), gradients(model, loss), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def total(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    losses, nlls = zip(*parts, strict=True)
    return torch.stack(losses).sum(), torch.stack(nlls).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "variant",
    [{}, {"positions": "rotary", "norm": "rms", "output_bias": True}, {"positions": "alibi", "output_softcap": 3.0}],
)
def test_packed_rows_are_documents_alone(
    tokenizer: Tokenizer, texts: TokenDataset, smoothing: float, variant: dict[str, object]
) -> None:
    """Nothing of a document reaches another, though they stand in one row; padding takes no part."""
    model = decoder(tokenizer, **variant)
    (batch,) = PackedBatches(texts, PackingSettings(context=30, rows=20)).epoch(0)
    assert batch.documents_BT is not None
    assert not bool(batch.scored_BT.all())
    parts = []
    for index in range(len(texts)):
        ids = torch.tensor([[BOS, *texts.document(index).tolist(), EOS]])
        logits = model.logits(model.decode(ids[:, :-1]))[0]
        parts.append(smoothed(logits, ids[0, 1:], smoothing))
    sums = causal_loss(model, batch, smoothing)
    assert sums.tokens == int(texts.lengths.sum()) + len(texts)
    check(sums, model, total(parts))


def test_a_language_model_learns_its_lines_and_where_they_end(tokenizer: Tokenizer, texts: TokenDataset) -> None:
    model = decoder(tokenizer, positions="rotary", norm_placement="pre")
    feed = PackedBatches(texts, PackingSettings(context=24, rows=8))
    steps = {"steps": 150, "schedule": {"kind": "linear", "peak_rate": 0.02, "warmup_steps": 10}}
    trainer = train(model, lambda model, batch: causal_loss(model, batch, 0.0), feed, steps)
    assert trainer.progress.target_tokens == 150 * (int(texts.lengths.sum()) + len(texts))
    for index in range(len(texts)):
        ids = texts.document(index).tolist()
        # Some lines begin alike.
        written = [BOS, *ids[:3]]
        while written[-1] != EOS and len(written) < 30:
            written.append(int(model.logits(model.decode(torch.tensor([written]))[0, -1]).argmax()))
        assert tokenizer.decode([written]) == [TEXTS[index]]
        assert written[-1] == EOS


def train(
    model: torch.nn.Module, objective: Callable[..., LossSums], feed: Feed[AnyBatch], values: dict[str, object]
) -> Trainer:
    trainer = Trainer(model, objective, feed, TrainingSettings.parse(values, "test"), d_model=16)
    trainer.train()
    model.eval()
    return trainer


@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("rows", ["documents", "packed"])
def test_masked_tokens_are_guessed_from_their_own_document(
    tokenizer: Tokenizer, texts: TokenDataset, rows: str, tie: str
) -> None:
    model = encoder(tokenizer, HeadSettings(kind="masked-lm"), tie=tie)
    chosen = MaskingSettings.parse({"context": 40, "tokens": 400, "rows": rows, "share": 0.4}, "test")
    (batch,) = MaskedBatches(texts, chosen).epoch(0)
    assert (batch.targets_BS.shape[0] == 8) == (rows == "documents")
    parts = []
    for row in range(len(batch.tokens_BS)):
        numbers = torch.zeros_like(batch.tokens_BS[row]) if batch.documents_BS is None else batch.documents_BS[row]
        real = batch.real_BS[row] if batch.real_BS is not None else numbers >= 0
        for number in numbers[real].unique():
            here = real & (numbers == number)
            logits = model.logits(model.encode(batch.tokens_BS[row, here][None]))[0]
            scored = batch.scored_BS[row, here]
            parts.append(smoothed(logits[scored], batch.targets_BS[row, here][scored], 0.1))
    sums = masked_loss(model, batch, 0.1)
    assert sums.tokens == batch.target_tokens == int(batch.scored_BS.sum())
    check(sums, model, total(parts))


def test_labels_of_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    examples = [Example(text, LABELS[i % 2], "") for i, text in enumerate(TEXTS)]
    binarise_labelled(examples, tokenizer, tmp_path / "a.arrow", LABELS)
    dataset = LabelledDataset.open(tmp_path / "a.arrow", tokenizer)
    model = encoder(tokenizer, HeadSettings(kind="text", labels=LABELS))
    (batch,) = LabelledBatches(dataset, BatchSettings()).epoch(0)
    parts = [
        smoothed(
            model.logits(model.encode(torch.tensor([[BOS, *dataset.example(i)[0].tolist(), EOS]]))),
            torch.tensor([i % 2]),
            0.1,
        )
        for i in range(len(TEXTS))
    ]
    sums = classification_loss(model, batch, 0.1)
    assert sums.tokens == batch.target_tokens == 8
    check(sums, model, total(parts))


def test_labels_of_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = [text.split() for text in TEXTS]
    sentences = [Tagged(words, [LABELS[len(word) % 2] for word in words], [""] * len(words)) for words in split]
    binarise_tagged(sentences, tokenizer, tmp_path / "a.arrow", LABELS)
    dataset = LabelledDataset.open(tmp_path / "a.arrow", tokenizer)
    model = encoder(tokenizer, HeadSettings(kind="tokens", labels=LABELS))
    (batch,) = LabelledBatches(dataset, BatchSettings()).epoch(0)
    parts = []
    for sentence in sentences:
        ids, firsts = [BOS], []
        for word in tokenizer.encode(sentence.words):
            firsts.append(len(ids))
            ids += word
        logits = model.logits(model.encode(torch.tensor([[*ids, EOS]])))[0, firsts]
        parts.append(smoothed(logits, torch.tensor([LABELS.index(tag) for tag in sentence.tags]), 0.1))
    sums = token_classification_loss(model, batch, 0.1)
    assert sums.tokens == batch.target_tokens == sum(map(len, split))
    check(sums, model, total(parts))


def test_labels_of_images() -> None:
    """One bright corner of four: learned within a few steps, and validated through the same loss."""
    corners = np.arange(40) % 4
    images = np.zeros((40, 1, 4, 4), np.float32)
    images[np.arange(40), 0, corners // 2 * 3, corners % 2 * 3] = 1
    dataset = ImageDataset(images, corners.astype(np.int64), ("a", "b", "c", "d"))
    patches = {"height": 4, "width": 4, "size": 2, "channels": 1}
    model = encoder(
        None,
        HeadSettings(kind="text", labels=dataset.labels),
        input="patches",
        patches=patches,
        positions="learned",
        tie="none",
    )
    (batch,) = ImageBatches(dataset, 100).epoch(0)
    sums = classification_loss(model, batch, 0.0)
    logits = torch.cat([model.logits(model.encode(image[None])) for image in batch.inputs])
    check(sums, model, smoothed(logits, batch.labels, 0.0))
    steps = {"steps": 60, "schedule": {"kind": "linear", "peak_rate": 0.01, "warmup_steps": 5}}
    feed = ImageBatches(dataset, 10)
    trainer = train(model, lambda model, batch: classification_loss(model, batch, 0.0), feed, steps)
    assert validation_loss(trainer, feed)["loss"] < 0.1


def test_validation_of_a_language_model_is_the_same_for_any_rows(tokenizer: Tokenizer, texts: TokenDataset) -> None:
    """Total negative log-likelihood over total tokens, twice the same."""
    model = decoder(tokenizer, dropout=0.3)
    feed = PackedBatches(texts, PackingSettings(context=30, rows=2))
    trainer = Trainer(model, lambda m, b: causal_loss(m, b, 0.1), feed, TrainingSettings(), d_model=16)
    found = [
        Validation(ValidationSettings(), PackedBatches(texts, PackingSettings(context=context, rows=rows))).scores(
            trainer
        )
        for context, rows in ((30, 2), (30, 2), (30, 20), (200, 1))
    ]
    assert found[0] == found[1]
    for scores in found:
        assert scores == pytest.approx(found[0], rel=1e-5)


def test_a_masked_batch_without_anything_to_guess_is_zero(tokenizer: Tokenizer, texts: TokenDataset) -> None:
    model = encoder(tokenizer, HeadSettings(kind="masked-lm"))
    (batch,) = MaskedBatches(texts, MaskingSettings()).epoch(0)
    nothing = replace(batch, scored_BS=torch.zeros_like(batch.scored_BS), target_tokens=0)
    sums = masked_loss(model, nothing, 0.1)
    assert (sums.loss.item(), sums.nll.item(), sums.tokens) == (0.0, 0.0, 0)
    sums.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
