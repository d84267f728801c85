"""The encoder-decoders that share BART's names: Marian, BART, mBART and M2M100 (NLLB).

Sources: Junczys-Dowmunt et al. 2018 (arXiv 1804.00344), Lewis et al. 2019 (arXiv 1910.13461), Liu et al. 2020 (arXiv
2001.08210), Fan et al. 2020 (arXiv 2010.11125), NLLB Team 2022 (arXiv 2207.04672).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from regard.convert.activations import PLAIN, words
from regard.convert.config import Config
from regard.convert.mapping import (
    FLAT,
    Architecture,
    Blueprint,
    Ids,
    InexpressibleError,
    Row,
    attention,
    linear,
    repeated,
    row,
    without_leading,
    word_for,
)
from regard.model.settings import ModelSettings

OFFSET = 2
"""Learned positions begin with this many rows that nothing reads (a legacy of padding)."""

SHARED = "model.shared.weight"
SOURCE, TARGET, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class _Kind:
    """How a member of the family differs from the others."""

    name: str
    about: str
    writes: str
    """Its class in transformers."""
    pre: bool
    """Normalisation before each sub-layer and at the end of a stack, or after each."""
    embedding_norm: bool
    learned: bool
    spacing: str = "paper"
    """Of sinusoids."""
    logits_bias: bool = True
    vocabulary: int = 50265
    activation: str = "gelu"
    scale_embedding: bool = False
    ids: Ids = field(default_factory=lambda: Ids(pad=1, bos=0, eos=2, start=2))
    dropout: tuple[float, float, float] = (0.1, 0.0, 0.0)


KINDS = (
    _Kind(
        "marian",
        "Marian's translation models (OPUS-MT)",
        "MarianMTModel",
        pre=False,
        embedding_norm=False,
        learned=False,
        vocabulary=58101,
        ids=Ids(pad=58100, eos=0, start=58100),
    ),
    _Kind("bart", "BART", "BartForConditionalGeneration", pre=False, embedding_norm=True, learned=True),
    _Kind(
        "mbart",
        "mBART and mBART-50",
        "MBartForConditionalGeneration",
        pre=True,
        embedding_norm=True,
        learned=True,
        ids=Ids(pad=1, bos=0, eos=2),
    ),
    _Kind(
        "m2m_100",
        "M2M100 and NLLB",
        "M2M100ForConditionalGeneration",
        pre=True,
        embedding_norm=False,
        learned=False,
        spacing="inclusive",
        logits_bias=False,
        vocabulary=128112,
        activation="relu",
        scale_embedding=True,
        dropout=(0.1, 0.1, 0.0),
    ),
)


def _settings(kind: _Kind, config: Config, names: Collection[str]) -> Blueprint:
    ids = Ids(
        pad=config.token("pad_token_id", kind.ids.pad),
        bos=config.token("bos_token_id", kind.ids.bos),
        eos=config.token("eos_token_id", kind.ids.eos),
        start=config.token("decoder_start_token_id", kind.ids.start),
    )
    source = config.integer("vocab_size", kind.vocabulary)
    target, shared = source, True
    if kind.name == "marian":
        shared = config.flag("share_encoder_decoder_embeddings", True)
        if not shared:
            target = config.integer("decoder_vocab_size", source)
        elif config.integer("decoder_vocab_size", source) != source:
            config.refuse("decoder_vocab_size other than vocab_size though embeddings are shared")
    tied = config.flag("tie_word_embeddings", True)
    refuse_unlike_sides(config)
    for key, value in (
        ("normalize_before", kind.pre),
        ("add_final_layer_norm", kind.pre),
        ("normalize_embedding", kind.embedding_norm),
        ("static_position_embeddings", not kind.learned),
        ("add_bias_logits", False),
        ("extra_pos_embeddings", OFFSET),
        ("is_decoder", False),
        ("is_encoder_decoder", True),
    ):
        config.expect(key, value)
    dropout, attention_dropout, activation_dropout = kind.dropout
    # M2M100's positions begin behind the padding token's number.
    first = 0 if kind.spacing == "paper" else (ids.pad or 0) + 1
    values: dict[str, Any] = {
        "d_model": config.integer("d_model", 1024),
        "d_ff": config.integer("encoder_ffn_dim", 4096),
        "heads": config.integer("encoder_attention_heads", 16),
        "encoder_layers": config.integer("encoder_layers", 12),
        "decoder_layers": config.integer("decoder_layers", 12),
        "positions": "learned" if kind.learned else "sinusoidal",
        "sinusoids": {} if kind.learned else {"layout": "halves", "spacing": kind.spacing, "first": first},
        "max_length": config.integer("max_position_embeddings", 1024),
        "embedding_scale": None if config.flag("scale_embedding", kind.scale_embedding) else 1.0,
        "embedding_norm": kind.embedding_norm,
        "norm_placement": "pre" if kind.pre else "post",
        "feed_forward": config.choice("activation_function", PLAIN, kind.activation),
        "output_bias": kind.logits_bias,
        "dropout": config.number("dropout", dropout),
        "attention_dropout": config.number("attention_dropout", attention_dropout),
        "activation_dropout": config.number("activation_dropout", activation_dropout),
        "tie": ("all" if shared else "decoder") if tied else "none",
    }
    return Blueprint("encoder-decoder", ModelSettings.parse(values, config.origin), source, target, ids=ids)


def refuse_unlike_sides(config: Config) -> None:
    """One setting serves both sides; a checkpoint whose sides differ is not supported."""
    config.equal("encoder_ffn_dim", "decoder_ffn_dim")
    config.equal("encoder_attention_heads", "decoder_attention_heads")
    config.equal("encoder_layers", "num_hidden_layers")


def _config(kind: _Kind, plan: Blueprint) -> dict[str, Any]:
    s = plan.settings
    if plan.source is None:
        raise InexpressibleError(f"input = {s.input}")
    ids, counted = plan.ids, kind.spacing == "inclusive"
    if counted and ids.pad not in (None, s.sinusoids.first - 1):
        raise InexpressibleError(f"sinusoids.first = {s.sinusoids.first} where padding is {ids.pad}")
    scales = {1.0: False, s.d_model**0.5: True}
    values = {
        "architectures": [kind.writes],
        "is_encoder_decoder": True,
        "vocab_size": plan.source,
        "d_model": s.d_model,
        "encoder_ffn_dim": s.d_ff,
        "decoder_ffn_dim": s.d_ff,
        "encoder_attention_heads": s.heads,
        "decoder_attention_heads": s.heads,
        "encoder_layers": s.encoder_layers,
        "decoder_layers": s.decoder_layers,
        "num_hidden_layers": s.encoder_layers,
        "max_position_embeddings": s.max_length,
        "scale_embedding": word_for(scales, s.embedding_scale or s.d_model**0.5, "embedding_scale"),
        "activation_function": word_for(words(PLAIN), s.feed_forward, "feed_forward"),
        "dropout": s.dropout,
        "attention_dropout": s.attention_dropout,
        "activation_dropout": s.activation_dropout,
        "tie_word_embeddings": s.tie != "none",
        "pad_token_id": s.sinusoids.first - 1 if counted else ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "decoder_start_token_id": ids.start,
        "forced_eos_token_id": None,
    }
    if kind.name == "marian":
        values |= {"decoder_vocab_size": plan.target, "share_encoder_decoder_embeddings": s.tie == "all"}
    return values


def _rows(kind: _Kind, plan: Blueprint) -> list[Row]:
    s = plan.settings
    rows = _embeddings(kind, s)
    if kind.logits_bias:
        rows.append(row("output_bias", "final_logits_bias", by=FLAT, optional=True))
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        if kind.learned:
            rows.append(
                row(
                    f"{ours}_embedding.positions.weight",
                    f"model.{theirs}.embed_positions.weight",
                    by=without_leading(OFFSET),
                )
            )
        if kind.embedding_norm:
            rows += linear(f"{ours}_embedding.norm", f"model.{theirs}.layernorm_embedding")
        if kind.pre:
            rows += linear(f"{theirs}_norm", f"model.{theirs}.layer_norm")
    return rows + stacks(s)


def _embeddings(kind: _Kind, s: ModelSettings) -> list[Row]:
    source, target = "source_embedding.weight", "target_embedding.weight"
    if s.tie == "all":
        return [row(source, SHARED, tied=(SOURCE, TARGET, OUTPUT))]
    if s.tie == "decoder":
        return [row(source, SOURCE), row(target, TARGET, tied=(OUTPUT,))]
    left_over = [] if kind.name == "marian" else [row(source, SHARED, unused=True)]
    return [row(source, SOURCE, instead=SHARED), row(target, TARGET, instead=SHARED), row("output", OUTPUT), *left_over]


def stacks(s: ModelSettings, key_bias: bool = True) -> list[Row]:
    """The layers of both stacks."""
    own = [
        *attention(s, "self_attention", "self_attn", key_bias=key_bias),
        *linear("self_attention_residual.norm", "self_attn_layer_norm"),
        *linear("feed_forward.expand", "fc1"),
        *linear("feed_forward.contract", "fc2"),
        *linear("feed_forward_residual.norm", "final_layer_norm"),
    ]
    memory = [
        *attention(s, "memory_attention", "encoder_attn", key_bias=key_bias),
        *linear("memory_attention_residual.norm", "encoder_attn_layer_norm"),
    ]
    return [
        *repeated(s.encoder_layers, "encoder.{}.", "model.encoder.layers.{}.", own),
        *repeated(s.decoder_layers, "decoder.{}.", "model.decoder.layers.{}.", own + memory),
    ]


BART_FAMILY = tuple(
    Architecture(
        name=kind.name,
        about=kind.about,
        prefix="model.",
        settings=partial(_settings, kind),
        config=partial(_config, kind),
        rows=partial(_rows, kind),
        family="encoder-decoder",
        harmless=frozenset({"force_bos_token_to_be_generated", "use_scan", "output_past", "save_step"}),
        computed=()
        if kind.learned
        else (r"model\.(encoder|decoder)\.embed_positions\.weights?", r"model\.shared\.weight"),
    )
    for kind in KINDS
)
