"""Beside torch's own loss and optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.training.loss import cross_entropy, reference_cross_entropy
from regard.training.optimizers import OptimizerSettings, adam


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("loss", [reference_cross_entropy, cross_entropy])
def test_label_smoothing(loss: object, smoothing: float) -> None:
    assert callable(loss)
    torch.manual_seed(0)
    hidden, weight = torch.randn(30, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    targets = torch.randint(50, (30,))
    expected = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum", label_smoothing=smoothing)
    smoothed, nll = loss(hidden, weight, targets, smoothing)
    torch.testing.assert_close(smoothed, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(nll, functional.cross_entropy(hidden @ weight.T, targets, reduction="sum").detach())
    for one, other in zip(
        torch.autograd.grad(smoothed, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_adam_is_torchs_plain_adam() -> None:
    """Rates that change at each step, as the schedule's do, and a weight without gradient once."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    fused = adam(ours, OptimizerSettings())
    plain = torch.optim.Adam(theirs.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=False, foreach=False)
    for step in range(1, 30):
        for model, optimizer in ((ours, fused), (theirs, plain)):
            optimizer.zero_grad()
            torch.manual_seed(step)
            (model(torch.randn(3, 5)) * torch.randn(3, 4)).sum().backward()
            if step == 7:
                model.bias.grad = None
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / step
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
