"""Encoder-decoders of ours as models of CTranslate2, which translates without torch on a CPU or a GPU.

A specification of theirs is filled with our weights, so that it computes the same. What it has no word for is refused
by the name of the setting. CTranslate2: https://github.com/OpenNMT/CTranslate2.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.convert.output import refuse_same
from regard.errors import UserError
from regard.model import store
from regard.model.attention import MultiHeadAttention
from regard.model.blocks import DecoderLayer, EncoderLayer
from regard.model.feed_forward import FEED_FORWARD, FeedForward
from regard.model.inputs import Embedding
from regard.model.positions import BucketBiases, LearnedPositions, RotaryPositions, SinusoidalPositions
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines.directory import CARD, read_directory
from regard.search.settings import SearchSettings
from regard.text.directories import whole_directory
from regard.text.learned import LearnedTokenizer
from regard.text.lines import atomic_write
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.vocabulary import pieces
from regard.version import __version__

_NEEDED = "models of CTranslate2 need its package, 4.8 or newer: pip install 'regard[ctranslate2]'"

try:
    from ctranslate2 import __version__ as release
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec
except ImportError:
    raise UserError(_NEEDED) from None
if tuple(map(int, release.split(".")[:2])) < (4, 8):  # some of the words were not there before
    raise UserError(_NEEDED)

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu-tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
    "glu": common_spec.Activation.Sigmoid,
    "reglu": common_spec.Activation.RELU,
    "geglu": common_spec.Activation.GELU,
    "geglu-tanh": common_spec.Activation.GELUTanh,
    "swiglu": common_spec.Activation.SWISH,
}

_AROUND = {
    "self_attention": ("input_layer_norm", "post_attention_layer_norm"),
    "attention": ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"),
    "ffn": ("pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}
"""Where the normalisations before and behind a sub-layer stand, in a layer that has both."""


def to_ctranslate2(source: Path, target: Path, *, quantization: str | None = None) -> None:
    """Write the model directory `source` of ours as one that `ctranslate2.Translator` loads, its tokenizer beside it.

    Args:
        quantization: how weights are stored, one of `QUANTIZATIONS`; without it in float32.

    Raises:
        UserError: CTranslate2 computes no such model; or `target` holds something that is not a model.
        JobError: the disk is full.
    """
    if quantization not in (None, *QUANTIZATIONS):
        raise UserError(f"quantization {quantization}: is not known; known are {', '.join(QUANTIZATIONS)}")
    source = store.find(source)
    refuse_same(source, target)
    directory = read_directory(source, "cpu")
    model = directory.model
    if not isinstance(model, EncoderDecoder):
        raise UserError(f"{source}: is of the family {directory.config.family}; CTranslate2 gets encoder-decoders only")
    spec = specification(model, directory.tokenizers)
    spec.validate()
    spec.optimize(quantization=quantization)
    card = _card(source, model.settings, directory.tokenizers, directory.settings(SearchSettings))
    with whole_directory(target) as partial:
        spec.save(str(partial))
        for path in partial.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        directory.tokenizers.save(partial)
        with atomic_write(partial / CARD) as file:
            file.write(card.encode("utf-8"))


def specification(model: EncoderDecoder, tokenizers: TokenizerPair) -> transformer_spec.TransformerSpec:
    """The model as a specification of CTranslate2, in float32; it shares no memory with the model.

    Raises:
        UserError: naming the settings that CTranslate2 has no word for.
    """
    settings = model.settings
    if obstacles := _obstacles(settings):
        raise UserError(f"CTranslate2 computes no model with {', '.join(obstacles)}")
    words = _words(model)
    encoder = transformer_spec.TransformerEncoderSpec(settings.encoder_layers, settings.heads, **words)
    decoder = transformer_spec.TransformerDecoderSpec(
        settings.decoder_layers,
        settings.heads,
        external_pre_post_encoder_layers=settings.norm_placement == "both",
        **words,
    )
    # Not before, for without it the constructors take it that a stack does not end in a normalisation.
    encoder.pre_norm = decoder.pre_norm = settings.norm_placement != "post"
    _stack(encoder, encoder.embeddings[0], model.source_embedding, model.encoder_norm, settings.source_reach)
    _stack(decoder, decoder.embeddings, model.target_embedding, model.decoder_norm, settings.max_length)
    decoder.projection.weight = _tensor(model.output)
    if model.output_bias is not None:
        decoder.projection.bias = _tensor(model.output_bias)
    if settings.output_softcap is not None:
        decoder.final_logit_softcapping = float(settings.output_softcap)
    for theirs, ours in zip([*encoder.layer, *decoder.layer], [*model.encoder, *model.decoder], strict=True):
        _layer(theirs, ours)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = settings.norm_epsilon
    _vocabularies(spec, tokenizers)
    return spec


def _obstacles(s: ModelSettings) -> list[str]:
    """The settings for which CTranslate2 has no word, each as `name = value`."""
    scaling = None if s.rotary.scaling is None else s.rotary.scaling.kind
    hindering = {
        "input": (s.input, s.input != "tokens"),
        "encoder_layers": (0, s.encoder_layers == 0),
        "decoder_layers": (0, s.decoder_layers == 0),
        "positions": (s.positions, s.positions == "alibi"),
        "rotary.scaling.kind": (scaling, s.positions == "rotary" and scaling in ("llama3", "yarn")),
        "d_value": (s.value_width, s.value_width != s.key_width),
        "segments": (s.segments, s.segments > 0),
        "spans": (", ".join(s.spans), set(s.spans) != {"full"}),
        "qk_norm": (True, s.qk_norm),  # beside a memory, theirs gives something else each time
        "attention_softcap": (s.attention_softcap, s.attention_softcap is not None),
    }
    return [f"{name} = {value}" for name, (value, hinders) in hindering.items() if hinders]


def _words(model: EncoderDecoder) -> dict[str, Any]:
    """What both stacks are told."""
    s = model.settings
    words: dict[str, Any] = {
        "no_final_norm": isinstance(model.encoder_norm, nn.Identity),
        "activation": _ACTIVATIONS[s.feed_forward],
        "ffn_glu": FEED_FORWARD[s.feed_forward].gated,
        "rms_norm": s.norm == "rms",
        "layernorm_embedding": s.embedding_norm,
        "pre_post_layer_norm": s.norm_placement == "both",
        "num_heads_kv": None if s.key_heads == s.heads else s.key_heads,
        "head_dim": s.key_width,
        "relative_attention_bias": s.positions == "t5",
    }
    if s.positions == "rotary":
        words |= _rotary(s)
    return words


def _rotary(s: ModelSettings) -> dict[str, Any]:
    words = {
        "rotary_dim": s.rotary_width,
        "rotary_interleave": s.rotary.layout == "interleaved",
        "rotary_base": s.rotary.base,
    }
    scaling = s.rotary.scaling
    if scaling is not None and scaling.kind == "linear":
        linear = attention_spec.RotaryScalingType.Linear
        words |= {"rotary_scaling_type": linear, "rotary_scaling_factor": scaling.factor}
    elif scaling is not None:  # ntk is nothing but another base
        words["rotary_base"] *= scaling.factor ** (s.rotary_width / max(s.rotary_width - 2, 1))
    return words


def _stack(
    spec: transformer_spec.TransformerEncoderSpec | transformer_spec.TransformerDecoderSpec,
    embeddings: common_spec.EmbeddingsSpec,
    ours: nn.Module,
    final: nn.Module,
    reach: int,
) -> None:
    """All of a stack but its layers."""
    assert isinstance(ours, Embedding)
    embeddings.weight = _tensor(ours.weight)
    spec.scale_embeddings = float(ours.scale)
    if ours.norm is not None:
        _norm(spec.layernorm_embedding, ours.norm)
    if not isinstance(final, nn.Identity):
        _norm(spec.layer_norm, final)
    positions = ours.positions
    if isinstance(positions, BucketBiases):
        bias = _tensor(positions.weight)
        for layer in spec.layer:
            layer.self_attention.relative_attention_bias = bias
            layer.self_attention.relative_attention_max_distance = np.int32(positions.max_distance)
    elif isinstance(positions, SinusoidalPositions):
        spec.position_encodings.encodings = _tensor(positions.table_TD)
    elif isinstance(positions, LearnedPositions):
        spec.position_encodings.encodings = _tensor(positions.weight)
    elif not isinstance(positions, RotaryPositions):  # without a table, theirs are sinusoids
        spec.position_encodings.encodings = torch.zeros(reach, embeddings.weight.shape[1])


def _layer(spec: Any, ours: EncoderLayer | DecoderLayer) -> None:
    residuals = {"self_attention": ours.self_attention_residual, "ffn": ours.feed_forward_residual}
    _attention(spec.self_attention, ours.self_attention)
    _feed_forward(spec.ffn, ours.feed_forward)
    if isinstance(ours, DecoderLayer):
        residuals["attention"] = ours.memory_attention_residual
        _attention(spec.attention, ours.memory_attention)
    for place, residual in residuals.items():
        if residual.norm_after is None:
            _norm(getattr(spec, place).layer_norm, residual.norm)
        else:
            before, after = _AROUND[place]
            _norm(getattr(spec, before), residual.norm)
            _norm(getattr(spec, after), residual.norm_after)


def _attention(spec: attention_spec.MultiHeadAttentionSpec, ours: MultiHeadAttention) -> None:
    *inside, outside = spec.linear
    # Over a memory, queries stand apart from keys and values.
    rows = [sum(ours.widths)] if len(inside) == 1 else [ours.widths[0], sum(ours.widths[1:])]
    _linear(inside, ours.in_projection, rows)
    _linear([outside], ours.out_projection)
    if ours.scale is not None:
        spec.queries_scale = float(ours.scale)


def _feed_forward(spec: transformer_spec.FeedForwardSpec, ours: FeedForward) -> None:
    maps = [spec.linear_0, spec.linear_0_noact] if ours.gated else [spec.linear_0]
    _linear(maps, ours.expand, [ours.contract.in_features] * len(maps))
    _linear([spec.linear_1], ours.contract)


def _linear(specs: list[common_spec.LinearSpec], ours: nn.Linear, rows: list[int] | None = None) -> None:
    """Theirs, which stand below each other in ours, each of so many rows; without `rows` there is one."""
    for name, parameter in ours.named_parameters():
        parts = torch.split(parameter, rows or [ours.out_features])
        for spec, part in zip(specs, parts, strict=True):
            setattr(spec, name, _tensor(part))


def _norm(spec: common_spec.LayerNormSpec, ours: nn.Module) -> None:
    spec.gamma = _tensor(ours.get_parameter("weight"))
    if isinstance(ours, nn.LayerNorm):
        spec.beta = _tensor(ours.bias)


def _tensor(ours: Tensor) -> Tensor:
    """A copy, for to quantise changes a tensor in its place."""
    return ours.detach().to("cpu", torch.float32, copy=True).contiguous()


def _vocabularies(spec: transformer_spec.TransformerSpec, tokenizers: TokenizerPair) -> None:
    """Say which tokens there are, and which of them stand around a text."""
    source, target = vocabulary(tokenizers.source), vocabulary(tokenizers.target)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config = spec.config
    config.decoder_start_token = target[tokenizers.target_begin[0]]
    config.eos_token = target[tokenizers.target_end]
    unknown = tokenizers.target.pad if tokenizers.target.unk is None else tokenizers.target.unk
    config.unk_token = target[unknown]
    if config.unk_token not in source:
        raise UserError(f"the source has no {config.unk_token}, and CTranslate2 needs one name for what is unknown")
    begin, end = _around(tokenizers)
    if _is_told(tokenizers):
        config.add_source_bos, config.add_source_eos = bool(begin), bool(end)
    config.bos_token = begin[0] if config.add_source_bos else config.decoder_start_token


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """A string for each id, none of them twice.

    Those of a tokenizer that was learned here are as its file spells them, so that the library `tokenizers` gives them.
    """
    if isinstance(tokenizer, LearnedTokenizer):
        return pieces(tokenizer.document)
    words: dict[str, int] = {}
    for number, piece in enumerate(tokenizer.pieces(list(range(tokenizer.size)))):
        word = piece
        while word in words:  # such as a byte, and the text that it is shown as
            word += f"#{number}"
        words[word] = number
    return list(words)


def _around(tokenizers: TokenizerPair) -> tuple[list[str], list[str]]:
    """What stands before a source, and after it."""
    words = vocabulary(tokenizers.source)
    return [words[number] for number in tokenizers.source_begin], [words[number] for number in tokenizers.source_end]


def _is_told(tokenizers: TokenizerPair) -> bool:
    """Whether CTranslate2 can be told to put that there by itself: one token before, the end token after."""
    begin, end = _around(tokenizers)
    return len(begin) <= 1 and end in ([], [vocabulary(tokenizers.target)[tokenizers.target_end]])


_CODE = """\
import ctranslate2
from tokenizers import Tokenizer

