"""Compiled attention of short sequences: the reference in float64 is its oracle, for each kind of CPU that is here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.model import attention as model
from regard.model.masks import Mask
from regard.model.reference import reference_attention
from regard.model.short_attention import short_attention
from regard.native import attention as native


def heads(batch: int, count: int, length: int, width: int, seed: int) -> Tensor:
    """[B, H, T, E] as projections give them: heads side by side, and something else beside them."""
    joined = torch.randn(batch, length, count * width + 5, generator=torch.Generator().manual_seed(seed))
    return joined[..., 2 : 2 + count * width].view(batch, length, count, width).transpose(1, 2)


def padding(batch: int, keys: int) -> Tensor:
    """Keys of rows of other lengths, one at least."""
    return torch.arange(keys)[None, None, None] <= torch.arange(batch)[:, None, None, None] * 3 % keys


SIZES = [
    (1, 1, 1, 1, 16, 16),
    (3, 4, 14, 14, 32, 32),
    (2, 2, 7, 33, 16, 48),
    (5, 3, 64, 17, 64, 16),
    (2, 1, 16, 16, 80, 80),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("masked", ["not", "padding", "causal", "both"])
def test_outputs_and_gradients(loaded, size, masked):
    batch, count, queries, keys, d_key, d_value = size
    inputs = [heads(batch, count, *each) for each in ((queries, d_key, 1), (keys, d_key, 2), (keys, d_value, 3))]
    allowed = padding(batch, keys) if masked in ("padding", "both") else torch.ones(1, 1, 1, keys, dtype=torch.bool)
    if masked in ("causal", "both"):
        allowed = allowed & (torch.arange(keys) <= torch.arange(queries)[:, None])
    mask = None if masked == "not" else Mask(allowed)
    gradient = heads(batch, count, queries, d_value, 4)
    results = []
    for dtype in (torch.float32, torch.float64):
        mine = [each.detach().to(dtype).requires_grad_() for each in inputs]
        if dtype == torch.float32:
            assert native.fits(*mine)
            output = short_attention(*mine, mask, scale=0.3)
        else:
            output = reference_attention(*mine, mask, scale=0.3).output_BHTE
        assert output is not None
        output.backward(gradient.to(dtype))
        results.append([output.detach(), *(each.grad for each in mine)])
    for compiled, exact in zip(*results, strict=True):
        torch.testing.assert_close(compiled.double(), exact, rtol=1e-5, atol=3e-6)


def test_large_scores_stay_finite(loaded):
    query = torch.zeros(1, 1, 3, 16)
    query[..., 0] = torch.tensor([1e4, -1e4, 0.0])
    key = torch.zeros(1, 1, 20, 16)
    key[..., 0] = torch.arange(20.0)
    value = heads(1, 1, 20, 16, 3)
    output = short_attention(query, key, value, scale=1.0)
    assert output is not None
    torch.testing.assert_close(output[0, 0], torch.stack((value[0, 0, 19], value[0, 0, 0], value[0, 0].mean(dim=0))))


def test_what_is_not_a_number_is_not_hidden(loaded):
    query, key, value = (heads(2, 2, 9, 16, seed) for seed in range(3))
    query[1, 0, 4, 3] = float("nan")
    output = short_attention(query, key, value)
    assert output is not None
    assert output[1, 0, 4].isnan().all()
    assert output.isnan().sum() == 16


def test_several_threads_share_the_rows(loaded, monkeypatch: pytest.MonkeyPatch):
    inputs = [heads(7, 2, 9, 16, seed).requires_grad_() for seed in range(3)]
    results = []
    for threads in (1, 3, 20):
        monkeypatch.setattr(native, "_threads", lambda *_, threads=threads: threads)
        output = short_attention(*inputs)
        assert output is not None
        results.append((output.detach(), *torch.autograd.grad(output.sum(), inputs)))
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert torch.equal(one, same)


def test_what_is_added_may_be_one_number_for_all_keys_or_not_contiguous(loaded):
    inputs = [heads(2, 2, 9, 16, seed) for seed in range(3)]
    plain, _ = native.attend(*inputs, None, 0.25)
    shifted, _ = native.attend(*inputs, torch.full((1, 1, 1, 1), 3.0), 0.25)
    torch.testing.assert_close(shifted, plain)
    added = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    one, _ = native.attend(*inputs, added.T.contiguous()[None, None], 0.25)
    other, _ = native.attend(*inputs, added.T[None, None], 0.25)
    assert torch.equal(one, other)
    assert not torch.allclose(one, plain)


def test_a_gradient_that_is_the_same_everywhere(loaded):
    """Such as that of a sum: all its strides are 0."""
    inputs = [heads(2, 2, 9, 16, seed).requires_grad_() for seed in range(3)]
    expanded, written = (short_attention(*inputs) for _ in range(2))
    assert expanded is not None
    assert written is not None
    one = torch.autograd.grad(expanded.sum(), inputs)
    other = torch.autograd.grad(written, inputs, torch.ones_like(written).contiguous())
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "case", ["width", "float64", "shared heads", "softcap", "dropout", "empty rows", "mask of heads"]
)
def test_what_it_does_not_know_is_computed_plainly(case):
    width = 24 if case == "width" else 16
    query, key, value = (heads(2, 2, 5, width, seed) for seed in range(3))
    options: dict[str, float] = {}
    mask = None
    if case == "float64":
        query, key, value = query.double(), key.double(), value.double()
    elif case == "shared heads":
        key, value = key[:, :1], value[:, :1]
    elif case in ("softcap", "dropout"):
        options = {"softcap": 5.0} if case == "softcap" else {"drop": 0.5}
    elif case == "empty rows":
        mask = Mask(torch.tensor([[True] * 5, [False] * 5])[:, None, None])
    elif case == "mask of heads":
        mask = Mask(torch.tensor([[True] * 5, [True] * 4 + [False]])[None, :, None])
    assert short_attention(query, key, value, mask, **options) is None
    torch.manual_seed(0)
    expected = reference_attention(query, key, value, mask, **options).output_BHTE
    torch.manual_seed(0)
    torch.testing.assert_close(model.attention(query, key, value, mask, **options), expected)
