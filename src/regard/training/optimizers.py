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


def adam(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Adam:
    """Adam over all weights, in torch's fused implementation. The rate is set at each step by the schedule."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True
    )
