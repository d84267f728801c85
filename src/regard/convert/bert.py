"""BERT and RoBERTa: one table of names, and how they differ.

Sources: Devlin et al. 2019 (arXiv 1810.04805), Liu et al. 2019 (arXiv 1907.11692), Conneau et al. 2020 (arXiv
1911.02116).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from regard.convert.activations import PLAIN, words
from regard.convert.config import Config, label_names
from regard.convert.mapping import (
    Architecture,
    Blueprint,
    Ids,
    InexpressibleError,
    Row,
    attention,
    below,
    linear,
    repeated,
    row,
    without_leading,
    word_for,
)
from regard.model.settings import HeadSettings, ModelSettings


@dataclass(frozen=True)
class _Kind:
    """How one of them differs from the other."""

    name: str
    about: str
    base: str
    """What stands before the names of all but the head."""
    model: str
    """What the names of its classes in `transformers` begin with."""
    dense: str
    """The layer before the labels of a text."""
    labels: str
    """The layer that gives the labels of a text."""
    predictions: str
    """Where the head for masked words has its bias and its output."""
    transform: Mapping[str, str]
    """Where that head has its dense layer and its normalisation."""
    ids: Ids
    counts_from_padding: bool = False
    """Positions begin behind the id of padding, in a table that begins at 0."""


_KINDS = (
    _Kind(
        name="bert",
        about="BERT of Google",
        base="bert.",
        model="Bert",
        dense="bert.pooler.dense",
        labels="classifier",
        predictions="cls.predictions",
        transform={"dense": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
        ids=Ids(pad=0),
    ),
    *(
        _Kind(
            name=name,
            about=about,
            base="roberta.",
            model=model,
            dense="classifier.dense",
            labels="classifier.out_proj",
            predictions="lm_head",
            transform={"dense": "lm_head.dense", "norm": "lm_head.layer_norm"},
            ids=Ids(pad=1, bos=0, eos=2),
            counts_from_padding=True,
        )
        for name, about, model in (
            ("roberta", "RoBERTa of Meta", "Roberta"),
            ("xlm-roberta", "XLM-RoBERTa: the same for many languages", "XLMRoberta"),
        )
    ),
)

_HEADS: Mapping[str, str | None] = {
    "Model": None,
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "ForSequenceClassification": "text",
    "ForTokenClassification": "tokens",
}
"""Our heads by the ends of their classes' names. Of pre-training, the second task is left away."""


def _settings(kind: _Kind, config: Config, names: Collection[str]) -> Blueprint:
    ids = Ids(
        pad=config.token("pad_token_id", kind.ids.pad),
        bos=config.token("bos_token_id", kind.ids.bos),
        eos=config.token("eos_token_id", kind.ids.eos),
    )
    vocabulary = config.integer("vocab_size")
    config.expect("position_embedding_type", None, "absolute")
    values = {
        "d_model": config.integer("hidden_size"),
        "d_ff": config.integer("intermediate_size"),
        "heads": config.integer("num_attention_heads"),
        "encoder_layers": config.integer("num_hidden_layers"),
        "positions": "learned",
        "max_length": config.integer("max_position_embeddings") - _skipped(kind, ids),
        "segments": config.integer("type_vocab_size", 2),
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "feed_forward": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.number("hidden_dropout_prob", 0.1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1),
        "tie": "decoder" if config.flag("tie_word_embeddings", True) else "none",
    }
    head = _head(kind, config)
    if kind.name == "bert" and head is not None and head.kind == "masked-lm" and values["feed_forward"] != "gelu":
        config.refuse(f"hidden_act = {config.word('hidden_act')} with a head for masked words, which has gelu here")
    settings = ModelSettings.parse(values, config.origin)
    return Blueprint("encoder", settings, vocabulary, vocabulary, head, ids)


def _skipped(kind: _Kind, ids: Ids) -> int:
    """Rows of the table of positions that no token uses."""
    pad = kind.ids.pad if ids.pad is None else ids.pad
    return pad + 1 if kind.counts_from_padding and pad is not None else 0


def _head(kind: _Kind, config: Config) -> HeadSettings | None:
    """The head of the class that the configuration names; without a name the model is taken to have none."""
    written = next(iter(config.words("architectures")), kind.model + "Model")
    name = written.removeprefix(kind.model)
    if name not in _HEADS:
        config.refuse(f"architectures = {written} (supported: {', '.join(kind.model + each for each in _HEADS)})")
    head = _HEADS.get(name)
    if head in ("text", "tokens"):
        # Several true labels at once, or a number instead of a label, are read from the same logits in another way.
        config.expect("problem_type", None, "single_label_classification")
    return None if head is None else HeadSettings(kind=head, labels=() if head == "masked-lm" else config.labels())


