"""T5, T5 v1.1 and Flan-T5 (Raffel et al. 2019, arXiv 1910.10683; Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from regard.convert.activations import GATED, PLAIN, words
from regard.convert.config import Config
from regard.convert.mapping import (
    SAME,
    Architecture,
    Blueprint,
    Ids,
    InexpressibleError,
    Row,
    attention,
    repeated,
    row,
    scaled,
    stacked,
    word_for,
)
from regard.model.settings import ModelSettings

# Their "gated-gelu" is the approximation by tanh, whatever their "gelu" is elsewhere.
FEED_FORWARD = PLAIN | {f"gated-{theirs}": ours for theirs, ours in GATED.items()} | {"gated-gelu": "geglu-tanh"}
WORDS = words(FEED_FORWARD) | {"geglu-tanh": "gated-gelu"}

SCALED = "scaled"
"""The variant whose last hidden states are multiplied by d_model^-0.5 (the first T5, whose output matrix is that of the
input). Ours has that factor in the weight of the last normalisation."""


def _settings(config: Config, names: Collection[str]) -> Blueprint:
    ids = Ids(
        pad=config.token("pad_token_id", 0),
        bos=config.token("bos_token_id"),
        eos=config.token("eos_token_id", 1),
        start=config.token("decoder_start_token_id", 0),
    )
    tied = config.flag("tie_word_embeddings", True)
    shrunk = config.flag("scale_decoder_outputs", tied)
    # Newer releases always say that embeddings are tied, and store an output matrix if there is one.
    separate = "lm_head.weight" in names and not (tied and "scale_decoder_outputs" not in config)
    config.expect("is_encoder_decoder", True)
    config.expect("is_decoder", False)
    layers = config.integer("num_layers", 6)
    dropout = config.number("dropout_rate", 0.1)
    vocabulary = config.integer("vocab_size", 32128)
    values: dict[str, Any] = {
        "d_model": config.integer("d_model", 512),
        "d_ff": config.integer("d_ff", 2048),
        "heads": config.integer("num_heads", 8),
        "d_key": config.integer("d_kv", 64),
        "d_value": config.integer("d_kv", 64),
        "encoder_layers": layers,
        "decoder_layers": config.integer("num_decoder_layers", layers),
        "positions": "t5",
        "buckets": {
            "count": config.integer("relative_attention_num_buckets", 32),
            "max_distance": config.integer("relative_attention_max_distance", 128),
        },
        "max_length": config.integer("n_positions", 512),
        "embedding_scale": 1.0,
        "norm": "rms",
        "norm_placement": "pre",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-6),
        "feed_forward": config.choice("feed_forward_proj", FEED_FORWARD, "relu"),
        "feed_forward_bias": False,
        "attention_bias": "none",
        "attention_scale": 1.0,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "tie": "inputs" if separate else "all",
    }
    settings = ModelSettings.parse(values, config.origin)
    return Blueprint("encoder-decoder", settings, vocabulary, vocabulary, None, ids, SCALED if shrunk else "")


def _config(plan: Blueprint) -> dict[str, Any]:
    s = plan.settings
    if plan.source is None:
        raise InexpressibleError(f"input = {s.input}")
    tied = word_for({"all": True, "inputs": False}, s.tie, "tie")
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": plan.source,
        "d_model": s.d_model,
        "d_ff": s.d_ff,
        "d_kv": s.key_width,
        "num_heads": s.heads,
        "num_layers": s.encoder_layers,
        "num_decoder_layers": s.decoder_layers,
        "relative_attention_num_buckets": s.buckets.count,
        "relative_attention_max_distance": s.buckets.max_distance,
        "n_positions": s.max_length,
        "layer_norm_epsilon": s.norm_epsilon,
        "feed_forward_proj": word_for(WORDS, s.feed_forward, "feed_forward"),
        "dropout_rate": s.dropout,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "pad_token_id": plan.ids.pad,
        "bos_token_id": plan.ids.bos,
        "eos_token_id": plan.ids.eos,
        "decoder_start_token_id": plan.ids.start,
    }


def _rows(plan: Blueprint) -> list[Row]:
    s = plan.settings
    source, target, output = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"
    if s.tie == "all":
        rows = [row("source_embedding.weight", "shared.weight", tied=(source, target, output))]
    else:
        rows = [row("source_embedding.weight", "shared.weight", tied=(source, target)), row("output", output)]
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        place = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows.append(row(f"{ours}_embedding.positions.weight", place))
    last = scaled(s.d_model**-0.5) if plan.variant == SCALED else SAME
    rows += [
        row("encoder_norm.weight", "encoder.final_layer_norm.weight"),
        row("decoder_norm.weight", "decoder.final_layer_norm.weight", by=last),
    ]
    own, memory = _attention(s, 0, "self", "SelfAttention"), _attention(s, 1, "memory", "EncDecAttention")
    return [
        *rows,
        *repeated(s.encoder_layers, "encoder.{}.", "encoder.block.{}.layer.", own + _feed_forward(s, 1)),
        *repeated(s.decoder_layers, "decoder.{}.", "decoder.block.{}.layer.", own + memory + _feed_forward(s, 2)),
    ]


def _attention(s: ModelSettings, place: int, ours: str, theirs: str) -> list[Row]:
    return [
        *attention(s, f"{ours}_attention", f"{place}.{theirs}", ("q", "k", "v"), "o"),
        row(f"{ours}_attention_residual.norm.weight", f"{place}.layer_norm.weight"),
    ]


def _feed_forward(s: ModelSettings, place: int) -> list[Row]:
    theirs = f"{place}.DenseReluDense"
    gated = s.feed_forward in GATED.values()
    expand = [f"{theirs}.wi_0.weight", f"{theirs}.wi_1.weight"] if gated else [f"{theirs}.wi.weight"]
    return [
        row("feed_forward.expand.weight", *expand, by=stacked(*[s.d_ff] * len(expand))),
        row("feed_forward.contract.weight", f"{theirs}.wo.weight"),
        row("feed_forward_residual.norm.weight", f"{place}.layer_norm.weight"),
    ]


T5 = Architecture(
    name="t5",
    about="T5, T5 v1.1, Flan-T5",
    prefix="",
    settings=_settings,
    config=_config,
    rows=_rows,
    family="encoder-decoder",
    # The first two say again what feed_forward_proj says.
    harmless=frozenset({"dense_act_fn", "is_gated_act", "output_past"}),
    computed=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
