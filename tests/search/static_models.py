"""Small models of every kind, and a plain and a static decoder side by side."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search.engine import Translation, translate
from regard.search.executors import GraphExecutor, TorchExecutor
from regard.search.settings import SearchSettings
from regard.search.static import Shape
from regard.text.tokenizer import TokenizerPair

CLOSE = {"atol": 2e-5, "rtol": 1e-5}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"positions": name} for name in POSITIONS},
    "shared heads, normalised": {"kv_heads": 1, "qk_norm": True, "positions": "rotary", "d_key": 6, "d_value": 10},
    "windows": {"spans": ["window", "full"], "window": 3, "positions": "rotary", "window_rotary": {"base": 50.0}},
    "blocks": {"spans": ["blocks"], "window": 1, "block": 4, "global_tokens": 1, "positions": "alibi"},
    "soft caps": {"attention_softcap": 2.0, "output_softcap": 3.0, "output_bias": True, "norm_placement": "both"},
}
VOCABULARY = 40


@cache
def build(name: str, **changes: Any) -> EncoderDecoder:
    tiny = {"d_model": 16, "d_ff": 24, "heads": 4, "encoder_layers": 1, "decoder_layers": 2, "norm_placement": "pre"}
    torch.manual_seed(0)
    model = EncoderDecoder(ModelSettings.model_validate(tiny | MODELS[name] | changes), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains of 1 and biases of 0 would hide a mistake
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sources(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


class Both:
    """A plain decoder and a static one that are told the same, and must say the same."""

    def __init__(self, model: EncoderDecoder, lines: list[list[int]], forced: tuple[int, ...] = ()) -> None:
        self.executor = GraphExecutor(model)
        self.plain = TorchExecutor(model).begin(lines, 0, forced)
        self.static = self.executor.begin(lines, 0, forced)
        self.rows, self.steps = len(lines), 0

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.steps)
            tokens_R = torch.randint(3, VOCABULARY, (self.rows,), generator=generator)
            with torch.inference_mode():
                expected_RV = self.plain.step(tokens_R)
            found_RV = self.static.step(tokens_R)
            assert found_RV.shape == expected_RV.shape == (self.rows, VOCABULARY)
            torch.testing.assert_close(found_RV, expected_RV, **CLOSE)
            self.steps += 1

    def reorder(self, rows: list[int], sources: list[int] | None = None) -> None:
        rows_R, sources_N = torch.tensor(rows), None if sources is None else torch.tensor(sources)
        self.plain.reorder(rows_R, sources_N)
        self.static.reorder(rows_R, sources_N)
        self.rows = len(rows)

    @property
    def shape(self) -> Shape:
        assert self.static._bucket is not None
        return self.static._bucket.shape


WORDS = ["the", "dog", "in", "a", "park", "and", "tea", "of", "men", "ball"]
TEXTS = [" ".join((WORDS[n:] + WORDS[:n])[: 1 + (7 * n) % 9]) for n in range(10)]


def run(executor: TorchExecutor | GraphExecutor, tokenizers: TokenizerPair, **options: Any) -> list[Translation]:
    sampling, workers = options.pop("sampling", None), options.pop("workers", 1)
    texts = options.pop("texts", TEXTS)
    settings = SearchSettings.parse({"extra_tokens": 12, **options}, "test")
    return list(translate(executor, tokenizers, texts, settings, sampling=sampling, workers=workers))


def assert_alike(found: list[Translation], expected: list[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [each.ids for each in one.candidates] == [each.ids for each in other.candidates]
        scores = [[each.score for each in some.candidates] for some in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
