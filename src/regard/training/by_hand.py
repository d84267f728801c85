"""Losses whose gradients are made beside them, by hand, so that logits need not be kept for the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Result = tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]
"""Loss, negative log-likelihood, and the gradients of the loss by hidden states and output matrix, if wanted."""


def by_hand(
    compute: Callable[[Tensor, Tensor, bool], Result], hidden_ND: Tensor, weight_VD: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and negative log-likelihood of hidden states and the output matrix; only the loss has a gradient.

    `compute` is told last whether gradients are wanted. It works in the precision of an autocast around it, all of it.
    """
    device = hidden_ND.device.type
    if torch.is_autocast_enabled(device):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(device))
    learning = torch.is_grad_enabled()  # inside of an autograd function it seems never to be
    with torch.autocast(device, enabled=False):
        function: type[torch.autograd.Function] = _ByHand
        loss, nll = function.apply(hidden_ND, weight_VD, compute, learning)
    return loss, nll


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, compute: Callable[..., Result], learning: bool
    ) -> tuple[Tensor, Tensor]:
        loss, nll, gradients = compute(hidden_ND, weight_VD, learning and any(ctx.needs_input_grad))
        if gradients is not None:
            ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gradient_hidden, gradient_weight = ctx.saved_tensors
        scale = gradients[0]
        return gradient_hidden * scale.to(gradient_hidden.dtype), gradient_weight * scale, None, None
