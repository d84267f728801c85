"""Rotary positions that differ between layers that see all and layers that reach a window."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.model.settings import ModelSettings, RotarySettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder

TOKENS_BT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


def settings(layers: tuple[str, ...], window_rotary: RotarySettings | None) -> ModelSettings:
    values = {
        "d_model": 16,
        "d_ff": 16,
        "heads": 2,
        "encoder_layers": len(layers),
        "decoder_layers": len(layers),
        "positions": "rotary",
        "spans": layers,
        "window": 3,
        "window_rotary": window_rotary,
        "dropout": 0.0,
    }
    return ModelSettings.model_validate(values)


def hidden(layers: tuple[str, ...], window_rotary: RotarySettings | None) -> Tensor:
    torch.manual_seed(1)
    return CausalDecoder(settings(layers, window_rotary), 10).decode(TOKENS_BT)


def states(layers: tuple[str, ...], window_rotary: RotarySettings | None) -> Tensor:
    torch.manual_seed(1)
    return BidirectionalEncoder(settings(layers, window_rotary), 10).encode(TOKENS_BT)


def test_layers_with_a_window_turn_by_their_own_base() -> None:
    other = RotarySettings(base=10.0)

    for run in (hidden, states):
        assert torch.equal(run(("full", "window"), None), run(("full", "window"), RotarySettings()))
        assert (run(("full", "window"), None) - run(("full", "window"), other)).abs().max() > 1e-4
        assert torch.equal(run(("full", "full"), None), run(("full", "full"), other))


def test_all_layers_with_a_window_have_its_base_alone() -> None:
    torch.manual_seed(1)
    plain = settings(("window",), None).model_copy(update={"rotary": RotarySettings(base=10.0)})

    expected = CausalDecoder(plain, 10).decode(TOKENS_BT)

    assert torch.equal(hidden(("window",), RotarySettings(base=10.0)), expected)


def test_a_second_base_adds_nothing_to_the_file() -> None:
    model = CausalDecoder(settings(("full", "window"), RotarySettings(base=10.0)), 10)

    assert not [name for name in model.state_dict() if "in_windows" in name]
