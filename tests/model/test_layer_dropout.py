"""LayerDrop: whole layers left out of a training step, none of them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.model import blocks
from regard.model.settings import ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder

IDS = torch.tensor([[3, 4, 5, 6, 7]])
TARGET = torch.tensor([[1, 8, 9]])
LAYERS = 3


def settings(**changes: Any) -> ModelSettings:
    size = {"d_model": 16, "d_ff": 24, "heads": 2, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "dropout": 0.0}
    return ModelSettings.model_validate(size | changes)


FAMILIES: dict[str, tuple[Callable[[ModelSettings], nn.Module], Callable[[Any], Tensor], list[str]]] = {
    "encoder-decoder": (
        lambda s: EncoderDecoder(s, 12, 12),
        lambda model: model(IDS, None, TARGET),
        ["encoder", "decoder"],
    ),
    "causal-decoder": (lambda s: CausalDecoder(s, 12), lambda model: model(IDS), ["decoder"]),
    "encoder": (lambda s: BidirectionalEncoder(s, 12), lambda model: model(IDS), ["encoder"]),
}


def built(family: str, **changes: Any) -> tuple[Any, Callable[[Any], Tensor], list[str]]:
    build, run, stacks = FAMILIES[family]
    torch.manual_seed(0)
    return build(settings(**changes)), run, stacks


def draws(monkeypatch: pytest.MonkeyPatch, numbers: Iterable[float]) -> None:
    """The random numbers of the layers, one for each, in their order."""
    source = iter(numbers)

    def rand(size: tuple[int, ...], *, device: str, generator: torch.Generator | None) -> Tensor:
        assert (size, device, generator) == ((), "cpu", None)
        return torch.tensor(next(source))

    monkeypatch.setattr(blocks.torch, "rand", rand)


@pytest.mark.parametrize("placement", ["post", "pre", "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_left_out_when_its_number_is_below_the_probability(
    monkeypatch: pytest.MonkeyPatch, family: str, placement: str
) -> None:
    """What remains is the model of the other layers, as it is: nothing is scaled. What was left out has no gradient."""
    model, run, stacks = built(family, layer_dropout=0.25, norm_placement=placement)
    numbers = [0.2, 0.25, 0.9, 0.3, 0.1, 0.24][: LAYERS * len(stacks)]
    draws(monkeypatch, numbers)
    hidden = run(model.train())
    hidden.square().sum().backward()
    smaller, _, _ = built(family, norm_placement=placement)
    smaller.load_state_dict(model.state_dict())
    for index, stack in enumerate(stacks):
        layers = getattr(model, stack)
        out = [number < 0.25 for number in numbers[index * LAYERS : (index + 1) * LAYERS]]
        assert any(out)
        for layer, left in zip(layers, out, strict=True):
            assert [parameter.grad is None for parameter in layer.parameters()] == [left] * len([*layer.parameters()])
        kept = [layer for layer, left in zip(getattr(smaller, stack), out, strict=True) if not left]
        setattr(smaller, stack, nn.ModuleList(kept))
    assert torch.equal(hidden, run(smaller.train()))


@pytest.mark.parametrize("family", FAMILIES)
def test_outside_of_training_all_layers_count_and_nothing_is_drawn(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    model, run, _ = built(family, layer_dropout=0.9)
    plain, _, _ = built(family)
    draws(monkeypatch, [])
    assert torch.equal(run(model.eval()), run(plain.eval()))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_it_the_random_numbers_of_training_are_as_before(family: str) -> None:
    model, run, _ = built(family)
    before = torch.get_rng_state()
    run(model.train())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_may_be_left_out(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    model, run, stacks = built(family, layer_dropout=0.5)
    draws(monkeypatch, [0.0] * LAYERS * len(stacks))
    assert torch.isfinite(run(model.train())).all()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_layers_are_left_out_independently_and_as_often_as_asked(probability: float) -> None:
    torch.manual_seed(0)
    out = torch.tensor([[blocks.left_out(probability, True) for _ in range(2)] for _ in range(20_000)]).double()
    assert out.mean(0).tolist() == pytest.approx([probability] * 2, abs=0.01)
    assert (out[:, 0] * out[:, 1]).mean().item() == pytest.approx(probability**2, abs=0.01)


@pytest.mark.parametrize("probability", [-0.1, 1.0])
def test_a_probability_is_one(probability: float) -> None:
    with pytest.raises(ValueError, match="layer_dropout"):
        settings(layer_dropout=probability)
