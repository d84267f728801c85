"""A tokenizer that puts several ids around a text: batches, scores and searches hold to them alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.batches import Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.evaluation.scoring import score
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search.engine import translate
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Frames, Tokenizer, TokenizerPair, TokenizerSettings
from regard.training.loss import translation_loss

PAIRS = [("a dog runs", "ein Hund läuft"), ("two cats", "zwei Katzen schlafen"), ("tea", "Tee")]
SOURCE_BEGIN, SOURCE_END, TARGET_BEGIN, END = (10, 11), (2, 12), (2, 13, 14), 2


@pytest.fixture(scope="module")
def pair() -> TokenizerPair:
    tokenizer = Tokenizer.learn([text for both in PAIRS for text in both] * 3, TokenizerSettings(size=290))
    tokenizer.frames = Frames(
        begin=(),
        end=(),
        source_begin=SOURCE_BEGIN,
        source_end=SOURCE_END,
        target_begin=TARGET_BEGIN,
        target_end=END,
    )
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def model(pair: TokenizerPair) -> EncoderDecoder:
    torch.manual_seed(0)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "tie": "none"}
    made = EncoderDecoder(ModelSettings.parse(values, "test"), pair.source.size, pair.target.size).eval()
    with torch.no_grad():
        made.output *= 3
    return made


def batches(pair: TokenizerPair, folder: Path, tokens: int = 1000) -> Batches:
    binarise(PAIRS, pair, folder / "pairs.arrow", processes=1)
    return Batches(PairDataset.open(folder / "pairs.arrow", pair), BatchSettings(tokens=tokens))


def probability(model: EncoderDecoder, pair: TokenizerPair, source: str, target: list[int]) -> float:
    """The log-probability of a target and its end, one token after the other."""
    source_BS = torch.tensor([[*SOURCE_BEGIN, *pair.source.encode([source])[0], *SOURCE_END]])
    memory = model.encode(source_BS, torch.ones_like(source_BS, dtype=torch.bool))
    prefix, total = list(TARGET_BEGIN), 0.0
    for token in [*target, END]:
        logits_V = model.logits(model.decode(torch.tensor([prefix]), memory))[0, -1]
        total += float(logits_V.detach().double().log_softmax(0)[token])
        prefix.append(token)
    return total


def test_a_batch_holds_what_stands_around_a_text(pair: TokenizerPair, tmp_path: Path) -> None:
    [batch] = batches(pair, tmp_path).in_order()
    assert batch.source_tokens == int(batch.source_mask_BS.sum())
    assert batch.target_tokens == int(batch.target_mask_BT.sum())
    for row, index in enumerate(batch.indices):
        [source], [target] = (pair.source.encode([text]) for text in PAIRS[index])
        real_S, counted_T = batch.source_mask_BS[row], batch.target_mask_BT[row]
        assert batch.source_BS[row][real_S].tolist() == [*SOURCE_BEGIN, *source, *SOURCE_END]
        assert set(batch.source_BS[row][~real_S].tolist()) <= {0}
        length = len(TARGET_BEGIN) + len(target)
        assert batch.target_in_BT[row].tolist()[:length] == [*TARGET_BEGIN, *target]
        assert batch.target_out_BT[row].tolist()[:length] == [*TARGET_BEGIN[1:], *target, END]
        assert counted_T.tolist()[:length] == [False] * 2 + [True] * (len(target) + 1)
        for ids_T in (batch.target_in_BT[row], batch.target_out_BT[row]):
            assert set(ids_T[length:].tolist()) <= {0}
        assert not bool(counted_T[length:].any())


def test_a_batch_counts_it_in_its_budget(pair: TokenizerPair, tmp_path: Path) -> None:
    for batch in batches(pair, tmp_path, tokens=24).epoch(0):
        assert len(batch.indices) * max(batch.source_BS.shape[1], batch.target_in_BT.shape[1]) <= 24


def test_scores_and_the_loss_leave_out_what_is_forced(
    model: EncoderDecoder, pair: TokenizerPair, tmp_path: Path
) -> None:
    scores = list(score(model, pair, PAIRS))
    for found, (source, target) in zip(scores, PAIRS, strict=True):
        [ids] = pair.target.encode([target])
        assert found.tokens == len(ids) + 1
        assert found.log_probability == pytest.approx(probability(model, pair, source, ids), abs=1e-4)
    [batch] = batches(pair, tmp_path).in_order()
    with torch.no_grad():
        sums = translation_loss(model, batch, 0.0)
    assert float(sums.nll) == pytest.approx(-sum(found.log_probability for found in scores), abs=1e-3)
    assert sums.tokens == sum(found.tokens for found in scores)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_forces_the_begin_and_does_not_count_it(model: EncoderDecoder, pair: TokenizerPair, beam: int) -> None:
    settings = SearchSettings(beam=beam, nbest=beam, extra_tokens=5)
    sources = [source for source, _ in PAIRS]
    for source, found in zip(sources, translate(model, pair, sources, settings), strict=True):
        for candidate in found.candidates:
            if candidate.finished:
                expected = probability(model, pair, source, list(candidate.ids))
                assert candidate.log_probability == pytest.approx(expected, abs=1e-4)
            assert candidate.ids[:2] != TARGET_BEGIN[1:]


def test_the_longest_source_leaves_room_for_it(pair: TokenizerPair, caplog: pytest.LogCaptureFixture) -> None:
    values = {"d_model": 8, "d_ff": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_length": 12}
    values |= {"positions": "learned"}
    model = EncoderDecoder(ModelSettings.parse(values, "test"), pair.source.size, pair.target.size).eval()
    text = "1 2 3 4 5 6 7 8 9"
    [ids] = pair.source.encode([text])
    assert len(ids) > 12
    [found] = translate(model, pair, [text], SearchSettings(beam=1))
    assert found.shortened
    assert len(found.best.ids) <= 12 - 2
    assert f"has {len(ids)} tokens, of which the model can read 8" in caplog.text
