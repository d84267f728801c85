"""Marian, BART, mBART, M2M100 (NLLB), T5 and Whisper against `transformers`, in both directions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from parity.conversion import (
    Case,
    Conversion,
    foreign_logits,
    foreign_output,
    own_logits,
    own_output,
    pairs,
    reload,
)
from regard.convert import huggingface
from regard.convert.mapping import Ids
from regard.data.sound import log_mel
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

SIZES: dict[str, Any] = {
    "vocab_size": 29,
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_layers": 3,
    "decoder_layers": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 29,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 3,
    "num_decoder_layers": 2,  # the cache of transformers 5 is too small for more of them than of the encoder's
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
WHISPER = SIZES | {
    "num_mel_bins": 6,
    "max_source_positions": 10,
    "max_target_positions": 12,
    "pad_token_id": 27,
    "bos_token_id": 27,
    "eos_token_id": 27,
    "decoder_start_token_id": 28,
}
SPEECH = WHISPER | {"num_mel_bins": 80, "max_source_positions": 50}
LEADING = frozenset({"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"})
"""The first two rows, which nothing reads, are written as zeros."""


def own_matrix(model: Any) -> None:
    """T5 v1.1: an output matrix of its own."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.1)
    model.all_tied_weights_keys.pop("lm_head.weight")


CASES = [
    Case(
        "marian",
        "MarianMTModel",
        lambda: transformers.MarianConfig(
            **SIZES,
            pad_token_id=28,
            eos_token_id=0,
            decoder_start_token_id=28,
            scale_embedding=True,
            activation_function="swish",
        ),
    ),
    Case(
        "marian, two vocabularies",
        "MarianMTModel",
        lambda: transformers.MarianConfig(
            **SIZES,
            decoder_vocab_size=27,
            share_encoder_decoder_embeddings=False,
            pad_token_id=26,
            eos_token_id=0,
            decoder_start_token_id=26,
            activation_function="relu",
        ),
    ),
    Case("bart", "BartForConditionalGeneration", lambda: transformers.BartConfig(**SIZES), changed=LEADING),
    Case(
        "bart, untied",
        "BartForConditionalGeneration",
        lambda: transformers.BartConfig(
            **SIZES, tie_word_embeddings=False, scale_embedding=True, activation_function="gelu_new"
        ),
        changed=LEADING | {"model.shared.weight"},  # which nothing reads when nothing is tied
    ),
    Case(
        "mbart",
        "MBartForConditionalGeneration",
        lambda: transformers.MBartConfig(**SIZES, scale_embedding=True, decoder_start_token_id=2),
        changed=LEADING,
    ),
    Case("m2m_100", "M2M100ForConditionalGeneration", lambda: transformers.M2M100Config(**SIZES)),
    Case(
        "m2m_100, another padding",
        "M2M100ForConditionalGeneration",
        lambda: transformers.M2M100Config(**SIZES, pad_token_id=4, scale_embedding=False, activation_function="gelu"),
    ),
    Case("t5", "T5ForConditionalGeneration", lambda: transformers.T5Config(**T5)),
    Case(
        "t5, gated, own output matrix",
        "T5ForConditionalGeneration",
        lambda: transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        prepare=own_matrix,
    ),
    Case(
        "t5, tied but not scaled",
        "T5ForConditionalGeneration",
        lambda: transformers.T5Config(**T5, feed_forward_proj="gated-silu", tie_word_embeddings=False),
        changed=frozenset({"decoder.final_layer_norm.weight"}),  # where the scale goes that tied weights come with
        noise=0.05,
    ),
    Case("whisper", "WhisperForConditionalGeneration", lambda: transformers.WhisperConfig(**WHISPER)),
    Case(
        "whisper, untied",
        "WhisperForConditionalGeneration",
        lambda: transformers.WhisperConfig(**WHISPER, tie_word_embeddings=False, scale_embedding=True),
    ),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def conversion(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    torch.set_num_threads(1)
    return Conversion(request.param, tmp_path_factory.mktemp("conversion"))


def test_logits_are_theirs(conversion: Conversion) -> None:
    batch = pairs(conversion.foreign)
    theirs = foreign_logits(conversion.foreign, batch)
    assert theirs.std() > 0.1
    torch.testing.assert_close(own_logits(conversion.own, batch), theirs, rtol=0, atol=1e-5)
    for chunks in ((1,) * 6, (3, 1, 2)):
        torch.testing.assert_close(own_logits(conversion.own, batch, chunks), theirs, rtol=0, atol=1e-5)


def test_what_is_written_computes_the_same_in_transformers(conversion: Conversion) -> None:
    batch = pairs(conversion.foreign)
    theirs, back = foreign_logits(conversion.foreign, batch), foreign_logits(conversion.back, batch)
    torch.testing.assert_close(back, theirs, rtol=0, atol=1e-6 if conversion.case.changed else 0)


def test_weights_come_back_bit_for_bit(conversion: Conversion) -> None:
    assert conversion.changed == conversion.case.changed


@pytest.mark.parametrize("end", [True, False], ids=["to the end", "without end"])
@pytest.mark.parametrize("beam", [1, 4])
def test_searches_find_the_same(conversion: Conversion, beam: int, end: bool) -> None:
    batch = pairs(conversion.foreign)
    theirs = foreign_output(conversion.foreign, batch, beam, 7, end)
    assert own_output(conversion.own, batch, beam, 7, end) == theirs


def test_speech_is_written_as_transformers_writes_it(tmp_path: Path) -> None:
    """Waveform to tokens: frames, padding with silence, and search."""
    case = Case("whisper", "WhisperForConditionalGeneration", lambda: transformers.WhisperConfig(**SPEECH))
    conversion = Conversion(case, tmp_path)
    waveforms = [
        torch.rand(samples, generator=torch.Generator().manual_seed(samples)) - 0.5 for samples in (9000, 16000)
    ]
    extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    heard = extractor([waveform.numpy() for waveform in waveforms], sampling_rate=16_000, return_tensors="pt")
    batch = replace(pairs(conversion.foreign, (1, 1)), source=heard.input_features)
    theirs = foreign_logits(conversion.foreign, batch)

    ours = replace(batch, source=torch.stack([log_mel(waveform, 80, 100) for waveform in waveforms]))

    torch.testing.assert_close(own_logits(conversion.own, ours), theirs, rtol=0, atol=1e-4)
    assert (theirs[0] - theirs[1])[0].abs().max() > 1e-2
    expected = foreign_output(conversion.foreign, batch, 2, 7, False)
    assert own_output(conversion.own, ours, 2, 7, False) == expected


@pytest.mark.parametrize("changes", [{}, {"tie": "decoder"}, {"tie": "none", "feed_forward": "silu"}], ids=str)
def test_the_paper_s_model_is_a_marian(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {"d_model": 16, "d_ff": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 3, "max_length": 20}
    own = EncoderDecoder(ModelSettings.parse(settings | changes, "test"), 29, 29).eval()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    architecture = huggingface.write(tmp_path / "written", own, Ids(pad=0, bos=1, eos=2, start=1))
    theirs = reload("MarianMTModel", tmp_path / "written")
    batch = pairs(theirs)

    assert architecture.name == "marian"
    torch.testing.assert_close(own_logits(own, batch), foreign_logits(theirs, batch), rtol=0, atol=1e-5)
    assert own_output(own, batch, 3, 7, False) == foreign_output(theirs, batch, 3, 7, False)
