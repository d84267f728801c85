"""Beside torch's own attention and Transformer layers, with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.model.attention import MultiHeadAttention, reference_attention
from regard.model.blocks import DecoderLayer, EncoderLayer, Residual
from regard.model.masks import Mask, causal, padding
from regard.model.settings import ModelSettings

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
REAL_BS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def settings(placement: str = "post") -> ModelSettings:
    return ModelSettings.model_validate(
        {"d_model": 24, "d_ff": 40, "heads": 4, "dropout": 0.0, "norm_placement": placement}
    )


def shake(module: nn.Module) -> None:
    """Biases and gains that begin at 0 and 1 would hide a mistake."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    assert theirs.in_proj_weight is not None
    theirs.in_proj_weight.data.copy_(ours.in_projection.weight)
    theirs.in_proj_bias.data.copy_(ours.in_projection.bias)
    theirs.out_proj.load_state_dict(ours.out_projection.state_dict())


def copy_norms(theirs: nn.Module, *residuals: Residual) -> None:
    for number, residual in enumerate(residuals, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())


def assert_same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, **CLOSE)
    direction = torch.randn_like(ours)
    gradients = (torch.autograd.grad(output, inputs, direction) for output in (ours, theirs))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(settings()), nn.MultiheadAttention(24, 4, batch_first=True)
    shake(ours)
    copy_attention(theirs, ours)
    x, memory = torch.randn(2, 4, 24, requires_grad=True), torch.randn(2, 5, 24, requires_grad=True)
    assert_same(ours(x), theirs(x, x, x)[0], x)
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert_same(ours(x, causal(4, 4)), theirs(x, x, x, attn_mask=hidden)[0], x)
    over_memory = theirs(x, memory, memory, key_padding_mask=~REAL_BS)[0]
    assert_same(ours.over_memory(x, memory, padding(REAL_BS)), over_memory, x, memory)


def test_attention_weights() -> None:
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(settings()), nn.MultiheadAttention(24, 4, batch_first=True)
    copy_attention(theirs, ours)
    x = torch.randn(2, 5, 24)
    query, key, _ = ours.in_projection(x).view(2, 5, 3, 4, 6).permute(2, 0, 3, 1, 4)
    weights = reference_attention(query, key, key, padding(REAL_BS)).weights_BHTS
    expected = theirs(x, x, x, key_padding_mask=~REAL_BS, average_attn_weights=False)[1]
    torch.testing.assert_close(weights, expected, **CLOSE)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_encoder_layer(placement: str) -> None:
    torch.manual_seed(0)
    ours = EncoderLayer(settings(placement))
    shake(ours)
    theirs = nn.TransformerEncoderLayer(24, 4, 40, 0.0, batch_first=True, norm_first=placement == "pre")
    copy_attention(theirs.self_attn, ours.self_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
    copy_norms(theirs, ours.self_attention_residual, ours.feed_forward_residual)
    x = torch.randn(2, 5, 24, requires_grad=True)
    assert_same(ours(x, padding(REAL_BS)), theirs(x, src_key_padding_mask=~REAL_BS), x)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_decoder_layer(placement: str) -> None:
    torch.manual_seed(0)
    ours = DecoderLayer(settings(placement))
    shake(ours)
    theirs = nn.TransformerDecoderLayer(24, 4, 40, 0.0, batch_first=True, norm_first=placement == "pre")
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.memory_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
    copy_norms(theirs, ours.self_attention_residual, ours.memory_attention_residual, ours.feed_forward_residual)
    x, memory = torch.randn(2, 4, 24, requires_grad=True), torch.randn(2, 5, 24, requires_grad=True)
    expected = theirs(x, memory, tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1), memory_key_padding_mask=~REAL_BS)
    assert_same(ours(x, causal(4, 4), memory, padding(REAL_BS)), expected, x, memory)


@pytest.mark.parametrize("length", [3, 80])
def test_reference_attention_is_torchs_scaled_dot_product_attention(length: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3))
    expected = functional.scaled_dot_product_attention(query, key, value)
    assert_same(reference_attention(query, key, value).output_BHTE, expected, query, key, value)
    allowed = torch.rand(2, 1, length, length) < 0.5
    allowed |= torch.eye(length, dtype=torch.bool)
    expected = functional.scaled_dot_product_attention(query, key, value, allowed)
    assert_same(reference_attention(query, key, value, Mask(allowed)).output_BHTE, expected, query, key, value)
