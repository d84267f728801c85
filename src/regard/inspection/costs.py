"""What a model costs: its parameters, by part."""

from __future__ import annotations

from dataclasses import dataclass

from regard.model.store import parameters
from regard.model.transformer import Model


@dataclass(frozen=True)
class Part:
    """A part of a model and its number of parameters."""

    name: str
    parameters: int


LAYER = {
    "self_attention": "self-attention",
    "memory_attention": "attention over the encoder",
    "feed_forward": "feed-forward",
}
"""The sub-layers of a layer; what else a layer has are its normalisations."""

INPUT = {
    "positions": "positions",
    "segments": "segments",
    "norm": "input: normalisation",
    "projection": "input: patches",
    "class_token": "input: patches",
    "convolutions": "input: frames",
}
"""What an input may have beside its token vectors."""


def parameters_by_part(model: Model) -> list[Part]:
    """The parameters of each kind of sub-layer, of the inputs, the head and the output; each counted once."""
    counts: dict[str, int] = {}
    for name, tensor in parameters(model).items():
        part = _part(name)
        counts[part] = counts.get(part, 0) + tensor.numel()
    return [Part(name, count) for name, count in counts.items()]


def _part(name: str) -> str:
    stack, *inner = name.split(".")
    if stack in ("encoder", "decoder"):
        return f"{stack}: {LAYER.get(inner[1], 'normalisation')}"
    if stack.endswith("_norm"):
        return f"{stack.removesuffix('_norm')}: normalisation"
    if stack == "head":
        return "head"
    return next((INPUT[part] for part in inner if part in INPUT), "embeddings and output")
