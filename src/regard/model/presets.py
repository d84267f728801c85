"""Named models: the paper's, each row of its Table 3 by its letter, and small ones for small data.

A preset is a set of model settings, and what of the training belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import UserError
from regard.model.settings import ModelSettings, PatchSettings


@dataclass(frozen=True)
class Preset:
    """A named model."""

    model: ModelSettings
    about: str
    family: Literal["encoder-decoder", "causal-decoder", "encoder"] = "encoder-decoder"
    label_smoothing: float = 0.1
    printed_millions: int | None = None
    """The number of parameters (10^6) that Table 3 prints, where it prints one."""


def _row(about: str, printed: int | None = None, label_smoothing: float = 0.1, **changes: object) -> Preset:
    """A row of Table 3: the base model with some values changed."""
    model = ModelSettings.model_validate(changes)
    return Preset(model, f"Table 3 {about}", label_smoothing=label_smoothing, printed_millions=printed)


def _translator(about: str, **settings: object) -> Preset:
    layout = {"heads": 4, "encoder_layers": 4, "decoder_layers": 4, "positions": "rotary", "norm_placement": "pre"}
    return Preset(ModelSettings.model_validate({**layout, **settings}), f"{about}, rotary positions, pre-norm")


def _decoder(about: str, **settings: object) -> Preset:
    model = ModelSettings.model_validate({"tie": "decoder", **settings})
    return Preset(model, about, "causal-decoder", label_smoothing=0.0)


def _modern(about: str, *, layers: int, **settings: object) -> Preset:
    """What decoders have come to since: rotary positions, RMSNorm, SwiGLU, normalised queries and keys, no biases."""
    return _decoder(
        f"{about}: rotary positions, RMSNorm, SwiGLU, QK-norm",
        decoder_layers=layers,
        positions="rotary",
        norm="rms",
        norm_placement="pre",
        qk_norm=True,
        feed_forward="swiglu",
        feed_forward_bias=False,
        attention_bias="none",
        **settings,
    )


def _encoder(about: str, *, layers: int, **settings: object) -> Preset:
    values = {"tie": "decoder", "norm_placement": "pre", "feed_forward": "gelu", "positions": "rotary", **settings}
    model = ModelSettings.model_validate({"encoder_layers": layers, **values})
    return Preset(model, f"an encoder {about}: rotary positions, pre-norm", "encoder", label_smoothing=0.0)


PRESETS: dict[str, Preset] = {
    "paper-base": _row("base: N=6, d_model=512, d_ff=2048, h=8", 65),
    "paper-big": _row(
        "big: d_model=1024, d_ff=4096, h=16, dropout 0.3", 213, d_model=1024, d_ff=4096, heads=16, dropout=0.3
    ),
    "paper-A1": _row("(A): h=1, d_k=d_v=512", heads=1, d_key=512, d_value=512),
    "paper-A2": _row("(A): h=4, d_k=d_v=128", heads=4, d_key=128, d_value=128),
    "paper-A3": _row("(A): h=16, d_k=d_v=32", heads=16, d_key=32, d_value=32),
    "paper-A4": _row("(A): h=32, d_k=d_v=16", heads=32, d_key=16, d_value=16),
    "paper-B1": _row("(B): d_k=16", 58, d_key=16),
    "paper-B2": _row("(B): d_k=32", 60, d_key=32),
    "paper-C1": _row("(C): N=2", 36, encoder_layers=2, decoder_layers=2),
    "paper-C2": _row("(C): N=4", 50, encoder_layers=4, decoder_layers=4),
    "paper-C3": _row("(C): N=8", 80, encoder_layers=8, decoder_layers=8),
    "paper-C4": _row("(C): d_model=256, d_k=d_v=32", 28, d_model=256, d_key=32, d_value=32),
    "paper-C5": _row("(C): d_model=1024, d_k=d_v=128", 168, d_model=1024, d_key=128, d_value=128),
    "paper-C6": _row("(C): d_ff=1024", 53, d_ff=1024),
    "paper-C7": _row("(C): d_ff=4096", 90, d_ff=4096),
    "paper-D1": _row("(D): dropout 0.0", dropout=0.0),
    "paper-D2": _row("(D): dropout 0.2", dropout=0.2),
    "paper-D3": _row("(D): label smoothing 0.0", label_smoothing=0.0),
    "paper-D4": _row("(D): label smoothing 0.2", label_smoothing=0.2),
    "paper-E": _row("(E): learned positions in place of sinusoids", positions="learned"),
    "tiny": _translator(
        "the size that is best on 30,000 captions (Wu et al. 2021, Transformer-Tiny)",
        d_model=128,
        d_ff=256,
        dropout=0.3,
    ),
    "small": _translator("for some 100,000 pairs: between tiny and base", d_model=256, d_ff=1024, dropout=0.2),
    "nanogpt-cpu": _decoder(
        "nanoGPT's configuration for a CPU: that of GPT-2, small, without biases",
        d_model=128,
        d_ff=512,
        heads=4,
        decoder_layers=4,
        max_length=64,
        positions="learned",
        embedding_scale=1.0,
        norm_placement="pre",
        feed_forward="gelu",
        feed_forward_bias=False,
        attention_bias="none",
        dropout=0.0,
    ),
    "tiny-lm": _modern("for some 100,000 words", d_model=128, d_ff=344, heads=4, layers=4, max_length=256, dropout=0.1),
    "small-lm": _modern(
        "for some million words", d_model=256, d_ff=688, heads=4, layers=6, max_length=512, dropout=0.1
    ),
    "base-lm": _modern("the size of GPT-2", d_model=768, d_ff=2048, heads=12, layers=12, max_length=1024, dropout=0.0),
    "tiny-encoder": _encoder("for some 100,000 words", d_model=128, d_ff=512, heads=4, layers=4, max_length=512),
    "small-encoder": _encoder("for some million words", d_model=256, d_ff=1024, heads=4, layers=6, max_length=512),
    "bert-base": Preset(
        ModelSettings(
            d_model=768,
            d_ff=3072,
            heads=12,
            encoder_layers=12,
            max_length=512,
            positions="learned",
            embedding_scale=1.0,
            embedding_norm=True,
            segments=2,
            norm_epsilon=1e-12,
            feed_forward="gelu",
            attention_dropout=0.1,
            tie="decoder",
        ),
        "BERT's base model (Devlin et al. 2019)",
        "encoder",
        label_smoothing=0.0,
    ),
    "digits": Preset(
        ModelSettings(
            d_model=64,
            d_ff=128,
            heads=4,
            encoder_layers=4,
            input="patches",
            patches=PatchSettings(height=8, width=8, size=2, channels=1),
            positions="learned",
            max_length=17,
            embedding_scale=1.0,
            norm_placement="pre",
            feed_forward="gelu",
            tie="none",
        ),
        "a vision transformer for images of 8 x 8 pixels",
        "encoder",
    ),
}


def preset(name: str) -> Preset:
    """The preset of this name; an unknown one raises `UserError` listing all."""
    if name not in PRESETS:
        raise UserError(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
    return PRESETS[name]
