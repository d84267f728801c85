"""Scores of given text against a plain loop over its tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import pytest
import torch

from regard.evaluation.scoring import PairScore, Total, score
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search.engine import translate
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SOURCE = ["a small dog runs", "", "two men talk about the weather", "tea", "the quick brown fox jumps over the dog"]
TARGET = ["ein kleiner Hund läuft", "nichts", "zwei Männer reden", "", "der schnelle braune Fuchs springt über"]
PAIRS = list(zip(SOURCE, TARGET, strict=True))


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    source, target = (Tokenizer.learn(lines * 3, TokenizerSettings(size=300)) for lines in (SOURCE, TARGET))
    return TokenizerPair(source, target)


def build(tokenizers: TokenizerPair, **settings: object) -> EncoderDecoder:
    torch.manual_seed(1)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.5}
    values |= {"tie": "none", **settings}
    model = EncoderDecoder(ModelSettings.parse(values, "test"), tokenizers.source.size, tokenizers.target.size).eval()
    with torch.no_grad():
        model.output *= 3
    return model


def by_loop(model: EncoderDecoder, tokenizers: TokenizerPair, source: str, target_ids: Iterable[int]) -> PairScore:
    """One token after the other, one pair at a time."""
    source_BS = torch.tensor([[*tokenizers.source.encode([source])[0], tokenizers.source.eos]])
    memory = model.encode(source_BS, torch.ones_like(source_BS, dtype=torch.bool))
    prefix, total = [tokenizers.target.bos], 0.0
    for token in [*target_ids, tokenizers.target.eos]:
        logits_V = model.logits(model.decode(torch.tensor([prefix]), memory))[0, -1]
        total += float(logits_V.detach().double().log_softmax(0)[token])
        prefix.append(token)
    return PairScore(total, len(prefix) - 1)


@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_scores_are_those_of_a_plain_loop(tokenizers, batch_tokens):
    model = build(tokenizers)
    found = list(score(model, tokenizers, PAIRS, batch_tokens))
    for pair, (source, target) in zip(found, PAIRS, strict=True):
        expected = by_loop(model, tokenizers, source, tokenizers.target.encode([target])[0])
        assert pair.tokens == expected.tokens
        assert pair.log_probability == pytest.approx(expected.log_probability, abs=1e-4)


def test_what_a_search_finds_has_the_score_that_it_says(tokenizers):
    model = build(tokenizers)
    with torch.no_grad():  # ends are likely, so that many hypotheses are finished
        ids_BS = torch.arange(4, 24).view(2, 10)
        hidden_D = model(ids_BS, torch.ones_like(ids_BS, dtype=torch.bool), ids_BS).mean(dim=(0, 1))
        model.output[tokenizers.target.eos] = hidden_D * 8 / hidden_D.norm() ** 2
    settings = SearchSettings(beam=4, nbest=4, extra_tokens=1)
    lengths = set()
    for source, translation in zip(SOURCE, translate(model, tokenizers, SOURCE, settings), strict=True):
        for candidate in translation.candidates:
            if source and candidate.finished:
                pair = by_loop(model, tokenizers, source, candidate.ids)
                assert candidate.log_probability == pytest.approx(pair.log_probability, abs=1e-4)
                assert candidate.score == pytest.approx(pair.log_probability / ((5 + pair.tokens) / 6) ** 0.6, abs=1e-4)
                lengths.add(pair.tokens)
    assert len(lengths) > 2


def test_perplexity_counts_tokens_not_lines():
    total = Total()
    for pair in (PairScore(-2.0, 2), PairScore(-10.0, 4), PairScore(math.nan, 9)):
        total.add(pair)
    assert (total.pairs, total.tokens, total.left_out) == (2, 6, 1)
    assert total.perplexity == pytest.approx(math.exp(12 / 6))
    assert math.isnan(Total().perplexity)
    assert Total(log_probability=-1e6, tokens=1).perplexity == math.inf


@pytest.mark.parametrize(("source", "target", "scored"), [(40, 20, [True, False]), (20, 40, [False, True])])
def test_each_side_has_a_bound_of_its_own(tokenizers, caplog, source, target, scored):
    model = build(tokenizers, max_length=target, source_max_length=source)
    tea, tee = "tea " * 15, "Tee " * 8
    assert 20 < len(tokenizers.source.encode([tea])[0]) < 39
    assert 20 < len(tokenizers.target.encode([tee])[0]) < 39
    with caplog.at_level(logging.WARNING, "regard"):
        found = list(score(model, tokenizers, [(tea, "Tee"), ("tea", tee)]))
    assert [math.isfinite(pair.log_probability) for pair in found] == scored
    assert "of which the model can read 20; not scored" in caplog.text


def test_a_pair_beyond_the_model_is_left_out_with_a_warning(tokenizers, caplog):
    model = build(tokenizers, max_length=20)
    pairs = [PAIRS[3], ("tea " * 30, "Tee"), ("tea", "Tee " * 30), PAIRS[3]]
    with caplog.at_level(logging.WARNING, "regard"):
        found = list(score(model, tokenizers, pairs))
    assert [math.isnan(pair.log_probability) for pair in found] == [False, True, True, False]
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("pairs, line 2: has ")
    assert messages[1].startswith("pairs, line 3: has ")
    expected = by_loop(model, tokenizers, SOURCE[3], ())
    assert found[3].log_probability == pytest.approx(expected.log_probability, abs=1e-4)
