"""LLaMA (Touvron et al. 2023, arXiv 2302.13971) and its relatives: one table of names, and how each differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from regard.convert.activations import GATED, words
from regard.convert.config import Config
from regard.convert.mapping import (
    SAME,
    Architecture,
    Blueprint,
    Ids,
    InexpressibleError,
    Row,
    attention,
    plus,
    repeated,
    row,
    stacked,
    word_for,
)
from regard.convert.rotary import read_rotary, read_rotary_by_layer, write_rotary
from regard.model.settings import ModelSettings


@dataclass(frozen=True)
class _Relative:
    """In what an architecture differs from LLaMA."""

    name: str
    about: str
    model: str
    """Its class with an output, in `transformers`."""
    settings: Callable[[Config, int], Mapping[str, Any]]
    """What its configuration adds to our settings, for so many layers."""
    config: Callable[[ModelSettings], Mapping[str, Any]]
    """The same back."""
    tied: bool = False
    """Whether the output is the embedding where the configuration does not say."""
    head_width: int | None = None
    """Width of a head where the configuration does not say; None: hidden_size / num_attention_heads."""
    activation: str = "hidden_act"
    """The key of its activation."""
    activations: Mapping[str, str] = field(default_factory=lambda: GATED)
    """Its names of activations; the first is meant where the configuration does not say."""
    norms_from_one: bool = False
    """Its normalisations multiply by 1 + weight."""
    harmless: str = ""


def _settings(relative: _Relative, config: Config, names: Collection[str]) -> Blueprint:
    vocabulary, d_model = config.integer("vocab_size"), config.integer("hidden_size")
    heads, layers = config.integer("num_attention_heads"), config.integer("num_hidden_layers")
    activations = relative.activations
    width = config.optional("head_dim") or relative.head_width or d_model // max(heads, 1)
    values: dict[str, Any] = {
        "d_model": d_model,
        "d_ff": config.integer("intermediate_size"),
        "heads": heads,
        "kv_heads": config.optional("num_key_value_heads"),
        "d_key": width,
        "d_value": width,
        "decoder_layers": layers,
        "positions": "rotary",
        "max_length": config.integer("max_position_embeddings"),
        "embedding_scale": 1.0,
        "norm": "rms",
        "norm_placement": "pre",
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "feed_forward": config.choice(relative.activation, activations, next(iter(activations))),
        "feed_forward_bias": False,
        "attention_bias": "none",
        "dropout": 0.0,
        "attention_dropout": config.number("attention_dropout", 0.0),
        "tie": "decoder" if config.flag("tie_word_embeddings", relative.tied) else "none",
    }
    values |= relative.settings(config, layers)
    if "rotary" not in values:
        values["rotary"] = read_rotary(config)
    ids = Ids(config.token("pad_token_id"), config.token("bos_token_id"), config.token("eos_token_id"))
    settings = ModelSettings.parse(values, config.origin)
    return Blueprint("causal-decoder", settings, vocabulary, vocabulary, ids=ids)


def _config(relative: _Relative, plan: Blueprint) -> dict[str, Any]:
    s = plan.settings
    if s.d_model % s.heads:
        raise InexpressibleError(f"d_model = {s.d_model} without a whole share for each of heads = {s.heads}")
    return {
        "architectures": [relative.model],
        "vocab_size": plan.target,
        "hidden_size": s.d_model,
        "intermediate_size": s.d_ff,
        "num_hidden_layers": s.decoder_layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.key_heads,
        "head_dim": s.key_width,
        "max_position_embeddings": s.max_length,
        "rms_norm_eps": s.norm_epsilon,
        relative.activation: word_for(words(relative.activations), s.feed_forward, "feed_forward"),
        "attention_dropout": s.attention_dropout,
        "tie_word_embeddings": s.tie != "none",
        "pad_token_id": plan.ids.pad,
        "bos_token_id": plan.ids.bos,
        "eos_token_id": plan.ids.eos,
        **write_rotary(s.rotary),
        **relative.config(s),
    }


def _rows(relative: _Relative, plan: Blueprint) -> Iterator[Row]:
    s = plan.settings
    if s.tie == "none":
        yield row("embedding.weight", "model.embed_tokens.weight")
        yield row("output", "lm_head.weight")
    else:
        yield row("embedding.weight", "model.embed_tokens.weight", tied=("lm_head.weight",))
    yield from repeated(s.decoder_layers, "decoder.{}.", "model.layers.{}.", _layer(relative, s))
    yield row("decoder_norm.weight", "model.norm.weight", by=plus(1.0) if relative.norms_from_one else SAME)


def _layer(relative: _Relative, s: ModelSettings) -> Iterator[Row]:
    norm = plus(1.0) if relative.norms_from_one else SAME
    yield from attention(s, "self_attention", "self_attn", out="o_proj")
    if s.qk_norm:
        yield row("self_attention.query_norm.weight", "self_attn.q_norm.weight", by=norm)
        yield row("self_attention.key_norm.weight", "self_attn.k_norm.weight", by=norm)
    for part in ("weight", "bias") if s.feed_forward_bias else ("weight",):
        gate_and_up = f"mlp.gate_proj.{part}", f"mlp.up_proj.{part}"
        yield row(f"feed_forward.expand.{part}", *gate_and_up, by=stacked(s.d_ff, s.d_ff))
        yield row(f"feed_forward.contract.{part}", f"mlp.down_proj.{part}")
    for ours, theirs in _NORMS[s.norm_placement == "both"].items():
        yield row(f"{ours}.weight", f"{theirs}.weight", by=norm)


_NORMS: Mapping[bool, Mapping[str, str]] = {
    False: {
        "self_attention_residual.norm": "input_layernorm",
        "feed_forward_residual.norm": "post_attention_layernorm",
    },
    True: {
        "self_attention_residual.norm": "input_layernorm",
        "self_attention_residual.norm_after": "post_attention_layernorm",
        "feed_forward_residual.norm": "pre_feedforward_layernorm",
        "feed_forward_residual.norm_after": "post_feedforward_layernorm",
    },
}
"""Names of normalisations, by whether they stand behind each sub-layer too."""

_SPANS = {"full_attention": "full", "sliding_attention": "window"}


def _spans(config: Config, layers: int, window: int | None, slides: Callable[[int], bool]) -> dict[str, Any]:
    """Which layers reach `window`: those of `layer_types`, or where that is not given those that `slides` says."""
    types = config.words("layer_types")
    if types and len(types) != layers:
        config.refuse(f"layer_types for {len(types)} layers instead of {layers}")
    for each in sorted(set(types) - _SPANS.keys()):
        config.refuse(f"layer_types: {each}")
    spans = [_SPANS.get(each, "full") for each in types]
    if not types:
        spans = ["window" if window is not None and slides(layer) else "full" for layer in range(layers)]
    cycle = next((n for n in range(1, layers) if all(a == b for a, b in zip(spans, spans[n:], strict=False))), layers)
    return {"spans": tuple(spans[:cycle] or ["full"]), "window": window if "window" in spans else None}


def _layer_types(s: ModelSettings) -> dict[str, Any]:
    types = {ours: theirs for theirs, ours in _SPANS.items()}
    spans = [s.span(layer) for layer in range(s.decoder_layers)]
    return {"layer_types": [word_for(types, span, "spans") for span in spans], "sliding_window": s.window}


def _sliding_window(config: Config, default: int) -> int | None:
    """A window that is on unless null switches it off."""
    given = config.optional("sliding_window")
    return given if "sliding_window" in config.values else default


def _attention_bias(config: Config) -> dict[str, Any]:
    return {"attention_bias": "all" if config.flag("attention_bias", False) else "none"}


def _attention_bias_word(s: ModelSettings) -> dict[str, Any]:
    return {"attention_bias": s.attention_bias != "none"}


def _llama(config: Config, layers: int) -> dict[str, Any]:
    return {"feed_forward_bias": config.flag("mlp_bias", False), **_attention_bias(config)}


def _llama_config(s: ModelSettings) -> dict[str, Any]:
    return {"mlp_bias": s.feed_forward_bias, **_attention_bias_word(s)}


def _mistral(config: Config, layers: int) -> dict[str, Any]:
    return _spans(config, layers, _sliding_window(config, 4096), lambda _: True)


def _mistral_config(s: ModelSettings) -> dict[str, Any]:
    if set(s.spans) not in ({"full"}, {"window"}):
        raise InexpressibleError(f"spans = {', '.join(s.spans)}")
    return {"sliding_window": s.window if "window" in s.spans else None}


def _qwen2(config: Config, layers: int) -> dict[str, Any]:
    window, first = _sliding_window(config, 4096), config.integer("max_window_layers", 28)
    used = config.flag("use_sliding_window", False)
    return {"attention_bias": "in", **_spans(config, layers, window if used else None, lambda layer: layer >= first)}


def _qwen2_config(s: ModelSettings) -> dict[str, Any]:
    return {"use_sliding_window": "window" in s.spans, **_layer_types(s)}


def _qwen3(config: Config, layers: int) -> dict[str, Any]:
    return {**_qwen2(config, layers), "qk_norm": True, **_attention_bias(config)}


def _qwen3_config(s: ModelSettings) -> dict[str, Any]:
    return {**_qwen2_config(s), **_attention_bias_word(s)}


def _gemma(config: Config, layers: int) -> dict[str, Any]:
    # hidden_activation is null in the first release's files and says the same in later ones.
    config.expect("hidden_activation", None, "gelu_pytorch_tanh")
    return {"embedding_scale": None, **_attention_bias(config)}


def _gemma2(config: Config, layers: int) -> dict[str, Any]:
    softcaps = {
        "attention_softcap": _switched(config, "attn_logit_softcapping", 50.0),
        "output_softcap": _switched(config, "final_logit_softcapping", 30.0),
    }
    spans = _spans(config, layers, _sliding_window(config, 4096), lambda layer: layer % 2 == 0)
    return {**_gemma_both(config), **softcaps, **spans}


def _gemma_both(config: Config) -> dict[str, Any]:
    return {
        "embedding_scale": None,
        "norm_placement": "both",
        "attention_scale": config.number("query_pre_attn_scalar", 256) ** -0.5,
        **_attention_bias(config),
    }


def _switched(config: Config, key: str, default: float) -> float | None:
    """A number that is on unless null switches it off."""
    given = config.optional_number(key)
    return given if key in config.values else default


def _gemma3(config: Config, layers: int) -> dict[str, Any]:
    config.expect("attn_logit_softcapping", None)
    pattern = max(config.integer("sliding_window_pattern", 6), 1)
    spans = _spans(config, layers, _sliding_window(config, 4096), lambda layer: (layer + 1) % pattern != 0)
    rotary, in_windows = read_rotary_by_layer(config, 1_000_000.0, 10_000.0)
    return {
        **_gemma_both(config),
        "qk_norm": True,
        "output_softcap": config.optional_number("final_logit_softcapping"),
        "rotary": rotary,
        "window_rotary": in_windows if spans["window"] and in_windows != rotary else None,
        **spans,
    }


def _gemma3_config(s: ModelSettings) -> dict[str, Any]:
    in_windows = s.window_rotary or s.rotary
    if in_windows.scaling is not None:
        raise InexpressibleError(f"scaling of kind {in_windows.scaling.kind} of rotary positions in windows")
    return {**_gemma2_config(s), "rope_local_base_freq": in_windows.base}


def _gemma2_config(s: ModelSettings) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": round(s.attention_scale**-2) if s.attention_scale else s.key_width,
        "attn_logit_softcapping": s.attention_softcap,
        "final_logit_softcapping": s.output_softcap,
        **_layer_types(s),
        "sliding_window": s.window or s.max_length,  # never without one, be it unused
        **_attention_bias_word(s),
    }


_TANH_FIRST: Mapping[str, str] = {"gelu_pytorch_tanh": "geglu-tanh", **GATED}

_RELATIVES = (
    _Relative(
        name="llama",
        about="LLaMA of Meta, and many who use its names",
        model="LlamaForCausalLM",
        settings=_llama,
        config=_llama_config,
        harmless="pretraining_tp",  # the order of sums in training on several devices
    ),
    _Relative(
        name="mistral",
        about="Mistral: LLaMA with a sliding window",
        model="MistralForCausalLM",
        settings=_mistral,
        config=_mistral_config,
    ),
    _Relative(
        name="qwen2",
        about="Qwen 2 and 2.5 of Alibaba",
        model="Qwen2ForCausalLM",
        settings=_qwen2,
        config=_qwen2_config,
    ),
    _Relative(
        name="qwen3",
        about="Qwen 3 of Alibaba",
        model="Qwen3ForCausalLM",
        settings=_qwen3,
        config=_qwen3_config,
        head_width=128,
    ),
    _Relative(
        name="gemma",
        about="Gemma of Google",
        model="GemmaForCausalLM",
        settings=_gemma,
        config=_attention_bias_word,
        tied=True,
        head_width=256,
        # Written "gelu" in the first files, and never meant exactly.
        activations={**_TANH_FIRST, "gelu": "geglu-tanh"},
        norms_from_one=True,
    ),
    _Relative(
        name="gemma2",
        about="Gemma 2 of Google",
        model="Gemma2ForCausalLM",
        settings=_gemma2,
        config=_gemma2_config,
        tied=True,
        head_width=256,
        activation="hidden_activation",
        activations=_TANH_FIRST,
        norms_from_one=True,
        harmless="hidden_act cache_implementation",  # a second name that is not read; how memory is kept
    ),
    _Relative(
        name="gemma3_text",
        about="Gemma 3 of Google, its text models",
        model="Gemma3ForCausalLM",
        settings=_gemma3,
        config=_gemma3_config,
        tied=True,
        head_width=256,
        activation="hidden_activation",
        activations=_TANH_FIRST,
        norms_from_one=True,
        harmless="hidden_act cache_implementation _sliding_window_pattern",
    ),
)


def _architecture(relative: _Relative) -> Architecture:
    return Architecture(
        name=relative.name,
        about=relative.about,
        prefix="model.",
        settings=partial(_settings, relative),
        config=partial(_config, relative),
        rows=partial(_rows, relative),
        family="causal-decoder",
        harmless=frozenset(relative.harmless.split()),
        computed=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq"),
    )


LLAMA_FAMILY = tuple(map(_architecture, _RELATIVES))
