"""Attention: two executions, one mathematics, for any shapes, masks and precisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.model import attention as module
from regard.model.attention import AttentionValues, MultiHeadAttention, attention, fused_attention, watching
from regard.model.attention import reference_attention as reference
from regard.model.masks import Mask, causal, padding
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
dtypes = st.sampled_from(sorted(TOLERANCE, key=str))
sizes = st.integers(1, 6)


def reference_output(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
    return reference(query, key, value, mask).output_BHTE


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Mask | None]:
    """Query, key, value and a mask, which may hide anything, whole rows too."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    batch, heads, queries, keys, width, value_width = (draw(sizes) for _ in range(6))
    kind = draw(st.sampled_from(["none", "causal", "padding", "any", "causal & padding"]))
    keys = queries if kind.startswith("causal") else keys
    real = torch.arange(keys) < torch.randint(0, keys + 1, (batch, 1))
    mask = {
        "none": lambda: None,
        "causal": lambda: causal(queries, keys),
        "padding": lambda: padding(real),
        "any": lambda: Mask(torch.rand(batch, draw(st.sampled_from([1, heads])), queries, keys) < 0.5),
        "causal & padding": lambda: Mask(real[:, None, None]) & causal(queries, keys),
    }[kind]()
    shapes = (queries, width), (keys, width), (keys, value_width)
    query, key, value = (torch.randn(batch, heads, *shape, dtype=torch.float64) for shape in shapes)
    return query, key, value, mask


def seen(mask: Mask | None, weights: Tensor) -> Tensor:
    return torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.allowed_BHTS.expand_as(weights)


@given(cases(), dtypes)
def test_fused_equals_reference(case: tuple[Tensor, Tensor, Tensor, Mask | None], dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in case[:3])
    expected = reference_output(query, key, value, case[3])
    assert expected.dtype == dtype
    for execution in (fused_attention, attention):
        result = execution(query, key, value, case[3])
        torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@given(cases())
def test_gradients_of_fused_equal_those_of_reference(case: tuple[Tensor, Tensor, Tensor, Mask | None]) -> None:
    inputs = [tensor.requires_grad_() for tensor in case[:3]]
    direction = torch.randn(*case[0].shape[:3], case[2].shape[-1], dtype=torch.float64)
    one, other = (
        torch.autograd.grad(execution(*inputs, case[3]), inputs, direction)
        for execution in (reference_output, fused_attention)
    )
    for expected, result in zip(one, other, strict=True):
        torch.testing.assert_close(result, expected, atol=1e-10, rtol=1e-8)


@given(cases())
def test_reference_is_the_formula_row_by_row(case: tuple[Tensor, Tensor, Tensor, Mask | None]) -> None:
    """Each query by itself, over the keys it may see and no others, with softmax spelt out."""
    query, key, value, mask = case
    values = reference(*case)
    allowed = seen(mask, values.weights_BHTS)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).reshape(-1, 3).tolist():
        keys = allowed[b, h, t].nonzero().squeeze(1)
        if len(keys) == 0:
            assert torch.all(values.output_BHTE[b, h, t] == 0)
            continue
        powers = (key[b, h, keys] @ query[b, h, t] / math.sqrt(query.shape[-1])).exp()
        weights = powers / powers.sum()
        torch.testing.assert_close(values.weights_BHTS[b, h, t, keys], weights)
        torch.testing.assert_close(values.output_BHTE[b, h, t], weights @ value[b, h, keys])


