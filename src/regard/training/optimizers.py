"""The optimizer (section 5.3)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from regard.settings import Settings


class OptimizerSettings(Settings):
    """Adam (Kingma and Ba 2015) with the paper's constants."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of the gradients."""
    beta2: float = Field(0.98, ge=0, lt=1)
    """Decay of the mean of their squares."""
    epsilon: float = Field(1e-9, gt=0)
    """Added to the root of that mean."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """At each step matrices lose this share of themselves, times the rate (AdamW, Loshchilov and Hutter 2019). The
    paper has none."""


def adam(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Adam over all weights that learn, in torch's fused implementation. The schedule sets the rate at each step.

    Only matrices decay: biases and the gains of normalisations stay about where they are best.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in learning if each.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [each for each in learning if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