def _config(kind: _Kind, plan: Blueprint) -> dict[str, Any]:
    s, head = plan.settings, plan.head
    if head is not None and head.kind == "text" and not head.pooler:
        raise InexpressibleError("head.pooler = False")
    if plan.source is None:
        raise InexpressibleError(f"input = {s.input}")
    pad = kind.ids.pad if plan.ids.pad is None else plan.ids.pad
    values = {
        "architectures": [kind.model + words(_HEADS)[head.kind if head else None]],
        "vocab_size": plan.source,
        "hidden_size": s.d_model,
        "num_hidden_layers": s.encoder_layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.d_ff,
        "hidden_act": word_for(words(PLAIN), s.feed_forward, "feed_forward"),
        "hidden_dropout_prob": s.dropout,
        "attention_probs_dropout_prob": s.attention_dropout,
        "max_position_embeddings": s.max_length + _skipped(kind, plan.ids),
        "type_vocab_size": max(s.segments, 1),
        "layer_norm_eps": s.norm_epsilon,
        "tie_word_embeddings": s.tie != "none",
        "pad_token_id": pad,
        "bos_token_id": plan.ids.bos,
        "eos_token_id": plan.ids.eos,
    }
    if head is not None and head.labels:
        values |= label_names(head.labels)
    return values


def _rows(kind: _Kind, plan: Blueprint) -> Iterator[Row]:
    s, base = plan.settings, kind.base
    masked = plan.head is not None and plan.head.kind == "masked-lm"
    tied = (f"{kind.predictions}.decoder.weight",) if masked and s.tie != "none" else ()
    yield row("embedding.weight", f"{base}embeddings.word_embeddings.weight", tied=tied)
    positions = f"{base}embeddings.position_embeddings.weight"
    yield row("embedding.positions.weight", positions, by=without_leading(_skipped(kind, plan.ids)))
    yield row("embedding.segments", f"{base}embeddings.token_type_embeddings.weight")
    yield from _norm("embedding.norm", f"{base}embeddings.LayerNorm")
    yield from repeated(s.encoder_layers, "encoder.{}.", base + "encoder.layer.{}.", _layer(s))
    if plan.head is not None:
        for each in _HEAD_ROWS[plan.head.kind](kind, s):
            yield below(each, "head.", "")


def _layer(s: ModelSettings) -> Iterator[Row]:
    parts = "self.query", "self.key", "self.value"
    yield from attention(s, "self_attention", "attention", parts, out="output.dense")
    yield from _norm("self_attention_residual.norm", "attention.output.LayerNorm")
    yield from linear("feed_forward.expand", "intermediate.dense")
    yield from linear("feed_forward.contract", "output.dense")
    yield from _norm("feed_forward_residual.norm", "output.LayerNorm")


def _norm(ours: str, theirs: str) -> list[Row]:
    """A normalisation; in files that began in TensorFlow its weight is `gamma` and its bias `beta`."""
    return [
        row(f"{ours}.weight", f"{theirs}.weight", instead=f"{theirs}.gamma"),
        row(f"{ours}.bias", f"{theirs}.bias", instead=f"{theirs}.beta"),
    ]


def _masked_words(kind: _Kind, s: ModelSettings) -> Iterator[Row]:
    yield from linear("dense", kind.transform["dense"])
    yield from _norm("norm", kind.transform["norm"])
    bias, used = f"{kind.predictions}.bias", f"{kind.predictions}.decoder.bias"
    if s.tie == "none":
        yield row("output", f"{kind.predictions}.decoder.weight")
        yield row("bias", used, instead=bias)
        yield row("bias", bias, unused=True)
    else:
        yield row("bias", bias, tied=(used,))


def _text_label(kind: _Kind, s: ModelSettings) -> Iterator[Row]:
    yield from linear("dense", kind.dense)
    yield from linear("output", kind.labels)


def _token_labels(kind: _Kind, s: ModelSettings) -> Iterator[Row]:
    yield from linear("output", "classifier")


_HEAD_ROWS = {"masked-lm": _masked_words, "text": _text_label, "tokens": _token_labels}

_POOLER = "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"

BERT_FAMILY = tuple(
    Architecture(
        name=kind.name,
        about=kind.about,
        prefix=kind.base,
        settings=partial(_settings, kind),
        config=partial(_config, kind),
        rows=partial(_rows, kind),
        family="encoder",
        # What files of the first years say of a pooling layer that there is no other kind of.
        harmless=frozenset({"output_past", "directionality", "pooler_type", *_POOLER}),
        computed=(
            rf"{re.escape(kind.base)}embeddings\.(position|token_type)_ids",
            # what a model without a head for it does not use
            rf"{re.escape(kind.base)}pooler\.dense\.(weight|bias)",
            r"cls\.seq_relationship\.(weight|bias)",
        ),
    )
    for kind in _KINDS
)