directory = "path/of/this/directory"
translator = ctranslate2.Translator(directory)
source = Tokenizer.from_file(f"{{directory}}/{source}")
target = Tokenizer.from_file(f"{{directory}}/{target}")

tokens = source.encode("One sentence.").tokens
(found,) = translator.translate_batch(
    [tokens],
    beam_size={beam},
    max_input_length={reads},
    max_decoding_length=min(len(tokens) + {more}, {writes}),
)
print(target.decode([target.token_to_id(token) for token in found.hypotheses[0]]))
"""


def _card(origin: Path, model: ModelSettings, tokenizers: TokenizerPair, search: SearchSettings) -> str:
    """How to use the directory, with the limits that our search has."""
    lines = [f"# {origin.resolve().name}", "", f"Converted by regard {__version__} for CTranslate2.", ""]
    if isinstance(tokenizers.source, LearnedTokenizer) and isinstance(tokenizers.target, LearnedTokenizer):
        names = ["tokenizer.json"] * 2 if tokenizers.joint else ["tokenizer.source.json", "tokenizer.target.json"]
        code = _CODE.format(
            source=names[0],
            target=names[1],
            beam=search.beam,
            reads=model.source_reach,
            more=search.extra_tokens,
            writes=model.max_length,
        )
        lines += ["```python", code + "```", ""]
    else:
        lines += [
            "The tokenizer beside the model is read by `regard.text.tokenizer.TokenizerPair.load`; the strings of",
            "CTranslate2 are those of the vocabulary files, in the order of its ids.",
            "",
        ]
    if not _is_told(tokenizers):
        begin, end = _around(tokenizers)
        lines += [f"Before the tokens of a source put {begin}, after them {end}.", ""]
    if forced := tokenizers.target_begin[1:]:
        words = vocabulary(tokenizers.target)
        lines += [f"Every output begins with {[words[number] for number in forced]}: give it as `target_prefix`.", ""]
    return "\n".join(lines)
