"""ViT, the vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929): a table of its names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from regard.convert.activations import PLAIN, words
from regard.convert.config import Config, label_names
from regard.convert.mapping import (
    FLAT_TOKEN,
    Architecture,
    Blueprint,
    InexpressibleError,
    Operation,
    Row,
    attention,
    linear,
    repeated,
    row,
    word_for,
)
from regard.model.settings import HeadSettings, ModelSettings

_BATCH_OF_ONE = Operation(lambda theirs: theirs[0][0], lambda ours: [ours[None]])

_HEADS: Mapping[str, bool] = {"ViTForImageClassification": True, "ViTModel": False}
"""Whether a class gives labels."""


def _settings(config: Config, names: Collection[str]) -> Blueprint:
    height, width = _pair(config, "image_size", 224)
    size, other = _pair(config, "patch_size", 16)
    if size != other:
        config.refuse(f"patch_size = {size}, {other} (patches are square here)")
    layers, biased = config.integer("num_hidden_layers"), any(name.endswith("query.bias") for name in names)
    if config.flag("qkv_bias", True) != biased and layers:
        config.refuse(f"qkv_bias where the file has {'such' if biased else 'no such'} biases")
    values = {
        "d_model": config.integer("hidden_size"),
        "d_ff": config.integer("intermediate_size"),
        "heads": config.integer("num_attention_heads"),
        "encoder_layers": layers,
        "positions": "learned",
        "input": "patches",
        "patches": {"height": height, "width": width, "size": size, "channels": config.integer("num_channels", 3)},
        "norm_placement": "pre",
        "norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "feed_forward": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.number("hidden_dropout_prob", 0.0),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.0),
        "tie": "none",
    }
    written = next(iter(config.words("architectures")), "ViTModel")
    if written not in _HEADS:
        config.refuse(f"architectures = {written} (supported: {', '.join(_HEADS)})")
    config.expect("problem_type", None, "single_label_classification")
    labelled = _HEADS.get(written, False)
    head = HeadSettings(kind="text", labels=config.labels(), pooler=False) if labelled else None
    return Blueprint("encoder", ModelSettings.parse(values, config.origin), head=head)


def _pair(config: Config, key: str, default: int) -> tuple[int, int]:
    """Height and width, which a configuration may give as one number."""
    match config.values.get(key):
        case [int() as height, int() as width]:
            config.expect(key, [height, width])
            return height, width
    side = config.integer(key, default)
    return side, side


def _config(plan: Blueprint) -> dict[str, Any]:
    s, head = plan.settings, plan.head
    if s.input != "patches":
        raise InexpressibleError(f"input = {s.input}")
    if head is not None and (head.kind != "text" or head.pooler):
        raise InexpressibleError(f"head.kind = {head.kind}, head.pooler = {head.pooler}")
    values = {
        "architectures": ["ViTModel" if head is None else "ViTForImageClassification"],
        "hidden_size": s.d_model,
        "num_hidden_layers": s.encoder_layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.d_ff,
        "hidden_act": word_for(words(PLAIN), s.feed_forward, "feed_forward"),
        "hidden_dropout_prob": s.dropout,
        "attention_probs_dropout_prob": s.attention_dropout,
        "layer_norm_eps": s.norm_epsilon,
        "image_size": s.patches.height if s.patches.height == s.patches.width else [s.patches.height, s.patches.width],
        "patch_size": s.patches.size,
        "num_channels": s.patches.channels,
        "qkv_bias": True,
    }
    if head is not None:
        values |= label_names(head.labels)
    return values


def _rows(plan: Blueprint) -> Iterator[Row]:
    yield row("embedding.class_token", "vit.embeddings.cls_token", by=FLAT_TOKEN)
    yield row("embedding.positions.weight", "vit.embeddings.position_embeddings", by=_BATCH_OF_ONE)
    yield from linear("embedding.projection", "vit.embeddings.patch_embeddings.projection")
    yield from repeated(plan.settings.encoder_layers, "encoder.{}.", "vit.encoder.layer.{}.", _layer(plan.settings))
    yield from linear("encoder_norm", "vit.layernorm")
    if plan.head is not None:
        yield from linear("head.output", "classifier")


def _layer(s: ModelSettings) -> Iterator[Row]:
    yield from linear("self_attention_residual.norm", "layernorm_before")
    parts = "attention.query", "attention.key", "attention.value"
    for each in attention(s, "self_attention", "attention", parts, out="output.dense"):
        # Without qkv_bias only the output has one.
        yield replace(each, optional=each.ours == "self_attention.in_projection.bias")
    yield from linear("feed_forward_residual.norm", "layernorm_after")
    yield from linear("feed_forward.expand", "intermediate.dense")
    yield from linear("feed_forward.contract", "output.dense")


VIT = Architecture(
    name="vit",
    about="ViT, the vision Transformer of Google",
    prefix="vit.",
    settings=_settings,
    config=_config,
    rows=_rows,
    family="encoder",
    # Of masked images, and of a vector for the whole image that classification does not use.
    harmless=frozenset({"encoder_stride", "pooler_act", "pooler_output_size", "image_mean", "image_std"}),
    computed=(r"vit\.pooler\.dense\.(weight|bias)",),
)
