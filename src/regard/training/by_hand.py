"""Losses whose gradients are made beside them, by hand, so that logits need not be kept for the way back."""

from __future__ import annotations

import torch
from torch import Tensor


def by_hand(
    function: type[torch.autograd.Function], hidden_ND: Tensor, weight_VD: Tensor, *settings: object
) -> tuple[Tensor, Tensor]:
    """Loss and negative log-likelihood by a function of hidden states, the output matrix and settings.

    It works in the precision of an autocast around it, all of it. The last thing it is told is whether gradients are
    wanted: inside of an autograd function they seem never to be.
    """
    device = hidden_ND.device.type
    if torch.is_autocast_enabled(device):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(device))
    learning = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        loss, nll = function.apply(hidden_ND, weight_VD, *settings, learning)
    return loss, nll
