"""Small encoders with heads, as directories and as pipelines."""

from __future__ import annotations

from typing import Literal

import torch

from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.classifier import Classifier
from regard.pipelines.filler import MaskFiller
from regard.text.tokenizer import Tokenizer, TokenizerSettings

TEXT = ["the dog is off", "the light is on", "turn the light off", "failed to connect to the device."]


def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TEXT * 5, TokenizerSettings(size=300, mask=True))


def encoder(head: HeadSettings, vocabulary: int) -> BidirectionalEncoder:
    torch.manual_seed(3)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=2, max_length=24, tie="decoder")
    return BidirectionalEncoder(settings, vocabulary, head)


def filler() -> MaskFiller:
    learned = tokenizer()
    return MaskFiller(encoder(HeadSettings(kind="masked-lm"), learned.size), learned)


def classifier(kind: Literal["text", "tokens"] = "text") -> Classifier:
    learned = tokenizer()
    return Classifier(encoder(HeadSettings(kind=kind, labels=("no", "perhaps", "yes")), learned.size), learned)
