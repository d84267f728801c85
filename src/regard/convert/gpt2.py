"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): a table of its names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from regard.convert.activations import PLAIN, words
from regard.convert.config import Config
from regard.convert.mapping import (
    TRANSPOSED,
    Architecture,
    Blueprint,
    Ids,
    Row,
    linear,
    repeated,
    row,
    word_for,
)
from regard.model.settings import ModelSettings


def _settings(config: Config, names: Collection[str]) -> Blueprint:
    config.equal("n_ctx", "n_positions")
    vocabulary, d_model = config.integer("vocab_size"), config.integer("n_embd")
    values = {
        "d_model": d_model,
        "d_ff": config.optional("n_inner") or 4 * d_model,
        "heads": config.integer("n_head"),
        "decoder_layers": config.integer("n_layer"),
        "positions": "learned",
        "max_length": config.integer("n_positions"),
        "embedding_scale": 1.0,
        "norm_placement": "pre",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "feed_forward": config.choice("activation_function", PLAIN, "gelu_new"),
        "attention_scale": None if config.flag("scale_attn_weights", True) else 1.0,
        "dropout": config.number("resid_pdrop", 0.1),
        "attention_dropout": config.number("attn_pdrop", 0.1),
        "tie": "decoder" if config.flag("tie_word_embeddings", True) else "none",
    }
    ids = Ids(config.token("pad_token_id"), config.token("bos_token_id"), config.token("eos_token_id"))
    settings = ModelSettings.parse(values, config.origin)
    return Blueprint("causal-decoder", settings, vocabulary, vocabulary, ids=ids)


def _config(plan: Blueprint) -> dict[str, Any]:
    s = plan.settings
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": plan.target,
        "n_positions": s.max_length,
        "n_embd": s.d_model,
        "n_layer": s.decoder_layers,
        "n_head": s.heads,
        "n_inner": s.d_ff,
        "activation_function": word_for(words(PLAIN), s.feed_forward, "feed_forward"),
        "layer_norm_epsilon": s.norm_epsilon,
        "scale_attn_weights": s.attention_scale != 1.0,
        "resid_pdrop": s.dropout,
        "embd_pdrop": s.dropout,
        "attn_pdrop": s.attention_dropout,
        "tie_word_embeddings": s.tie != "none",
        "pad_token_id": plan.ids.pad,
        "bos_token_id": plan.ids.bos,
        "eos_token_id": plan.ids.eos,
    }


def _rows(plan: Blueprint) -> Iterator[Row]:
    if plan.settings.tie == "none":
        yield row("embedding.weight", "transformer.wte.weight")
        yield row("output", "lm_head.weight")
    else:
        yield row("embedding.weight", "transformer.wte.weight", tied=("lm_head.weight",))
    yield row("embedding.positions.weight", "transformer.wpe.weight")
    layer = [
        *linear("self_attention_residual.norm", "ln_1"),
        *linear("self_attention.in_projection", "attn.c_attn", by=TRANSPOSED),
        *linear("self_attention.out_projection", "attn.c_proj", by=TRANSPOSED),
        *linear("feed_forward_residual.norm", "ln_2"),
        *linear("feed_forward.expand", "mlp.c_fc", by=TRANSPOSED),
        *linear("feed_forward.contract", "mlp.c_proj", by=TRANSPOSED),
    ]
    yield from repeated(plan.settings.decoder_layers, "decoder.{}.", "transformer.h.{}.", layer)
    yield from linear("decoder_norm", "transformer.ln_f")


_SUMMARY = "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"

GPT2 = Architecture(
    name="gpt2",
    about="GPT-2 of OpenAI and its many offspring",
    prefix="transformer.",
    settings=_settings,
    config=_config,
    rows=_rows,
    family="causal-decoder",
    # Training; the order of a multiplication; the head for multiple choice.
    harmless=frozenset({"embd_pdrop", "reorder_and_upcast_attn", *_SUMMARY}),
    computed=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
)
