"""The compiled loss. Its oracle are the plain formulas in float64, for each kind of CPU that this one stands in for."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional

from regard.native import loss as native
from regard.native.library import NativeError
from regard.training import loss as training
from regard.training import r_drop
from regard.training.loss import cross_entropy
from regard.training.r_drop import fused_r_drop, reference_r_drop


def drawn(positions: int, width: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(positions * 1000 + vocabulary)
    hidden = torch.randn(positions, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) / width**0.5
    return hidden, weight, torch.randint(vocabulary, (positions,), generator=generator)


SHAPES = [
    *[(1, 16, 1), (1, 16, 5), (63, 48, 96), (64, 64, 97), (65, 80, 500), (300, 128, 103), (513, 16, 211)],
    *[(130, 16, 40_000), (70, 16, 70_000)],  # fewer positions at a time
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_its_gradients(loaded, shape, smoothing):
    hidden, weight, targets = drawn(*shape)
    exact = [each.double().requires_grad_() for each in (hidden, weight)]
    logits = exact[0] @ exact[1].T
    expected = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    expected_nll = functional.cross_entropy(logits.detach(), targets, reduction="sum")
    expected.backward()
    assert native.fits(hidden, weight)
    loss, nll, gradients = native.fused_loss(hidden, weight, True, targets, smoothing)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=2e-6, atol=1e-5)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=2e-6, atol=1e-5)
    assert gradients is not None
    for gradient, known in zip(gradients, exact, strict=True):
        torch.testing.assert_close(gradient.double(), known.grad, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_r_drop_and_its_gradients(loaded, shape, alpha):
    hidden, weight, targets = drawn(*shape)
    hidden = torch.cat((hidden, hidden.flip(0) * 0.7 + 0.1))
    targets = targets.repeat(2)
    exact = [each.double().requires_grad_() for each in (hidden, weight)]
    expected, expected_nll = reference_r_drop(exact[0] @ exact[1].T, targets, 0.1, alpha)
    expected.backward()
    loss, nll, gradients = native.fused_loss(hidden, weight, True, targets, 0.1, alpha)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=5e-6, atol=2e-5)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=2e-6, atol=1e-5)
    assert gradients is not None
    for gradient, known in zip(gradients, exact, strict=True):
        torch.testing.assert_close(gradient.double(), known.grad, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [*SHAPES, (1, 32, 1), (130, 32, 40_001), (257, 96, 193)])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_factors_in_half_precision(loaded, shape, alpha):
    """As if factors had been given rounded, with one more rounding on the way back: that of the logits' gradient."""
    hidden, weight, targets = drawn(*shape)
    if alpha:
        hidden, targets = torch.cat((hidden, hidden.flip(0) * 0.7 + 0.1)), targets.repeat(2)
    loss, nll, gradients = native.fused_loss(hidden, weight, True, targets, 0.1, alpha, half=True)
    assert gradients is not None
    if not loaded.regard_fast_pairs() or hidden.shape[1] % 32:
        whole = native.fused_loss(hidden, weight, True, targets, 0.1, alpha)
        assert (loss, nll) == whole[:2]
        return
    exact = [each.bfloat16().double().requires_grad_() for each in (hidden, weight)]
    logits = exact[0] @ exact[1].T
    logits.retain_grad()
    if alpha:
        expected, expected_nll = reference_r_drop(logits, targets, 0.1, alpha)
    else:
        expected = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
        expected_nll = functional.cross_entropy(logits.detach(), targets, reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=5e-6, atol=2e-5)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=2e-6, atol=1e-5)
    assert logits.grad is not None
    size = logits.grad.abs()
    most = size @ exact[1].detach().abs(), size.T @ exact[0].detach().abs()
    for gradient, known, sums in zip(gradients, exact, most, strict=True):
        assert ((gradient - known.grad).abs() <= 2**-8 * sums + 1e-5).all()


def test_logits_of_any_size_are_told_apart_from_their_largest(loaded):
    """Without the largest taken off, e^300 would be infinite; with one taken too early, e^-300 nothing."""
    hidden = torch.zeros(3, 16)
    hidden[:, 0] = 1.0
    weight = torch.zeros(200, 16)
    weight[:, 0] = torch.linspace(-300, 300, 200)
    targets = torch.tensor([199, 0, 198])
    loss, _, gradients = native.fused_loss(hidden, weight, True, targets, 0.0)
    expected = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert gradients is not None
    assert gradients[0].isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("half", [False, True])
