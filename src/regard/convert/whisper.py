"""Whisper: an encoder over sound, a decoder that writes text (Radford et al. 2022, arXiv 2212.04356)."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from regard.convert.activations import PLAIN
from regard.convert.bart import refuse_unlike_sides, stacks
from regard.convert.config import Config
from regard.convert.mapping import Architecture, Blueprint, Ids, InexpressibleError, Row, linear, row, word_for
from regard.data.sound import HOP, RATE, WINDOW
from regard.model.settings import ModelSettings
from regard.settings import read_json
from regard.text.lines import atomic_write

GELU = {theirs: ours for theirs, ours in PLAIN.items() if ours == "gelu"}
"""The convolutions share the activation of the layers, and ours have this one."""


def _settings(config: Config, names: Collection[str]) -> Blueprint:
    ids = Ids(
        pad=config.token("pad_token_id", 50256),
        bos=config.token("bos_token_id", 50256),
        eos=config.token("eos_token_id", 50256),
        start=config.token("decoder_start_token_id", 50257),
    )
    refuse_unlike_sides(config)
    config.expect("is_encoder_decoder", True)
    values: dict[str, Any] = {
        "d_model": config.integer("d_model", 384),
        "d_ff": config.integer("encoder_ffn_dim", 1536),
        "heads": config.integer("encoder_attention_heads", 6),
        "encoder_layers": config.integer("encoder_layers", 4),
        "decoder_layers": config.integer("decoder_layers", 4),
        "positions": "learned",
        "max_length": config.integer("max_target_positions", 448),
        "source_max_length": config.integer("max_source_positions", 1500),
        "input": "frames",
        "frames": {"bins": config.integer("num_mel_bins", 80)},
        "embedding_scale": 1.0,
        "norm_placement": "pre",
        "feed_forward": config.choice("activation_function", GELU, "gelu"),
        "dropout": config.number("dropout", 0.0),
        "attention_dropout": config.number("attention_dropout", 0.0),
        "activation_dropout": config.number("activation_dropout", 0.0),
        "tie": "decoder" if config.flag("tie_word_embeddings", True) else "none",
    }
    vocabulary = config.integer("vocab_size", 51865)
    return Blueprint("encoder-decoder", ModelSettings.parse(values, config.origin), None, vocabulary, ids=ids)


def _config(plan: Blueprint) -> dict[str, Any]:
    s = plan.settings
    if s.input != "frames":
        raise InexpressibleError(f"input = {s.input}")
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": plan.target,
        "num_mel_bins": s.frames.bins,
        "d_model": s.d_model,
        "encoder_ffn_dim": s.d_ff,
        "decoder_ffn_dim": s.d_ff,
        "encoder_attention_heads": s.heads,
        "decoder_attention_heads": s.heads,
        "encoder_layers": s.encoder_layers,
        "decoder_layers": s.decoder_layers,
        "num_hidden_layers": s.encoder_layers,
        "max_source_positions": s.source_reach,
        "max_target_positions": s.max_length,
        "scale_embedding": word_for({1.0: False}, s.embedding_scale, "embedding_scale"),
        "activation_function": word_for({"gelu": "gelu"}, s.feed_forward, "feed_forward"),
        "dropout": s.dropout,
        "attention_dropout": s.attention_dropout,
        "activation_dropout": s.activation_dropout,
        "tie_word_embeddings": s.tie == "decoder",
        "pad_token_id": plan.ids.pad,
        "bos_token_id": plan.ids.bos,
        "eos_token_id": plan.ids.eos,
        "decoder_start_token_id": plan.ids.start,
        "begin_suppress_tokens": None,
    }


def _rows(plan: Blueprint) -> list[Row]:
    s = plan.settings
    matrix, output = "model.decoder.embed_tokens.weight", "proj_out.weight"
    if s.tie == "decoder":
        rows = [row("target_embedding.weight", matrix, tied=(output,))]
    else:
        rows = [row("target_embedding.weight", matrix), row("output", output)]
    for number, theirs in enumerate(("conv1", "conv2")):
        rows += linear(f"source_embedding.convolutions.{number}", f"model.encoder.{theirs}")
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        rows.append(row(f"{ours}_embedding.positions.weight", f"model.{theirs}.embed_positions.weight"))
        rows += linear(f"{theirs}_norm", f"model.{theirs}.layer_norm")
    return rows + stacks(s, key_bias=False)


WHISPER = Architecture(
    name="whisper",
    about="Whisper, transcription of speech",
    prefix="model.",
    settings=_settings,
    config=_config,
    rows=_rows,
    family="encoder-decoder",
    # Augmentation of training data, what a search or a classifier is told, and a scale that their code never uses.
    harmless=frozenset(
        {
            "apply_spec_augment",
            "mask_time_prob",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_feature_prob",
            "mask_feature_length",
            "mask_feature_min_masks",
            "median_filter_width",
            "forced_decoder_ids",
            "alignment_heads",
            "scale_embedding",
            "use_weighted_layer_sum",
            "classifier_proj_size",
        }
    ),
)


FRAMES = "preprocessor_config.json"
_LIKE_OURS = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW, "padding_value": 0.0, "dither": 0.0}


def refuse_other_frames(directory: Path, settings: ModelSettings) -> None:
    """Raise `UserError` if a directory says that its model hears other frames than those of `regard.data.sound`."""
    path = directory / FRAMES
    if path.is_file():
        config = Config(read_json(path), str(path))
        config.expect("feature_extractor_type", "WhisperFeatureExtractor")
        config.expect("feature_size", settings.frames.bins)
        config.expect("do_normalize", False)
        for key, value in _LIKE_OURS.items():
            config.expect(key, value)
        config.finish(config.values)


def write_frames(directory: Path, settings: ModelSettings) -> None:
    """Write what `transformers` makes a model's frames by."""
    seconds = 2 * settings.source_reach * HOP / RATE
    values = _LIKE_OURS | {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": settings.frames.bins,
        "chunk_length": round(seconds) if seconds == round(seconds) else seconds,
    }
    with atomic_write(directory / FRAMES) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())
