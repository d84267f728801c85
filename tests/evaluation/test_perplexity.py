"""Perplexity of long text by a sliding window, against a plain loop over its tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import JobError, UserError
from regard.evaluation.perplexity import _slide, perplexity
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder
from regard.text.tokenizer import Tokenizer, TokenizerSettings

TEXT = "the quick brown fox jumps over the lazy dög\nand the dog looks on, for 42 years"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn([TEXT] * 3, TokenizerSettings(size=280))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> CausalDecoder:
    torch.manual_seed(0)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "decoder_layers": 2, "dropout": 0.5, "max_length": 64}
    model = CausalDecoder(ModelSettings.parse(values, "test"), tokenizer.size).eval()
    with torch.no_grad():
        model.output *= 3
    return model


def by_loop(model: CausalDecoder, ids: list[int], context: int, stride: int) -> tuple[float, int]:
    """The guide's loop: each window scores the tokens that no window before it has reached."""
    nll, scored, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        for place in range(max(previous, begin + 1), end):
            logits = model.logits(model.decode(torch.tensor([ids[begin:place]]))[0, -1])
            nll -= float(logits.log_softmax(dim=-1)[ids[place]])
            scored += 1
        previous = end
        if end == len(ids):
            break
    return nll, scored


@pytest.mark.parametrize(("context", "stride"), [(2, 1), (5, 1), (5, 4), (16, 8), (17, 5), (64, 32), (None, None)])
@pytest.mark.parametrize("rows", [1, 3])
def test_it_is_that_of_the_plain_loop(
    model: CausalDecoder, tokenizer: Tokenizer, context: int | None, stride: int | None, rows: int
) -> None:
    ids = [tokenizer.bos, *tokenizer.encode([TEXT])[0]]
    assert None not in ids
    with torch.inference_mode():
        nll, tokens = by_loop(model, ids, context or 64, stride or 32)
    found = perplexity(model, tokenizer, TEXT, context=context, stride=stride, rows=rows)
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert found.tokens == tokens == len(ids) - 1


def test_per_token_per_character_and_per_byte(model: CausalDecoder, tokenizer: Tokenizer) -> None:
    found = perplexity(model, tokenizer, TEXT, context=16)
    assert (found.characters, found.bytes) == (len(TEXT), len(TEXT) + 1)
    assert found.per_token == pytest.approx(math.exp(found.nll / found.tokens))
    assert found.per_character == pytest.approx(math.exp(found.nll / len(TEXT)))
    assert found.bits_per_byte == pytest.approx(found.nll / math.log(2) / (len(TEXT) + 1))


@given(st.integers(1, 60), st.integers(2, 12), st.data())
def test_each_token_is_scored_once_with_enough_before_it(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    windows = list(_slide(length, 1, context, stride))
    scored = [place for window in windows for place in range(window.first, window.end)]
    assert scored == list(range(1, length))
    for number, window in enumerate(windows):
        assert window.end - window.begin <= context
        assert window.first - window.begin >= (context - stride if number else 1)


def test_the_stride_matters(model: CausalDecoder, tokenizer: Tokenizer) -> None:
    found = [perplexity(model, tokenizer, TEXT, context=20, stride=stride).nll for stride in (1, 10, 19)]
    assert len({round(nll, 3) for nll in found}) == 3


def test_an_empty_text_has_nothing_to_score(model: CausalDecoder, tokenizer: Tokenizer) -> None:
    found = perplexity(model, tokenizer, "")
    assert found.tokens <= 1  # the space in front of a line may be one
    assert math.isnan(found.bits_per_byte)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context": 65}, "context: 65 is not between 2 and 64"),
        ({"context": 1}, "context: 1 is not between 2 and 64"),
        ({"context": 8, "stride": 8}, "stride: 8 is not between 1 and 7"),
        ({"stride": 0}, "stride: 0 is not between 1 and 63"),
    ],
)
def test_windows_that_cannot_be_are_refused(
    model: CausalDecoder, tokenizer: Tokenizer, values: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        perplexity(model, tokenizer, TEXT, **values)


def test_a_damaged_model_is_named(tokenizer: Tokenizer) -> None:
    values = {"d_model": 8, "d_ff": 8, "heads": 1, "decoder_layers": 1, "max_length": 64}
    model = CausalDecoder(ModelSettings.parse(values, "test"), tokenizer.size).eval()
    with torch.no_grad():
        model.output[0] = math.nan
    with pytest.raises(JobError, match="NaN or infinite"):
        perplexity(model, tokenizer, TEXT)
