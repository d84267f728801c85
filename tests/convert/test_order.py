"""The same model with its dimensions in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.convert.order import sines_first
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder, EncoderDecoder

SMALL = {"d_model": 12, "d_ff": 20, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "max_length": 20}
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper": {},
    "untied": {"tie": "none"},
    "inputs tied": {"tie": "inputs", "embedding_norm": True},
    "pre": {"norm_placement": "pre", "output_bias": True, "tie": "decoder"},
    "everything": {
        "norm": "rms",
        "norm_placement": "both",
        "qk_norm": True,
        "kv_heads": 1,
        "d_key": 6,
        "feed_forward": "swiglu",
        "attention_bias": "in",
        "feed_forward_bias": False,
        "segments": 0,
    },
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_it_computes_the_same_with_the_sines_first(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(ModelSettings.parse(SMALL | changes, "test"), 17, 17).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    source, keys = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    target = torch.tensor([[1, 9, 10], [1, 11, 12]])

    other = sines_first(model)

    assert isinstance(other, EncoderDecoder)
    assert other.settings.sinusoids.layout == "halves"
    assert not torch.equal(other.output, model.output)
    with torch.inference_mode():
        expected = model.logits(model(source, keys, target))
        torch.testing.assert_close(other.logits(other(source, keys, target)), expected, rtol=0, atol=1e-5)
    assert other.output.shape == model.output.shape
    assert len(list(other.parameters())) == len(list(model.parameters()))


def test_what_has_no_such_sinusoids_stays_as_it_is() -> None:
    learned = EncoderDecoder(ModelSettings.parse(SMALL | {"positions": "learned"}, "test"), 17, 17)
    decoder = CausalDecoder(ModelSettings.parse(SMALL, "test"), 17)
    assert sines_first(learned) is learned
    assert sines_first(decoder) is decoder
    once = sines_first(EncoderDecoder(ModelSettings.parse(SMALL, "test"), 17, 17))
    assert sines_first(once) is once
