"""The fused loss equals the plain one: values and gradients, for any number of rows and any cut into chunks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.training import loss as module
from regard.training.loss import cross_entropy, reference_cross_entropy

smoothings = st.sampled_from([0.0, 0.1, 0.5, 0.99])


def inputs(rows: int, vocabulary: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    torch.manual_seed(rows + 100 * vocabulary)
    hidden = (scale * torch.randn(rows, 6)).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, 6).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,))


def results(loss: object, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> list[Tensor]:
    assert callable(loss)
    smoothed, nll = loss(hidden, weight, targets, smoothing)
    assert not nll.requires_grad
    return [smoothed.detach(), nll, *torch.autograd.grad(smoothed * 0.7, (hidden, weight))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 9),
    vocabulary=st.integers(1, 12),
    smoothing=smoothings,
    chunk_rows=st.integers(1, 10),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_fused_equals_reference(
    monkeypatch: pytest.MonkeyPatch, rows: int, vocabulary: int, smoothing: float, chunk_rows: int, scale: float
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_rows * 4 * vocabulary)
    arguments = inputs(rows, vocabulary, scale)
    expected = results(reference_cross_entropy, *arguments, smoothing)
    for one, other in zip(results(cross_entropy, *arguments, smoothing), expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, atol=1e-5 * max(1.0, scale), rtol=1e-4)


@pytest.mark.parametrize("chunk_bytes", [0, 1, 40, 41, 79, 80, 120, 10**9])
def test_any_size_of_chunk_is_right(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    """10 classes in float32 are 40 bytes a row; too small a chunk is still one row."""
    arguments = inputs(7, 10)
    expected = results(reference_cross_entropy, *arguments, 0.1)
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    for one, other in zip(results(cross_entropy, *arguments, 0.1), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", [reference_cross_entropy, cross_entropy])
def test_no_rows_cost_nothing_and_teach_nothing(loss: object) -> None:
    """A batch of padding only."""
    smoothed, nll, *gradients = results(loss, *inputs(0, 5), 0.1)
    assert (smoothed.item(), nll.item()) == (0.0, 0.0)
    assert torch.all(gradients[1] == 0)


@pytest.mark.parametrize("loss", [reference_cross_entropy, cross_entropy])
@pytest.mark.parametrize("size", [50.0, 1e4, 1e30])
def test_extreme_logits(loss: object, size: float) -> None:
    """Logits [size, 0, -size]: target 0 costs nothing, target 2 costs 2 size, and nothing overflows."""
    hidden = torch.tensor([[size, 0.0, -size]], requires_grad=True)
    weight = torch.eye(3, requires_grad=True)
    for target, expected in ((0, 0.0), (1, size), (2, 2 * size)):
        smoothed, nll, *gradients = results(loss, hidden, weight, torch.tensor([target]), 0.0)
        assert smoothed.item() == pytest.approx(expected, rel=1e-6)
        assert nll.item() == pytest.approx(expected, rel=1e-6)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_infinite_or_undefined_states_are_never_a_finite_loss() -> None:
    for bad in (math.inf, math.nan):
        hidden = torch.tensor([[bad, 1.0]])
        assert not math.isfinite(cross_entropy(hidden, torch.randn(3, 2), torch.tensor([1]), 0.1)[0].item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", [torch.float32, None], ids=["float32 weights", "all in half"])
def test_half_precision(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, weights: torch.dtype | None) -> None:
    """Close to float32 at the rounded inputs; the gradients have their inputs' dtypes."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 3 * 4 * 12)
    hidden, weight, targets = inputs(8, 12, dtype=dtype)
    weight = weight.detach().to(weights or dtype).requires_grad_()
    exact = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    expected = results(reference_cross_entropy, *exact, targets, 0.1)
    found = results(cross_entropy, hidden, weight, targets, 0.1)
    assert [tensor.dtype for tensor in found[2:]] == [hidden.dtype, weight.dtype]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other, atol=0.05, rtol=0.02)


def test_autocast_changes_the_precision_of_the_product_only() -> None:
    hidden, weight, targets = inputs(8, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = results(cross_entropy, hidden, weight, targets, 0.1)
    assert [tensor.dtype for tensor in mixed] == [torch.float32] * 4
    rounded = hidden.detach().bfloat16().requires_grad_()
    by_hand = results(cross_entropy, rounded, weight, targets, 0.1)
    for one, other in zip(mixed, by_hand, strict=True):
        torch.testing.assert_close(one, other.float(), atol=0, rtol=0)


def test_no_gradient_is_made_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation must not pay for a backward pass."""
    made = []
    zeros_like = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda *a, **k: made.append(a) or zeros_like(*a, **k))
    hidden, weight, targets = inputs(3, 5)
    with torch.no_grad():
        without = cross_entropy(hidden, weight, targets, 0.1)
    assert made == []
    assert not without[0].requires_grad
    torch.testing.assert_close(cross_entropy(hidden, weight, targets, 0.1), without)
    assert len(made) == 1