@given(cases())
def test_weights_are_a_distribution_over_the_visible_keys(case: tuple[Tensor, Tensor, Tensor, Mask | None]) -> None:
    values = reference(*case)
    weights, allowed = values.weights_BHTS, seen(case[3], values.weights_BHTS)
    assert torch.all(weights >= 0)
    assert torch.all(weights[~allowed] == 0)
    assert torch.all(values.scores_BHTS[~allowed] == -math.inf)
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).to(weights.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("execution", [reference_output, fused_attention, attention])
@pytest.mark.parametrize("queries", [1, 3, 70])
def test_a_row_with_nothing_to_attend_to_is_zero_and_harmless(
    execution: Callable[..., Tensor], dtype: torch.dtype, queries: int
) -> None:
    """Its gradient is zero and it leaves its neighbours' values and gradients as if it were not there."""
    torch.manual_seed(0)
    x = torch.randn(2, 2, queries, 4, dtype=dtype).requires_grad_()
    keys = torch.randn(2, 2, 70, 4, dtype=dtype).requires_grad_()
    allowed = torch.ones(2, 1, queries, 70, dtype=torch.bool)
    allowed[0, :, -1] = False
    allowed[1] = False
    output = execution(x, keys, keys, Mask(allowed))
    assert torch.all(output[0, :, -1] == 0)
    assert torch.all(output[1] == 0)
    gradients = torch.autograd.grad(output.float().square().sum(), (x, keys))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert torch.all(gradients[0][1] == 0)
    assert torch.all(gradients[1][1] == 0)
    if queries > 1:
        alone = execution(x[:1, :, :-1], keys[:1], keys[:1], None)
        torch.testing.assert_close(output[:1, :, :-1], alone, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_float16_scores_beyond_its_range_give_the_right_weights() -> None:
    """q . k = 4 x 300 x 300 x 64 / 8 is far above 65,504: the softmax must not see infinity."""
    query = torch.full((1, 1, 1, 64), 300.0, dtype=torch.float16)
    keys = torch.stack([torch.full((64,), value) for value in (300.0, 299.0, 300.0)]).half()[None, None]
    value = torch.tensor([[1.0], [5.0], [3.0]]).half()[None, None]
    for execution in (reference_output, fused_attention):
        assert execution(query, keys, value, None).item() == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_hidden_keys_weigh_nothing_even_when_they_would_win(dtype: torch.dtype) -> None:
    """A mask that only adds a large number leaks when scores are larger."""
    query = torch.tensor([[[[100.0, 0.0]]]], dtype=dtype)
    keys = torch.tensor([[[[-600.0, 0.0], [600.0, 0.0]]]], dtype=dtype)
    mask = Mask(torch.tensor([[[[True, False]]]]))
    for execution in (reference_output, fused_attention):
        assert execution(query, keys, torch.tensor([[[[1.0], [-7.0]]]], dtype=dtype), mask).item() == 1.0


def test_large_inputs_take_the_fused_path_and_small_ones_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(module, "fused_attention", lambda *a, **k: taken.append("fused") or fused_attention(*a, **k))
    monkeypatch.setattr(module, "reference_attention", lambda *a, **k: taken.append("plain") or reference(*a, **k))
    for length in (64, 65):
        x = torch.randn(1, 1, length, 4)
        attention(x, x, x)
    assert taken == ["plain", "fused"]


def layer(drop: float = 0.0) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(ModelSettings(d_model=8, heads=2, attention_dropout=drop))


@pytest.mark.parametrize("length", [5, 70])
@pytest.mark.parametrize("training", [True, False])
def test_watching_changes_nothing_and_shows_weights_before_dropout(length: int, training: bool) -> None:
    attend, x = layer(drop=0.5).train(training), torch.randn(2, length, 8)
    mask = Mask(torch.ones(2, 1, length, length, dtype=torch.bool).tril() & (torch.rand(2, 1, length, length) < 0.7))
    torch.manual_seed(1)
    unseen = attend(x, mask)
    after_unseen = torch.rand(1)
    seen_values: list[AttentionValues] = []
    torch.manual_seed(1)
    with watching(seen_values.append):
        watched = attend(x, mask)
    assert torch.equal(watched, unseen)
    assert torch.equal(torch.rand(1), after_unseen)
    (values,) = seen_values
    weights = values.weights_BHTS
    assert not weights.requires_grad
    assert torch.all(weights >= 0)
    assert torch.all(weights[~mask.allowed_BHTS.expand_as(weights)] == 0)
    rows = mask.allowed_BHTS.any(-1).expand(2, 2, length)
    torch.testing.assert_close(weights.sum(-1), rows.float(), atol=1e-5, rtol=0)


def test_watching_leaves_the_gradient_of_a_learned_bias() -> None:
    """All layers share a bias: it must not be made first by the one who looks, who needs no gradient."""
    settings = ModelSettings(d_model=8, d_ff=8, heads=2, decoder_layers=2, positions="t5", dropout=0.0)
    torch.manual_seed(0)
    model = CausalDecoder(settings, 9)
    gradients = []
    for context in (nullcontext, lambda: watching(lambda values: None)):
        with context():
            total = model.logits(model.decode(torch.tensor([[3, 4, 5, 6]])))[..., 0].sum()
        gradients.append(torch.autograd.grad(total, model.embedding.positions.weight)[0])
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_watching_ends_with_its_block_also_after_an_error() -> None:
    attend, x = layer(), torch.randn(1, 3, 8)
    calls: list[AttentionValues] = []
    with pytest.raises(RuntimeError), watching(calls.append):
        attend.out_projection(attend(x)[..., :1])
    attend(x)
    assert len(calls) == 1


def test_attention_dropout_keeps_the_mean_and_is_off_in_evaluation() -> None:
    attend, x = layer(drop=0.4), torch.randn(1, 6, 8)
    attend.eval()
    exact = attend(x)
    assert torch.equal(attend(x), exact)
    attend.train()
    mean = attend(x.expand(20_000, -1, -1)).mean(dim=0)
    assert not torch.equal(attend(x), attend(x))
    torch.testing.assert_close(mean, exact[0], atol=0.02, rtol=0)
