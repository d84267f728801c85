"""Dropout on a CPU: as torch's own, from cheaper random bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.model.dropout import dropout
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder


@given(st.lists(st.integers(0, 5), max_size=4), st.floats(0, 0.999), st.booleans())
def test_values_are_zero_or_scaled_and_the_gradient_has_the_same_places(
    shape: list[int], p: float, transposed: bool
) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape) + 1
    x = (x.transpose(0, -1) if transposed and shape else x).detach().requires_grad_()
    y = dropout(x, p, training=True)
    rounded = round(p * 2**16) / 2**16
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - rounded))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept / (1 - rounded))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_mean_variance_and_independence_of_neighbours(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(400_000), p, training=True)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.004)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert y.var().item() == pytest.approx(p / (1 - p), rel=0.03)
    zero = (y == 0).double()
    for distance in (1, 2, 3, 4, 5):
        both = (zero[:-distance] * zero[distance:]).mean().item()
        assert both == pytest.approx(p * p, abs=0.004)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtype_stays(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.5, training=True)
    assert y.dtype == dtype
    assert set(y.tolist()) == {0.0, 2.0}
    assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype


@pytest.mark.parametrize("p", [0.999999, 1 - 2**-17, 1e-9])
def test_probabilities_beside_the_ends_stay_finite(p: float) -> None:
    y = dropout(torch.ones(10_000), p, training=True)
    assert torch.isfinite(y).all()
    assert ((y == 0).float().mean() > 0.99).item() == (p > 0.5)


def test_outside_training_it_is_the_very_same_tensor_and_draws_nothing() -> None:
    x = torch.ones(5)
    state = torch.get_rng_state()
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_the_generator_decides_it() -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropout(torch.ones(100), 0.5, training=True))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_a_model_is_repeatable_in_evaluation_and_random_in_training() -> None:
    torch.manual_seed(0)
    settings = ModelSettings(
        d_model=16, d_ff=32, heads=2, encoder_layers=2, decoder_layers=2,
        dropout=0.5, attention_dropout=0.5, activation_dropout=0.5,
    )  # fmt: skip
    model = EncoderDecoder(settings, 30, 30)
    arguments = torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1, 6]])
    model.eval()
    assert torch.equal(model(*arguments), model(*arguments))
    model.train()
    assert not torch.equal(model(*arguments), model(*arguments))