def test_what_is_not_finite_is_not_hidden(loaded, bad, alpha, half):
    """The guard of training has to see it."""
    hidden, weight, targets = drawn(64, 32, 300)
    hidden[5, 3] = bad
    loss, nll, gradients = native.fused_loss(hidden, weight, True, targets, 0.1, alpha, half)
    assert gradients is not None
    assert loss.isnan()
    assert nll.isnan()
    assert not gradients[0][5].isfinite().all()


def test_a_target_outside_is_refused(loaded):
    hidden, weight, targets = drawn(64, 16, 30)
    for wrong in (-1, 30):
        targets[63] = wrong
        with pytest.raises(NativeError, match="not in the vocabulary"):
            native.fused_loss(hidden, weight, True, targets, 0.1)


def test_without_gradients_only_sums(loaded):
    hidden, weight, targets = drawn(65, 16, 300)
    plain, with_them = (native.fused_loss(hidden, weight, wanted, targets, 0.1) for wanted in (False, True))
    assert plain[2] is None
    assert plain[:2] == with_them[:2]


def test_nothing_at_all(loaded):
    loss, nll, gradients = native.fused_loss(torch.zeros(0, 16), torch.ones(7, 16), True, torch.zeros(0).long(), 0.1)
    assert gradients is not None
    assert loss == nll == gradients[1].abs().sum() == 0


def test_rows_that_are_not_contiguous(loaded):
    hidden, weight, targets = drawn(40, 32, 90)
    apart = [torch.stack((each, torch.full_like(each, 9.0)), dim=-1)[..., 0] for each in (hidden, weight, targets)]
    assert not apart[0].is_contiguous()
    one = native.fused_loss(hidden, weight, True, targets, 0.1)
    other = native.fused_loss(apart[0], apart[1], True, apart[2], 0.1)
    assert one[0] == other[0]
    for a, b in zip(one[2] or (), other[2] or (), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("hidden", "weight"),
    [
        (torch.zeros(4, 24), torch.zeros(9, 24)),  # 24 is no multiple of a vector
        (torch.zeros(4, 16).double(), torch.zeros(9, 16).double()),
        (torch.zeros(4, 16).bfloat16(), torch.zeros(9, 16)),
        (torch.zeros(4, 16, device="meta"), torch.zeros(9, 16, device="meta")),
    ],
)
def test_what_it_does_not_know_is_left_to_torch(hidden, weight):
    assert not native.fits(hidden, weight)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_training_by_torch_and_by_the_library_are_the_same(loaded, monkeypatch: pytest.MonkeyPatch, alpha):
    hidden, weight, targets = drawn(200, 32, 150)
    targets = targets[:100].repeat(2)
    results = []
    for fits in (True, False):
        for module in (training, r_drop):
            monkeypatch.setattr(module.native, "fits", lambda *_, fits=fits: fits)
        inputs = [each.clone().requires_grad_() for each in (hidden, weight)]
        loss, nll = fused_r_drop(*inputs, targets, 0.1, alpha) if alpha else cross_entropy(*inputs, targets, 0.1)
        (3 * loss).backward()
        results.append((loss.detach(), nll, *(each.grad for each in inputs)))
    for compiled, by_torch in zip(*results, strict=True):
        torch.testing.assert_close(compiled, by_torch, rtol=2e-5, atol=2e-5)


def test_under_autocast_it_is_torchs(loaded):
    """The hidden states are halved on their way in; read as float32 they would be beyond their memory's end."""
    hidden, weight, targets = drawn(200, 32, 150)
    hidden.requires_grad_()
    for alpha in (0.0, 5.0):
        loss = partial(fused_r_drop, alpha=alpha) if alpha else cross_entropy
        whole, _ = loss(hidden, weight, targets, 0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half, _ = loss(hidden, weight, targets, 0.1)
        half.backward()
        assert whole != half
        torch.testing.assert_close(half, whole, rtol=0.05, atol=0.0)
