"""The same model with its dimensions in another order.

Attention, feed-forward layers and normalisation do not care in which order the d_model dimensions between them stand,
only sinusoids do: the paper has sines and cosines in turn, all foreign models the sines first. So a model of ours is
written with its dimensions in that order; it computes the same, but for the order in which sums are rounded.
"""

from __future__ import annotations

import re

import torch

from regard.model.inputs import Embedding
from regard.model.transformer import EncoderDecoder, Model

_LAST = re.compile(r"(\w+_)?embedding(\.weight)?|output|.*\.(in_projection|expand)\.weight")
_FIRST = re.compile(r".*\.(out_projection|contract)\.(weight|bias)|(.*[._])?(norm|norm_after)\.(weight|bias)")
_NONE = re.compile(r".*\.(in_projection|expand)\.bias|.*\.(query_norm|key_norm)\.(weight|bias)|output_bias")
"""Which dimension of a weight is d_model."""


def sines_first(model: Model) -> Model:
    """The model itself, or where it has the paper's sinusoids one that computes the same with the sines first."""
    settings = model.settings
    paper = settings.positions == "sinusoidal" and settings.sinusoids.layout == "interleaved"
    if not paper or not isinstance(model, EncoderDecoder) or not isinstance(model.source_embedding, Embedding):
        return model
    changed = settings.sinusoids.model_copy(update={"layout": "halves"})
    other = EncoderDecoder(
        settings.model_copy(update={"sinusoids": changed}), len(model.source_embedding.weight), len(model.output)
    )
    d_model = torch.arange(settings.d_model)
    order = torch.cat((d_model[0::2], d_model[1::2]))
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            ours = weights[name].detach()
            parameter.data = ours if _NONE.fullmatch(name) else ours.index_select(_axis(name, ours), order)
    return other.train(model.training)


def _axis(name: str, weight: torch.Tensor) -> int:
    if _LAST.fullmatch(name):
        return weight.dim() - 1
    if _FIRST.fullmatch(name):
        return 0
    raise ValueError(f"{name}: no one has said which of its dimensions is d_model")
