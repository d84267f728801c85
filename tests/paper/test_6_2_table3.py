"""Section 6.2, Table 3: the sizes of all models of the paper."""

from __future__ import annotations

import pytest
import torch

from regard.errors import UserError
from regard.model import store
from regard.model.presets import PRESETS, preset
from regard.model.transformer import EncoderDecoder

VOCABULARY = 37_000
"""'a shared source-target vocabulary of about 37000 tokens' (section 5.1)."""
PAPER = sorted(name for name in PRESETS if name.startswith("paper-"))


def size(name: str, vocabulary: int = VOCABULARY) -> int:
    """The number of parameters, without making any."""
    with torch.device("meta"):
        model = EncoderDecoder(preset(name).model, vocabulary, vocabulary)
    return sum(tensor.numel() for tensor in store.parameters(model).values())


def test_the_base_model_in_full() -> None:
    attention = 4 * (512 * 512 + 512)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    norm = 2 * 512
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    assert VOCABULARY * 512 + 6 * (encoder_layer + decoder_layer) == 63_082_496
    assert size("paper-base") == 63_082_496


def test_the_big_model() -> None:
    """1% above the 213 million that the paper prints."""
    assert size("paper-big") == 214_245_376


printed_rows = [name for name in PAPER if PRESETS[name].printed_millions is not None and name != "paper-big"]


def test_which_sizes_the_paper_prints() -> None:
    assert printed_rows == ["paper-B1", "paper-B2", *(f"paper-C{i}" for i in range(1, 8)), "paper-base"]
    assert PRESETS["paper-big"].printed_millions == 213


@pytest.mark.parametrize("name", printed_rows)
def test_sizes_are_what_the_paper_prints(name: str) -> None:
    """'About 37000' must have been some 41,000 in these rows: with that, each one rounds to the printed million."""
    assert round(size(name, 41_000) / 1e6) == PRESETS[name].printed_millions


@pytest.mark.parametrize("name", [name for name in PAPER if name[6] in "AD"])
def test_rows_a_and_d_have_the_size_of_the_base_model(name: str) -> None:
    assert size(name) == size("paper-base")


def test_row_e_adds_a_vector_for_each_position_of_both_sides() -> None:
    assert size("paper-E") - size("paper-base") == 2 * 1024 * 512


def test_every_row_of_the_table_is_there() -> None:
    rows = ["base", "big", "A1", "A2", "A3", "A4", "B1", "B2", *(f"C{i}" for i in range(1, 8)), "D1", "D2", "D3", "D4"]
    assert sorted(f"paper-{row}" for row in [*rows, "E"]) == PAPER


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("base", {}),
        ("big", {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3}),
        ("A1", {"heads": 1, "d_key": 512, "d_value": 512}),
        ("A2", {"heads": 4, "d_key": 128, "d_value": 128}),
        ("A3", {"heads": 16, "d_key": 32, "d_value": 32}),
        ("A4", {"heads": 32, "d_key": 16, "d_value": 16}),
        ("B1", {"d_key": 16}),
        ("B2", {"d_key": 32}),
        ("C1", {"layers": 2}),
        ("C2", {"layers": 4}),
        ("C3", {"layers": 8}),
        ("C4", {"d_model": 256, "d_key": 32, "d_value": 32}),
        ("C5", {"d_model": 1024, "d_key": 128, "d_value": 128}),
        ("C6", {"d_ff": 1024}),
        ("C7", {"d_ff": 4096}),
        ("D1", {"dropout": 0.0}),
        ("D2", {"dropout": 0.2}),
        ("D3", {"label_smoothing": 0.0}),
        ("D4", {"label_smoothing": 0.2}),
        ("E", {"positions": "learned"}),
    ],
)
def test_what_each_row_changes(name: str, changes: dict[str, object]) -> None:
    base = {
        "layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "d_key": 64, "d_value": 64, "dropout": 0.1,
        "label_smoothing": 0.1, "positions": "sinusoidal", "tie": "all", "norm_placement": "post",
    }  # fmt: skip
    chosen = preset(f"paper-{name}")
    model = chosen.model
    assert model.encoder_layers == model.decoder_layers
    row = {key: getattr(model, key, None) for key in base} | {
        "layers": model.encoder_layers,
        "d_key": model.key_width,
        "d_value": model.value_width,
        "label_smoothing": chosen.label_smoothing,
    }
    assert row == base | changes


def test_an_unknown_preset_is_named_and_all_are_listed() -> None:
    with pytest.raises(UserError, match=r"no preset 'papier'; the presets are paper-base, .*tiny, small"):
        preset("papier")
