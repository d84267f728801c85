"""Products with factors in bfloat16: what is rounded, and that nothing else is."""

from __future__ import annotations

import threading

import pytest
import torch

from regard.model.linear import linear
from regard.model.precision import filled, half_products, product, products_are_half


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.detach().bfloat16().double()


def assert_rounded_once(value: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
    """A sum within what bfloat16's 8 digits and an order of additions in float32 may change of it."""
    assert value.dtype == torch.float32
    assert ((value - exact).abs() <= 2**-8 * exact.abs() + 1e-6 * size).all()


@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24), (1, 24), (0, 24), (24,)])
def test_factors_are_rounded_forward_and_back(shape: tuple[int, ...]) -> None:
    x, layer = drawn(*shape).requires_grad_(), linear(24, [8, 3])
    torch.nn.init.normal_(layer.bias)
    with half_products():
        y = layer(x)
    gradient = drawn(*y.shape)
    y.backward(gradient)
    w, flat, back = rounded(layer.weight), rounded(x).reshape(-1, 24), rounded(gradient).reshape(-1, 11)
    without = (y - layer.bias).detach().reshape(-1, 11)
    size = flat.abs() @ w.abs().T + layer.bias.abs()
    assert_rounded_once(without, flat @ w.T, size)
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert_rounded_once(x.grad.reshape(-1, 24), back @ w, back.abs() @ w.abs())
    assert layer.weight.grad is not None
    assert_rounded_once(layer.weight.grad, back.T @ flat, back.abs().T @ flat.abs())
    # The bias is no factor.
    torch.testing.assert_close(layer.bias.grad, gradient.reshape(-1, 11).sum(dim=0))


def test_a_factor_beyond_eight_digits_is_rounded_and_a_bias_is_not() -> None:
    one = torch.tensor([1.0])
    finer = 1 + 2**-12
    with half_products():
        assert product(finer * one, one[None]) == 1
        assert product(one, finer * one[None]) == 1
        assert product(0 * one, one[None], finer * one) == finer
    assert product(finer * one, one[None]) == finer


def test_sums_are_of_float32() -> None:
    """256 + 1 + ... + 1: a sum in bfloat16 would stay at 256."""
    x = torch.ones(1, 257)
    x[0, 0] = 256.0
    with half_products():
        assert product(x, torch.ones(1, 257)) == 512


def test_what_is_not_float32_stays_as_it_is() -> None:
    x, weight = drawn(3, 8).double(), drawn(2, 8).double()
    with half_products():
        assert torch.equal(product(x, weight), x @ weight.T)


def test_each_thread_has_its_own_context() -> None:
    seen: list[bool] = []
    with half_products():
        with half_products():
            pass
        assert products_are_half()
        thread = threading.Thread(target=lambda: seen.append(products_are_half()))
        thread.start()
        thread.join()
    assert seen == [False]
    assert not products_are_half()


def test_what_is_not_finite_stays_so() -> None:
    x = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0]])
    with half_products():
        y = product(x, torch.ones(1, 2))
    assert y[0].isnan()
    assert y[1].isinf()


def test_rows_have_few_sizes_that_are_not_much_larger() -> None:
    assert [filled(count) for count in (0, 1, 9, 16, 17, 1000, 1023, 1024, 1025, 3000)] == [
        *(0, 1, 9, 16, 18, 1024, 1024, 1024, 1152, 3072)
    ]
    for count in range(1, 9000):
        assert count <= filled(count) < 1.125 * count
    assert len({filled(count) for count in range(2049, 4097)}) == 8


def test_rows_that_fill_up_change_nothing() -> None:
    """65 rows are computed as 72: the sum of a gradient over rows must not see what was in that memory before."""
    x, layer = drawn(65, 32), linear(32, 16)
    torch.full((1 << 16,), float("nan"), dtype=torch.bfloat16)  # memory that is likely to be given again
    with half_products():
        y = layer(x)
        y.sum().backward()
    assert y.shape == (65, 16)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, rounded(x).sum(dim=0).float().expand(16, 32), rtol=2**-8, atol=1e-5)
