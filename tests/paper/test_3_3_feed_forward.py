"""Section 3.3: position-wise feed-forward networks."""

from __future__ import annotations

import torch

from regard.model.feed_forward import FeedForward
from regard.model.settings import ModelSettings


def test_ffn_by_hand() -> None:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 with numbers that one can follow."""
    ffn = FeedForward(ModelSettings(d_model=2, d_ff=3, heads=1))
    with torch.no_grad():
        ffn.expand.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]))
        ffn.expand.bias.copy_(torch.tensor([0.0, -1.0, 0.5]))
        ffn.contract.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]))
        ffn.contract.bias.copy_(torch.tensor([10.0, 20.0]))
    # x = [2, 3]: hidden max(0, [2, 2, -0.5]) = [2, 2, 0]; x = [-1, 0]: max(0, [-1, -1, -0.5]) = 0
    output = ffn(torch.tensor([[[2.0, 3.0], [-1.0, 0.0]]]))
    assert output.tolist() == [[[16.0, 22.0], [10.0, 20.0]]]


def test_each_position_is_transformed_by_itself_and_alike() -> None:
    torch.manual_seed(0)
    ffn, x = FeedForward(ModelSettings(d_model=8, d_ff=32, heads=1)), torch.randn(2, 5, 8)
    whole = ffn(x)
    for position in range(5):
        torch.testing.assert_close(ffn(x[:, position : position + 1]), whole[:, position : position + 1])


def test_its_size() -> None:
    ffn = FeedForward(ModelSettings())
    assert sum(p.numel() for p in ffn.parameters()) == 2 * 512 * 2048 + 2048 + 512
