"""A small real data set, a small model, and trainers over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings
from regard.training.loss import LossSums, translation_loss
from regard.training.trainer import Listener, Trainer, TrainingSettings

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MakeTrainer = Callable[..., Trainer]


def line(number: int, length: int) -> str:
    return " ".join(DIGITS[(number * 3 + 7 * k) % 10] for k in range(length))


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerPair:
    tokenizer = Tokenizer.learn([line(i, 6) for i in range(40)], TokenizerSettings(size=290))
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def dataset(tokenizers: TokenizerPair, tmp_path_factory: pytest.TempPathFactory) -> PairDataset:
    """42 pairs of 1 to 7 words, of unequal lengths on both sides."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.arrow"
    binarise([(line(i, 1 + i % 7), line(i + 1, 1 + i % 5)) for i in range(42)], tokenizers, path, processes=1)
    return PairDataset.open(path, tokenizers)


@pytest.fixture
def batches(dataset: PairDataset) -> Batches:
    """10 batches an epoch."""
    batches = Batches(dataset, BatchSettings(tokens=40), seed=3)
    assert batches.count(0) == 10
    return batches


def build(vocabulary: int, dropout: float = 0.0, seed: int = 0, tie: str = "all") -> EncoderDecoder:
    torch.manual_seed(seed)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "tie": tie}
    values |= {"dropout": dropout, "attention_dropout": dropout, "activation_dropout": dropout}
    return EncoderDecoder(ModelSettings.model_validate(values), vocabulary, vocabulary)


def loss_of(smoothing: float = 0.1, r_drop: float = 0.0) -> Callable[[nn.Module, Batch], LossSums]:
    def objective(model: nn.Module, batch: Batch) -> LossSums:
        assert isinstance(model, EncoderDecoder)
        return translation_loss(model, batch, smoothing, r_drop)

    return objective


@pytest.fixture
def make_model(tokenizers: TokenizerPair) -> Callable[..., EncoderDecoder]:
    """A small model of a seed; every kind of dropout has the same probability."""
    return partial(build, tokenizers.target.size)


@pytest.fixture
def make_trainer(batches: Batches, make_model: Callable[..., EncoderDecoder]) -> MakeTrainer:
    """A trainer of a small model, in float32; keyword arguments change the training settings."""

    def make(
        listeners: Sequence[Listener] = (),
        dropout: float = 0.0,
        data: Batches | None = None,
        objective: Callable[[nn.Module, Batch], LossSums] | None = None,
        model: EncoderDecoder | None = None,
        **changes: object,
    ) -> Trainer:
        schedule = {"kind": "inverse-sqrt", "peak_rate": 0.01, "warmup_steps": 5}
        exact = {"steps": 20, "schedule": schedule, "precision": "float32"}
        settings = TrainingSettings.model_validate(exact | changes)
        return Trainer(
            model or make_model(dropout),
            objective or loss_of(r_drop=settings.r_drop),
            data or batches,
            settings,
            d_model=16,
            listeners=listeners,
        )

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
