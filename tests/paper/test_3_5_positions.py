"""Section 3.5: positional encoding."""

from __future__ import annotations

import math

import pytest
import torch

from regard.model.places import run
from regard.model.positions import POSITIONS, LearnedPositions, SinusoidalPositions, sinusoids
from regard.model.settings import ModelSettings


def test_the_formula_at_hand_computed_values() -> None:
    """d_model = 4: frequencies 1 and 1/100."""
    table = sinusoids(3, 4)
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841471, 0.540302, 0.0099998, 0.99995],
        [0.909297, -0.416147, 0.0199987, 0.9998],
    ]
    torch.testing.assert_close(table, torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("position", "i"), [(0, 0), (1, 7), (50, 100), (999, 255), (4095, 3)])
def test_the_formula_at_any_place(position: int, i: int) -> None:
    angle = position / 10000 ** (2 * i / 512)
    row = sinusoids(position + 1, 512)[position]
    assert row[2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
    assert row[2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_wavelengths_run_from_2_pi_to_10000_times_2_pi() -> None:
    d_model = 512
    first, last = 2 * math.pi, 2 * math.pi * 10000 ** (510 / 512)
    table = sinusoids(2, d_model)
    assert table[1, 0].item() == pytest.approx(math.sin(2 * math.pi / first), abs=1e-6)
    assert table[1, 510].item() == pytest.approx(math.sin(2 * math.pi / last), abs=1e-9)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_a_shift_by_k_is_one_linear_map_for_all_positions(k: int) -> None:
    """PE(pos + k) = M_k PE(pos): rotations by k times each frequency, beside each other."""
    d_model, length = 16, 50
    table = sinusoids(length + k, d_model).double()
    M = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(0, d_model, 2):
        angle = k / 10000 ** (i / d_model)
        M[i : i + 2, i : i + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
    torch.testing.assert_close(table[:length] @ M.T, table[k:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_positions_are_added_from_the_offset_on(positions: str) -> None:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"d_model": 8, "heads": 1, "positions": positions, "max_length": 10})
    module, zeros = POSITIONS[positions](settings), torch.zeros(1, 10, 8)
    whole = module(zeros, run(0, 10))
    assert len(torch.unique(whole[0], dim=0)) == 10
    torch.testing.assert_close(
        torch.cat((module(zeros[:, :4], run(0, 4)), module(zeros[:, :6], run(4, 6))), dim=1), whole
    )
    torch.testing.assert_close(module(torch.ones(3, 10, 8), run(0, 10)), 1 + whole.expand(3, -1, -1))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (10, 1), (50, 1)])
def test_positions_beyond_the_last_are_refused(positions: str, offset: int, length: int) -> None:
    """Slicing a table beyond its end gives fewer rows, and one row would broadcast to all positions."""
    settings = ModelSettings.model_validate({"d_model": 8, "heads": 1, "positions": positions, "max_length": 10})
    with pytest.raises(ValueError, match=f"^{offset + length} positions are more than the model's max_length of 10$"):
        POSITIONS[positions](settings)(torch.zeros(1, length, 8), run(offset, length))


def test_sinusoids_are_no_weights_and_learned_positions_are() -> None:
    settings = ModelSettings(d_model=8, heads=1, max_length=10)
    assert list(SinusoidalPositions(settings).parameters()) == []
    assert SinusoidalPositions(settings).state_dict() == {}
    assert [p.shape for p in LearnedPositions(settings).parameters()] == [(10, 8)]


def test_a_trip_through_half_precision_leaves_the_table_exact() -> None:
    """Far positions must not collapse: bfloat16 cannot tell 4095 from 4096."""
    module = SinusoidalPositions(ModelSettings(d_model=64, heads=1, max_length=4096))
    exact = module.table_TD.clone()
    assert torch.equal(module.to(torch.bfloat16).table_TD, exact.to(torch.bfloat16))
    assert torch.equal(module.to(torch.float32).table_TD, exact)
    assert torch.equal(module.half().float().table_TD, exact)


def test_a_model_made_without_storage_gets_its_table_when_it_gets_storage() -> None:
    settings = ModelSettings(d_model=8, heads=1, max_length=10)
    with torch.device("meta"):
        module = SinusoidalPositions(settings)
    torch.testing.assert_close(module.to_empty(device="cpu").table_TD, sinusoids(10, 8))
