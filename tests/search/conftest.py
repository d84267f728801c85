"""A small untrained translator that ends now and then, so that its searches have something to decide."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "a small dog runs in the park with a ball",
    "two men talk about the weather and the price of tea",
    "der Hund läuft über die Straße",
] * 3


@cache
def learned() -> TokenizerPair:
    tokenizer = Tokenizer.learn(LINES, TokenizerSettings(size=300))
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerPair:
    return learned()


def build(seed: int = 0, **settings: Any) -> EncoderDecoder:
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    values |= {"dropout": 0.5, "tie": "none"}
    size = learned().target.size
    torch.manual_seed(seed)
    model = EncoderDecoder(ModelSettings(**{**values, **settings}), size, size).eval()
    with torch.no_grad():
        model.output *= 3
        ids_BS = torch.arange(4, 44).view(4, 10)
        hidden_D = model(ids_BS, torch.ones_like(ids_BS, dtype=torch.bool), ids_BS).mean(dim=(0, 1))
        model.output[learned().target.eos] += hidden_D * 8 / hidden_D.norm() ** 2
    return model


@pytest.fixture(scope="session")
def build_model() -> Callable[..., EncoderDecoder]:
    return build
