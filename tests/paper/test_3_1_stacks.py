"""Section 3.1: encoder and decoder stacks, residual connections, causality."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.model.blocks import DecoderLayer, EncoderLayer, Residual
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

PLACEMENTS = ("post", "pre")


def tiny(**changes: object) -> ModelSettings:
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return ModelSettings.model_validate(values | changes)


def test_the_base_model_is_the_papers() -> None:
    settings = ModelSettings()
    assert (settings.encoder_layers, settings.decoder_layers) == (6, 6)
    assert (settings.d_model, settings.d_ff, settings.heads) == (512, 2048, 8)
    assert (settings.key_width, settings.value_width) == (64, 64)
    assert (settings.dropout, settings.attention_dropout, settings.activation_dropout) == (0.1, 0.0, 0.0)
    assert (settings.norm_placement, settings.positions, settings.tie) == ("post", "sinusoidal", "all")


def test_stacks_have_n_layers_of_two_and_three_sublayers() -> None:
    model = EncoderDecoder(tiny(encoder_layers=3, decoder_layers=5), 11, 11)
    assert (len(model.encoder), len(model.decoder)) == (3, 5)
    assert sum(isinstance(part, Residual) for part in EncoderLayer(tiny()).children()) == 2
    assert sum(isinstance(part, Residual) for part in DecoderLayer(tiny()).children()) == 3


def test_post_norm_is_layer_norm_of_x_plus_sublayer_of_x() -> None:
    torch.manual_seed(0)
    residual, sublayer, x = Residual(tiny()), nn.Linear(16, 16), torch.randn(2, 3, 16) * 5 + 2
    nn.init.normal_(residual.norm.weight)
    nn.init.normal_(residual.norm.bias)
    total = x + sublayer(x)
    mean, variance = total.mean(-1, keepdim=True), total.var(-1, keepdim=True, unbiased=False)
    expected = (total - mean) / (variance + 1e-5).sqrt() * residual.norm.weight + residual.norm.bias
    torch.testing.assert_close(residual(x, sublayer), expected, atol=1e-5, rtol=1e-5)


def test_pre_norm_is_x_plus_sublayer_of_layer_norm_of_x() -> None:
    torch.manual_seed(0)
    residual, sublayer, x = Residual(tiny(norm_placement="pre")), nn.Linear(16, 16), torch.randn(2, 3, 16) * 5 + 2
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(residual(x, sublayer), x + sublayer(normal), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_output_of_both_stacks_is_normalised(placement: str) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(tiny(norm_placement=placement), 11, 11)
    keys = torch.ones(1, 5, dtype=torch.bool)
    memory = model.encode(torch.tensor([[3, 4, 5, 6, 7]]), keys)
    hidden = model.decode(torch.tensor([[1, 8, 9]]), memory)
    for output in (memory.states_BSD, hidden):
        torch.testing.assert_close(output.mean(-1), torch.zeros(output.shape[:2]), atol=1e-5, rtol=0)
        torch.testing.assert_close(output.var(-1, unbiased=False), torch.ones(output.shape[:2]), atol=1e-2, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_decoder_position_does_not_depend_on_later_ones(placement: str, positions: str) -> None:
    """The gradient of output t with respect to every later input is exactly zero, and not to itself and earlier."""
    torch.manual_seed(0)
    model = EncoderDecoder(tiny(norm_placement=placement, positions=positions, tie="none"), 11, 11)
    memory = model.encode(torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool))
    inputs: list[torch.Tensor] = []

    def keep(module: nn.Module, arguments: object, output: torch.Tensor) -> torch.Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    model.target_embedding.register_forward_hook(keep)
    hidden = model.decode(torch.tensor([[1, 4, 5, 6, 7]]), memory)
    for t in range(5):
        (gradient,) = torch.autograd.grad(hidden[0, t] @ torch.randn(16), inputs[0], retain_graph=True)
        reached = gradient[0].abs().amax(dim=-1)
        assert torch.all(reached[t + 1 :] == 0)
        assert torch.all(reached[: t + 1] > 0)


def test_encoder_positions_see_all_of_each_other() -> None:
    torch.manual_seed(0)
    layer, x = EncoderLayer(tiny()), torch.randn(1, 4, 16, requires_grad=True)
    output = layer(x, None)
    for t in range(4):
        (gradient,) = torch.autograd.grad(output[0, t] @ torch.randn(16), x, retain_graph=True)
        assert torch.all(gradient[0].abs().amax(dim=-1) > 0)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_positions_the_encoder_is_permutation_equivariant(placement: str) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(tiny(norm_placement=placement), 11, 11)
    x, order = torch.randn(1, 6, 16), torch.tensor([3, 0, 5, 1, 4, 2])

    def encoder(x: torch.Tensor) -> torch.Tensor:
        for layer in model.encoder:
            x = layer(x, None)
        return x

    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_with_positions_the_encoder_knows_the_order(positions: str) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(tiny(positions=positions), 11, 11)
    ids, order = torch.tensor([[3, 4, 5, 6]]), torch.tensor([2, 0, 3, 1])
    keys = torch.ones(1, 4, dtype=torch.bool)
    states = model.encode(ids, keys).states_BSD[:, order]
    permuted = model.encode(ids[:, order], keys).states_BSD
    assert (permuted - states).abs().max() > 0.1
