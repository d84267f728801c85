"""The softmax of short rows is torch's."""

from __future__ import annotations

import pytest
import torch

from regard.model.softmax import VECTOR, softmax


@pytest.mark.parametrize("length", [1, 2, 7, VECTOR - 1, VECTOR, 40])
def test_values_and_gradients_are_those_of_torch(length: int) -> None:
    x = torch.randn(3, 2, 5, length, generator=torch.Generator().manual_seed(length)) * 4
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    p = softmax(ours)
    p.backward(gradient)
    expected = theirs.softmax(dim=-1)
    expected.backward(gradient)
    torch.testing.assert_close(p, expected, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)


def test_hidden_values_weigh_nothing_and_large_ones_do_not_overflow() -> None:
    lowest = torch.finfo(torch.float32).min
    p = softmax(torch.tensor([[1000.0, lowest, 1000.0], [lowest, 3.0, -float("inf")]]))
    assert p.tolist() == [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]


def test_a_row_that_is_hidden_as_a_whole_is_even() -> None:
    lowest = torch.finfo(torch.float32).min
    assert softmax(torch.full((1, 4), lowest)).tolist() == [[0.25] * 4]
