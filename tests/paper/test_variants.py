"""What later publications say of their variants, by formula and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.model import rotary
from regard.model.feed_forward import FeedForward
from regard.model.norms import NORMS
from regard.model.places import run
from regard.model.positions import POSITIONS, Positions, buckets, slopes
from regard.model.rotary import SCALINGS
from regard.model.settings import ModelSettings, RotarySettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder

ABSOLUTE = sorted(name for name, scheme in POSITIONS.items() if scheme.relate is Positions.relate and name != "none")
RELATIVE: dict[str, dict[str, Any]] = {
    **{name: {"positions": name} for name in POSITIONS if name not in (*ABSOLUTE, "none")},
    "t5 of few buckets": {"positions": "t5", "buckets": {"count": 8, "max_distance": 16}},
    "rotary in pairs": {"positions": "rotary", "rotary": {"layout": "interleaved", "fraction": 0.5}},
    **{
        f"rotary {kind}": {
            "positions": "rotary",
            "rotary": {"scaling": {"kind": kind, "factor": 8.0, "original_length": 32, "high_frequency_factor": 4.0}},
        }
        for kind in SCALINGS
    },
}


def settings(**changes: Any) -> ModelSettings:
    tiny = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return ModelSettings.model_validate(tiny | changes)


def encoder(**changes: Any) -> BidirectionalEncoder:
    torch.manual_seed(0)
    return BidirectionalEncoder(settings(**changes), 30).eval()


@pytest.mark.parametrize("positions", sorted(POSITIONS))
def test_without_positions_an_encoder_does_not_know_the_order_and_with_them_it_does(positions: str) -> None:
    """Section 3.5: 'since our model contains no recurrence and no convolution'."""
    model, ids, order = encoder(positions=positions), torch.arange(3, 12)[None], torch.randperm(9)
    difference = (model.encode(ids[:, order]) - model.encode(ids)[:, order]).abs().max().item()
    if positions == "none":
        assert difference < 1e-5
    else:
        assert difference > 1e-3


def shifted_scores(changes: dict[str, Any], shift: int) -> Tensor:
    """Scores of 6 queries and keys that stand `shift` positions later."""
    torch.manual_seed(0)
    chosen = settings(**changes)
    scheme, places = POSITIONS[chosen.positions](chosen), run(shift, 6)
    relation = scheme.relate(places, places)
    assert relation is not None
    query, key = torch.randn(2, 1, 2, 6, 8)
    scores = relation.turn_queries(query) @ relation.turn_keys(key).transpose(-2, -1)
    return scores if relation.bias is None else scores + relation.bias.dense_BHTS


@pytest.mark.parametrize("name", sorted(RELATIVE))
@pytest.mark.parametrize("shift", [1, 50, 5000])
def test_relative_schemes_see_distances_only(name: str, shift: int) -> None:
    torch.testing.assert_close(
        shifted_scores(RELATIVE[name], shift), shifted_scores(RELATIVE[name], 0), atol=2e-5, rtol=1e-5
    )


@pytest.mark.parametrize("positions", ABSOLUTE)
def test_absolute_schemes_see_where_a_text_begins(positions: str) -> None:
    scheme, zeros = POSITIONS[positions](settings(positions=positions)), torch.zeros(1, 6, 16)
    assert not torch.allclose(scheme(zeros, run(0, 6)), scheme(zeros, run(3, 6)), atol=1e-2)


def test_slopes_of_linear_biases() -> None:
    """Press et al. 2022, section 3: 1/2 .. 1/256 for 8 heads; between powers of two, every other slope of the next."""
    assert slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    between = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    torch.testing.assert_close(slopes(12), torch.tensor([2.0**-i for i in range(1, 9)] + between))
    assert shifted_bias("alibi")[0].tolist() == [[0, -0.0625, -0.125], [-0.0625, 0, -0.0625], [-0.125, -0.0625, 0]]


def shifted_bias(positions: str) -> Tensor:
    scheme = POSITIONS[positions](settings(positions=positions))
    relation = scheme.relate(run(0, 3), run(0, 3))
    assert relation is not None
    assert relation.bias is not None
    return relation.bias.dense_BHTS[0]


def test_buckets_by_hand() -> None:
    """8 buckets up to distance 16. Causal: 4 single ones, then 4 for 4-5, 6-7, 8-11 and all from 12 on."""
    distances = torch.tensor([3, 0, -1, -3, -4, -5, -6, -8, -11, -12, -400])
    assert buckets(distances, 8, 16, causal=True).tolist() == [0, 0, 1, 3, 4, 4, 5, 6, 6, 7, 7]
    # Both ways: 4 buckets for each side, 2 of them single, then 2-5 and all from 6 on.
    assert buckets(torch.tensor([0, -1, -2, -5, -6, -99, 1, 2, 5, 6, 99]), 8, 16, causal=False).tolist() == [
        *(0, 1, 2, 2, 3, 3),
        *(5, 6, 6, 7, 7),
    ]


def test_buckets_beyond_the_last_single_one_need_room() -> None:
    with pytest.raises(ValueError, match="max_distance = 16 should be above count / 2 = 16"):
        settings(positions="t5", buckets={"count": 32, "max_distance": 16})


def test_rotation_by_hand() -> None:
    """Su et al. 2021, equation 34: pair i turns by position * 10000^(-2i/d)."""
    frequencies, factor = rotary.frequencies(RotarySettings(), 4)
    assert frequencies.tolist() == [1.0, 0.01]
    turn = rotary.turn(frequencies, factor, torch.tensor([[0, 2]]))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 2, 4)
    c, s, d, e = math.cos(2), math.sin(2), math.cos(0.02), math.sin(0.02)
    assert rotary.rotate(x, turn)[0, 0, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    expected = torch.tensor([c - 3 * s, 2 * d - 4 * e, s + 3 * c, 2 * e + 4 * d])
    torch.testing.assert_close(rotary.rotate(x, turn)[0, 0, 1], expected)
    expected = torch.tensor([c - 2 * s, s + 2 * c, 3 * d - 4 * e, 3 * e + 4 * d])
    torch.testing.assert_close(rotary.rotate(x, turn, "interleaved")[0, 0, 1], expected)


def test_rotation_in_half_and_double_precision() -> None:
    """A pair may turn into one dimension: sqrt(2) * 60,000 is above what float16 holds. float64 stays it."""
    turn = rotary.turn(torch.tensor([1.0]), 1.0, torch.arange(6)[None])
    large = rotary.rotate(torch.full((1, 1, 6, 2), 6e4).half(), turn)
    assert large.abs().max().item() == 65_504
    x = torch.randn(1, 1, 6, 2, dtype=torch.float64)
    angle = torch.arange(6, dtype=torch.float64)
    expected = x[..., 0] * angle.cos() - x[..., 1] * angle.sin()
    torch.testing.assert_close(rotary.rotate(x, turn)[..., 0], expected, atol=2e-7, rtol=0)
    assert torch.equal(rotary.rotate(x, turn)[:, :, 0], x[:, :, 0])  # position 0 turns nothing


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_far_positions_do_not_collapse_in_any_precision(dtype: torch.dtype) -> None:
    """bfloat16 cannot tell 256 from 257; cos(257) = 0.819 and cos(256) = -0.040."""
    model = CausalDecoder(settings(positions="rotary"), 30).to(dtype).float().to(dtype)
    turn = model.embedding.positions.turn(run(0, 4096))
    exact = torch.arange(4096, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    torch.testing.assert_close(turn.cos[0, 0].double(), exact.cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(turn.sin[0, 0].double(), exact.sin(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "function"),
    [("glu", torch.sigmoid), ("reglu", torch.relu), ("geglu", functional.gelu), ("swiglu", functional.silu)],
)
def test_gated_layers(name: str, function: Any) -> None:
    """Shazeer 2020, equations 5 and 6: (f(x W) * x V) W_2."""
    torch.manual_seed(0)
    layer, x = FeedForward(settings(feed_forward=name, feed_forward_bias=False)), torch.randn(2, 3, 16)
    gate, linear = layer.expand.weight.chunk(2)
    expected = (function(x @ gate.T) * (x @ linear.T)) @ layer.contract.weight.T
    torch.testing.assert_close(layer(x), expected)
    assert [name for name, _ in layer.named_parameters()] == ["expand.weight", "contract.weight"]


def test_root_mean_square_normalisation_by_hand() -> None:
    """x = [3, 4]: mean of squares 12.5."""
    norm = NORMS["rms"](2, 0.0)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), torch.tensor([3.0, 4.0]) / math.sqrt(12.5))
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("causal", [True, False])
def test_how_far_windows_reach(causal: bool) -> None:
    """A layer sees window - 1 positions back (and, in an encoder, ahead); two layers twice as many."""
    chosen = settings(positions="none", spans=["window"], window=3)
    torch.manual_seed(0)
    model = (CausalDecoder if causal else BidirectionalEncoder)(chosen, 30).eval()
    x = torch.arange(3, 23)[None]
    changed = x.clone()
    changed[0, 10] = 29
    difference = (model(changed) - model(x)).abs().amax(dim=-1)[0]
    reached = [place for place in range(20) if difference[place] > 1e-7]
    assert reached == list(range(10 if causal else 6, 15))


def test_global_tokens_see_all_and_are_seen_by_all() -> None:
    model = encoder(positions="none", spans=["window"], window=1, global_tokens=1, encoder_layers=1)
    x = torch.arange(3, 13)[None]
    for changed, reached in ((0, list(range(10))), (5, [0, 5])):
        other = x.clone()
        other[0, changed] = 29
        difference = (model(other) - model(x)).abs().amax(dim=-1)[0]
        assert [place for place in range(10) if difference[place] > 1e-7] == reached


def test_shared_heads_are_heads_of_equal_keys_and_values() -> None:
    """Ainslie et al. 2023: with the keys and values of a group repeated, it is multi-head attention."""
    torch.manual_seed(0)
    grouped = CausalDecoder(settings(heads=4, kv_heads=2, positions="rotary"), 30).eval()
    whole = CausalDecoder(settings(heads=4, positions="rotary"), 30).eval()
    weights = dict(grouped.named_parameters())
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            theirs = weights[name]
            if "in_projection" in name:
                query, *shared = theirs.split([16, 8, 8])
                repeated = [part.unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1) for part in shared]
                theirs = torch.cat((query, *repeated))
            parameter.copy_(theirs)
    ids = torch.randint(3, 30, (2, 7))
    torch.testing.assert_close(grouped(ids), whole(ids), atol=1e-5, rtol=1e-5)


def test_soft_caps_bend_scores_and_logits() -> None:
    model = CausalDecoder(settings(output_softcap=2.0), 30).eval()
    hidden = torch.randn(5, 16) * 10
    plain = functional.linear(hidden, model.output)
    torch.testing.assert_close(model.logits(hidden), 2 * torch.tanh(plain / 2))
    assert plain.abs().max() > 2
    assert model.logits(hidden).abs().max() <= 2


def test_places_of_rows_cut_from_a_run_are_no_run() -> None:
    """Code that takes a run's shortcuts must not see a part of one as beginning where the run begins."""
    part = run(0, 5).rows(2, 4)
    assert part.start is None
    assert replace(part, start=2).position.tolist() == [[2, 3]]
