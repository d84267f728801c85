"""Normalisation: a table of its kinds."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from regard.model.settings import ModelSettings

NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": nn.LayerNorm,  # (x - mean) / sqrt(variance + eps) * weight + bias: Ba et al. 2016, arXiv 1607.06450
    "rms": nn.RMSNorm,  # x / sqrt(mean of squares + eps) * weight: Zhang and Sennrich 2019, arXiv 1910.07467
}


def norm(settings: ModelSettings, width: int | None = None) -> nn.Module:
    """The normalisation of vectors of `width`, by default d_model."""
    return NORMS[settings.norm](width or settings.d_model, settings.norm_epsilon)


def final_norm(settings: ModelSettings) -> nn.Module:
    """What ends a stack: a normalisation, unless each layer ends in one (Xiong et al. 2020, arXiv 2002.04745)."""
    wanted = settings.norm_placement != "post" if settings.final_norm is None else settings.final_norm
    return norm(settings) if wanted else nn.Identity()
