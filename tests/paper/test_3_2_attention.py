"""Section 3.2: scaled dot-product attention, multi-head attention and their uses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.model.attention import MultiHeadAttention, attention, fused_attention, reference_attention
from regard.model.masks import Mask, causal
from regard.model.settings import ModelSettings

Q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[None, None]
"""Three positions of width 2, one head: queries, keys and values of the worked example."""


def test_worked_example_scores() -> None:
    """Q = K = [[1,0],[0,1],[1,1]]: Q K^T = [[1,0,1],[0,1,1],[1,1,2]], divided by sqrt(2)."""
    values = reference_attention(Q, Q, Q)
    expected = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0]])
    torch.testing.assert_close(values.scores_BHTS[0, 0] * math.sqrt(2), expected)


def test_worked_example_weights_and_output() -> None:
    """Row 1 by hand: e^(1/sqrt 2) = 2.0281, so the weights are 2.0281, 1, 2.0281 over 5.0562."""
    values = reference_attention(Q, Q, Q)
    a, b = 0.401112, 0.197776
    torch.testing.assert_close(values.weights_BHTS[0, 0, 0], torch.tensor([a, b, a]), atol=1e-5, rtol=0)
    torch.testing.assert_close(values.output_BHTE[0, 0, 0], torch.tensor([2 * a, a + b]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("execution", [attention, fused_attention, lambda *qkv: reference_attention(*qkv).output_BHTE])
def test_worked_example_of_a_weighted_sum(execution: object) -> None:
    """Weights [0.2, 0.3, 0.5] over V = [[1,0],[0,1],[1,1]] give [0.7, 0.8]."""
    assert callable(execution)
    query = torch.ones(1, 1, 1, 1)
    keys = torch.tensor([0.2, 0.3, 0.5]).log()[None, None, :, None]
    torch.testing.assert_close(execution(query, keys, Q)[0, 0, 0], torch.tensor([0.7, 0.8]))


def test_worked_example_of_softmax() -> None:
    keys = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None]
    weights = reference_attention(torch.ones(1, 1, 1, 1), keys, Q).weights_BHTS[0, 0, 0]
    assert [round(weight, 2) for weight in weights.tolist()] == [0.09, 0.24, 0.67]


def test_dot_products_have_variance_d_k_and_scaling_makes_it_one() -> None:
    """Footnote 4: with components of mean 0 and variance 1, q . k has mean 0 and variance d_k."""
    torch.manual_seed(0)
    for d_k in (16, 64, 256):
        query, key = torch.randn(2, 1, 1, 500, d_k)
        scores = reference_attention(query, key, key).scores_BHTS
        assert scores.mean().abs() < 0.02
        assert scores.var().item() == pytest.approx(1.0, abs=0.06)
        assert (scores * math.sqrt(d_k)).var().item() == pytest.approx(d_k, rel=0.06)


def test_why_the_scale_unscaled_softmax_saturates_and_its_gradient_vanishes() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 200, 512, dtype=torch.float64)
    steepness = []
    for factor in (1.0, math.sqrt(512)):
        weights = reference_attention(query * factor, key, key).weights_BHTS
        steepness.append((weights * (1 - weights)).sum(-1).mean().item())
    scaled, unscaled = steepness
    assert scaled > 0.9
    assert unscaled < 0.15


def test_causal_mask_is_the_lower_triangle() -> None:
    mask = causal(4, 4)
    assert mask is not None
    assert mask.allowed_BHTS[0, 0].tolist() == [[s <= t for s in range(4)] for t in range(4)]
    chunk = causal(2, 5)
    assert chunk is not None
    assert chunk.allowed_BHTS[0, 0].tolist() == [[True] * 4 + [False], [True] * 5]
    assert causal(1, 5) is None


def test_hidden_scores_are_minus_infinity_and_hidden_weights_zero() -> None:
    """'masking out (setting to -inf) all values in the input of the softmax'."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 8)
    values = reference_attention(x, x, x, causal(4, 4))
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert torch.all(values.scores_BHTS[..., hidden] == -math.inf)
    assert torch.all(values.weights_BHTS[..., hidden] == 0)
    assert torch.all(values.weights_BHTS[..., ~hidden] > 0)


def loop_over_heads(module: MultiHeadAttention, settings: ModelSettings, x: Tensor, memory: Tensor) -> Tensor:
    """Concat(head_1 .. head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), a head of a sentence at a time."""
    h, d_k, d_v = settings.heads, settings.key_width, settings.value_width
    W, b = module.in_projection.weight, module.in_projection.bias
    sentences = []
    for x_TD, memory_SD in zip(x, memory, strict=True):
        heads = []
        for i in range(h):
            rows_q = slice(i * d_k, (i + 1) * d_k)
            rows_k = slice(h * d_k + i * d_k, h * d_k + (i + 1) * d_k)
            rows_v = slice(2 * h * d_k + i * d_v, 2 * h * d_k + (i + 1) * d_v)
            query = x_TD @ W[rows_q].T + b[rows_q]
            key = memory_SD @ W[rows_k].T + b[rows_k]
            value = memory_SD @ W[rows_v].T + b[rows_v]
            heads.append(torch.softmax(query @ key.T / math.sqrt(d_k), dim=-1) @ value)
        sentences.append(torch.cat(heads, dim=-1) @ module.out_projection.weight.T + module.out_projection.bias)
    return torch.stack(sentences)


@pytest.mark.parametrize(
    "widths", [{}, {"d_key": 3}, {"d_value": 5}, {"d_key": 7, "d_value": 2}, {"heads": 1}, {"heads": 12}]
)
def test_multi_head_attention_is_a_loop_over_heads(widths: dict[str, int]) -> None:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"d_model": 12, "heads": 3} | widths)
    module = MultiHeadAttention(settings)
    torch.nn.init.normal_(module.in_projection.bias)
    torch.nn.init.normal_(module.out_projection.bias)
    x, memory = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    torch.testing.assert_close(module(x), loop_over_heads(module, settings, x, x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        module.over_memory(x, memory), loop_over_heads(module, settings, x, memory), atol=1e-5, rtol=1e-5
    )


def test_heads_cost_the_same_whatever_their_number() -> None:
    """'the total computational cost is similar to that of single-head attention with full dimensionality'."""
    sizes = {
        heads: sum(p.numel() for p in MultiHeadAttention(ModelSettings(d_model=64, heads=heads)).parameters())
        for heads in (1, 2, 8, 32)
    }
    assert set(sizes.values()) == {4 * 64 * 64 + 4 * 64}


def test_a_memory_serves_several_rows_of_queries() -> None:
    """Rows are folded over the memory of their source: row i belongs to source i // k."""
    torch.manual_seed(0)
    module = MultiHeadAttention(ModelSettings(d_model=8, heads=2))
    memory, x = torch.randn(2, 5, 8), torch.randn(6, 3, 8)
    mask = Mask(torch.tensor([[True] * 5, [True] * 2 + [False] * 3])[:, None, None])
    alone = [module.over_memory(x[i : i + 1], memory[i // 3, : (5, 2)[i // 3]][None]) for i in range(6)]
    torch.testing.assert_close(module.over_memory(x, memory, mask), torch.cat(alone), atol=1e-6, rtol=1e-5)


def test_rows_that_do_not_belong_to_the_sources_are_refused() -> None:
    module = MultiHeadAttention(ModelSettings(d_model=8, heads=2))
    with pytest.raises(RuntimeError):
        module.over_memory(torch.randn(3, 2, 8), torch.randn(2, 5, 8))
