"""Translations drawn token by token: from the model's own distribution, by a seed and the source alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch

from regard.model.transformer import EncoderDecoder
from regard.search.engine import NOTHING, Translation, pad_sources, translate
from regard.search.settings import SamplingSettings, SearchSettings
from regard.text.tokenizer import TokenizerPair

TEXTS = ["the dog", "a small dog runs in the park", "tea", "", "men talk about the weather", "der Hund läuft"]

Build = Callable[..., EncoderDecoder]


def drawn(
    model: EncoderDecoder, tokenizers: TokenizerPair, texts: list[str], extra_tokens: int = 8, **sampling: float
) -> list[Translation]:
    settings = SearchSettings(extra_tokens=extra_tokens)
    chances = SamplingSettings.parse({"seed": 1, **sampling}, "test")
    return list(translate(model, tokenizers, texts, settings, sampling=chances))


def test_the_seed_and_the_source_decide_whatever_stands_beside_it(
    build_model: Build, tokenizers: TokenizerPair
) -> None:
    model = build_model()
    together = drawn(model, tokenizers, TEXTS)
    alone = [drawn(model, tokenizers, [text])[0] for text in TEXTS]
    assert [each.best.ids for each in together] == [each.best.ids for each in alone]
    assert together[3] == NOTHING
    other = drawn(model, tokenizers, TEXTS, seed=2)
    assert [each.best.ids for each in other] != [each.best.ids for each in together]


def log_probabilities(
    model: EncoderDecoder, tokenizers: TokenizerPair, text: str, ids: tuple[int, ...]
) -> torch.Tensor:
    """Of every token after each of the first `len(ids) + 1` positions of an output."""
    source_BS, mask_BS = pad_sources(tokenizers, tokenizers.source.encode([text]))
    with torch.no_grad():
        hidden_BTD = model(source_BS, mask_BS, torch.tensor([[*tokenizers.target_begin, *ids]]))
        return model.logits(hidden_BTD)[0].log_softmax(dim=-1)


def test_tokens_come_as_often_as_the_model_finds_them_probable(build_model: Build, tokenizers: TokenizerPair) -> None:
    model, draws, end = build_model(), 300, tokenizers.target_end
    probabilities_V = log_probabilities(model, tokenizers, "the dog", ())[0].exp()
    probabilities_V[list(tokenizers.target.forbidden)] = 0
    probabilities_V /= probabilities_V.sum()
    bests = [drawn(model, tokenizers, ["the dog"], seed=seed, extra_tokens=1)[0].best for seed in range(draws)]
    firsts = Counter((best.ids or (end,))[0] for best in bests)
    for token in probabilities_V.topk(3).indices.tolist():
        expected = float(probabilities_V[token])
        assert abs(firsts[token] / draws - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5
    top = set(probabilities_V.topk(2).indices.tolist())
    for seed in range(20):
        best = drawn(model, tokenizers, ["the dog"], seed=seed, top_k=2, extra_tokens=1)[0].best
        assert (best.ids or (end,))[0] in top
