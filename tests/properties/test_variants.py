"""Every variant of the tables, in every family: pieces give the whole, and nobody's neighbours matter."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention

from regard.model import fused
from regard.model.attention import attention
from regard.model.cache import Bound
from regard.model.feed_forward import FEED_FORWARD
from regard.model.masks import SPANS, Mask, self_attention_mask
from regard.model.norms import NORMS
from regard.model.places import places
from regard.model.positions import POSITIONS, Bias, DistanceBiases
from regard.model.reference import reference_attention
from regard.model.rotary import SCALINGS
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TINY = {"d_model": 16, "d_ff": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}

Changes = dict[str, Any]
VARIANTS: dict[str, Changes] = {
    **{f"positions {name}": {"positions": name} for name in POSITIONS},
    **{
        f"rotary {kind}": {
            "positions": "rotary",
            "rotary": {"scaling": {"kind": kind, "factor": 4.0, "original_length": 16, "high_frequency_factor": 4.0}},
        }
        for kind in SCALINGS
    },
    "rotary interleaved, part": {"positions": "rotary", "rotary": {"layout": "interleaved", "fraction": 0.5}},
    **{f"norm {name}": {"norm": name, "qk_norm": True} for name in NORMS},
    **{f"placement {name}": {"norm_placement": name} for name in ("post", "pre", "both")},
    **{f"feed-forward {name}": {"feed_forward": name} for name in FEED_FORWARD},
    **{
        f"span {name}": {"spans": [name, "full"], "window": 2, "block": 3, "global_tokens": 1, "positions": "rotary"}
        for name in SPANS
    },
    **{f"kv heads {count}": {"kv_heads": count, "positions": "rotary"} for count in (1, 2, 4)},
    **{f"bias {name}": {"attention_bias": name, "feed_forward_bias": False} for name in ("all", "in", "none")},
    "soft caps": {"attention_softcap": 2.0, "output_softcap": 3.0, "output_bias": True, "positions": "alibi"},
    "scales": {"attention_scale": 1.0, "embedding_scale": 1.0, "embedding_norm": True, "positions": "t5"},
}
names = st.sampled_from(sorted(VARIANTS))
every = pytest.mark.parametrize("name", sorted(VARIANTS))


def settings(name: str, **changes: Any) -> ModelSettings:
    return ModelSettings.model_validate(TINY | VARIANTS[name] | changes)


@cache
def decoder(name: str, **changes: Any) -> CausalDecoder:
    torch.manual_seed(0)
    model = CausalDecoder(settings(name, **changes), 30).eval().requires_grad_(False)
    for parameter in model.parameters():  # gains of 1 and biases of 0 would hide a mistake
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 30, (rows, length), generator=torch.Generator().manual_seed(seed))


@st.composite
def padded(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Ids, which of them are real (padding on either side of a row), and a way to cut the columns."""
    width = draw(st.integers(2, 9))
    real_BT = torch.zeros(draw(st.integers(1, 3)), width, dtype=torch.bool)
    for row in real_BT:
        start = draw(st.integers(0, width - 1))
        row[start : draw(st.integers(start + 1, width))] = True
    cuts = sorted(draw(st.sets(st.integers(1, width - 1)))) if width > 1 else []
    return tokens(len(real_BT), width), real_BT, [0, *cuts, width]


@every
@examples(max_examples=8)
@given(case=padded())
def test_a_decoder_gives_the_same_whole_in_chunks_and_alone(name: str, case: tuple[Tensor, Tensor, list[int]]) -> None:
    model, (ids_BT, real_BT, cuts) = decoder(name), case
    whole_BTD = model.decode(ids_BT, real_BT)
    cache = model.new_cache()
    parts = [model.decode(ids_BT[:, start:stop], real_BT[:, start:stop], cache) for start, stop in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, dim=1)[real_BT], whole_BTD[real_BT], **CLOSE)
    for row, real in enumerate(real_BT):
        torch.testing.assert_close(whole_BTD[row, real], model.decode(ids_BT[row, real][None])[0], **CLOSE)


@given(name=names, order=st.lists(st.integers(0, 2), min_size=1, max_size=4), kept=st.integers(1, 6))
def test_reordered_and_trimmed_caches_go_on_from_there(name: str, order: list[int], kept: int) -> None:
    """Left-padded prompts of unequal lengths, as generation has them."""
    model, ids_BT, more = decoder(name), tokens(3, 6), tokens(len(order), 2, seed=1)
    real_BT = torch.arange(6) >= torch.tensor([0, 2, 4])[:, None]
    cache = model.new_cache()
    model.decode(ids_BT, real_BT, cache)
    cache.trim(kept)
    cache.reorder(torch.tensor(order))
    hidden_RTD = model.decode(more, None, cache)
    for row, origin in enumerate(order):
        alone = torch.cat((ids_BT[origin, :kept][real_BT[origin, :kept]], more[row]))
        torch.testing.assert_close(hidden_RTD[row], model.decode(alone[None])[0, -2:], **CLOSE)


@every
def test_padding_may_stand_anywhere_in_a_row(name: str) -> None:
    """A later chunk of a batch may end in padding again: between real tokens."""
    model, ids_BT = decoder(name), tokens(2, 8)
    real_BT = torch.tensor([[1, 0, 1, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 1, 0, 0]], dtype=torch.bool)
    whole_BTD, cache = model.decode(ids_BT, real_BT), model.new_cache()
    cuts = pairwise([0, 2, 3, 6, 8])
    parts = [model.decode(ids_BT[:, start:stop], real_BT[:, start:stop], cache) for start, stop in cuts]
    torch.testing.assert_close(torch.cat(parts, dim=1)[real_BT], whole_BTD[real_BT], **CLOSE)
    for row, real in enumerate(real_BT):
        torch.testing.assert_close(whole_BTD[row, real], model.decode(ids_BT[row, real][None])[0], **CLOSE)


@every
def test_packed_documents_are_read_as_each_alone(name: str) -> None:
    model, ids_BT = decoder(name), tokens(2, 9)
    documents_BT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [4, 5, 5, 5, 5, 5, 5, 7, 7]])
    packed_BTD = model.decode(ids_BT, documents_BT=documents_BT)
    encoder = BidirectionalEncoder(settings(name), 30).eval()
    states_BSD = encoder.encode(ids_BT, documents_BS=documents_BT)
    for row in range(2):
        for document in documents_BT[row].unique():
            part = documents_BT[row] == document
            alone = ids_BT[row, part][None]
            torch.testing.assert_close(packed_BTD[row, part], model.decode(alone)[0], **CLOSE)
            torch.testing.assert_close(states_BSD[row, part], encoder.encode(alone)[0], **CLOSE)


def test_a_document_number_that_comes_back_is_another_document() -> None:
    model, ids_BT = decoder("positions rotary"), tokens(1, 9)
    again, apart = (torch.tensor([row]) for row in ([1, 1, 1, 2, 2, 2, 1, 1, 1], [1, 1, 1, 2, 2, 2, 3, 3, 3]))
    expected = model.decode(ids_BT, documents_BT=apart)
    torch.testing.assert_close(model.decode(ids_BT, documents_BT=again), expected, atol=0, rtol=0)


@every
def test_a_prefix_is_seen_from_everywhere_and_the_rest_from_behind(name: str) -> None:
    model, ids_BT = decoder(name, window=20, block=20) if "span" in name else decoder(name), tokens(1, 7)
    prefix_BT = (torch.arange(7) < 3)[None]
    seen_BTD = model.decode(ids_BT, prefix_BT=prefix_BT)
    cache = model.new_cache()
    parts = [model.decode(ids_BT[:, :3], None, cache, prefix_BT=prefix_BT[:, :3])]
    parts += [model.decode(ids_BT[:, t : t + 1], None, cache) for t in range(3, 7)]
    torch.testing.assert_close(torch.cat(parts, dim=1), seen_BTD, **CLOSE)
    for changed, affected in ((2, range(7)), (4, range(4, 7))):
        other = ids_BT.clone()
        other[0, changed] = 29 if ids_BT[0, changed] != 29 else 3
        difference_T = (model.decode(other, prefix_BT=prefix_BT) - seen_BTD).abs().amax(dim=-1)[0]
        assert [t for t in range(7) if difference_T[t] > 1e-6] == list(affected)


@every
@examples(max_examples=8)
@given(case=padded())
def test_a_bounded_cache_gives_the_same_in_chunks_and_steps(name: str, case: tuple[Tensor, Tensor, list[int]]) -> None:
    model, (ids_BT, real_BT, cuts), bound = decoder(name), case, Bound(sinks=1, recent=3)
    in_chunks, in_steps = model.new_cache(bound), model.new_cache(bound)
    chunks = [model.decode(ids_BT[:, start:stop], real_BT[:, start:stop], in_chunks) for start, stop in pairwise(cuts)]
    steps = [model.decode(ids_BT[:, [t]], real_BT[:, [t]], in_steps) for t in range(ids_BT.shape[1])]
    torch.testing.assert_close(torch.cat(chunks, 1)[real_BT], torch.cat(steps, 1)[real_BT], **CLOSE)
    assert in_chunks.length <= bound.size
    for row, real in enumerate(real_BT):
        alone = model.decode(ids_BT[row, real][None], None, model.new_cache(bound))
        torch.testing.assert_close(torch.cat(steps, 1)[row, real], alone[0], **CLOSE)


@every
def test_a_bounded_cache_is_a_plain_one_until_it_is_full(name: str) -> None:
    model, ids_BT, bound = decoder(name), tokens(2, 9), Bound(sinks=2, recent=4)
    cache, lengths = model.new_cache(bound), []
    steps = []
    for t in range(9):
        steps.append(model.decode(ids_BT[:, [t]], None, cache))
        lengths.append(cache.length)
    assert lengths == [1, 2, 3, 4, 5, 6, 6, 6, 6]
    whole_BTD = model.decode(ids_BT)
    torch.testing.assert_close(torch.cat(steps[:6], dim=1), whole_BTD[:, :6], **CLOSE)
    assert (torch.cat(steps[6:], dim=1) - whole_BTD[:, 6:]).abs().max() > 1e-4


def test_what_a_cache_cannot_hold_is_refused() -> None:
    model, ids_BT = decoder("positions rotary"), tokens(1, 4)
    prefix_BT, begun = torch.ones(1, 4, dtype=torch.bool), model.new_cache()
    model.decode(ids_BT, None, begun)
    for held in (begun, model.new_cache(Bound())):
        with pytest.raises(ValueError, match="a prefix is seen from before it too"):
            model.decode(ids_BT, None, held, prefix_BT=prefix_BT)
    with pytest.raises(ValueError, match="packed rows are decoded whole"):
        model.decode(ids_BT, None, model.new_cache(), documents_BT=torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="holds nothing new"):
        Bound(sinks=4, recent=0)


def test_a_bounded_cache_keeps_the_first_and_the_latest_tokens_at_positions_of_their_own() -> None:
    """What is seen at last is a text of the sinks and the latest tokens, for a model of one layer."""
    model, bound = decoder("rotary linear", decoder_layers=1), Bound(sinks=2, recent=3)
    ids_BT, cache = tokens(1, 40), model.new_cache(bound)
    last = [model.decode(ids_BT[:, [t]], None, cache) for t in range(40)][-1]
    kept = torch.cat((ids_BT[:, :2], ids_BT[:, -3:]), dim=1)
    torch.testing.assert_close(last, model.decode(kept)[:, -1:], **CLOSE)
    assert cache.length == 5


@every
def test_encoders_and_encoder_decoders_know_no_batch_mates(name: str) -> None:
    torch.manual_seed(0)
    both = EncoderDecoder(settings(name), 30, 30).eval()
    encoder = BidirectionalEncoder(settings(name), 30, HeadSettings(kind="masked-lm")).eval()
    ids_BS, target_BT = tokens(3, 8), tokens(3, 5, seed=1)
    keys_BS = torch.arange(8) < torch.tensor([8, 5, 1])[:, None]
    hidden_BTD, logits_BSV = both(ids_BS, keys_BS, target_BT), encoder.logits(encoder.encode(ids_BS, keys_BS))
    memory, cache = both.encode(ids_BS, keys_BS), both.new_cache()
    steps = torch.cat([both.decode(target_BT[:, [t]], memory, cache) for t in range(5)], dim=1)
    torch.testing.assert_close(steps, hidden_BTD, **CLOSE)
    for row, length in enumerate((8, 5, 1)):
        alone = ids_BS[[row], :length]
        torch.testing.assert_close(hidden_BTD[row], both(alone, None, target_BT[[row]])[0], **CLOSE)
        torch.testing.assert_close(logits_BSV[row, :length], encoder.logits(encoder.encode(alone))[0], **CLOSE)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients_are_finite_with_padding_and_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model = deepcopy(decoder(name)).requires_grad_(True).to(dtype).train()
    real_BT = torch.tensor([[False, True, True, True], [True, True, False, False], [False] * 4])
    hidden_BTD = model.decode(tokens(3, 4), real_BT)
    assert torch.isfinite(hidden_BTD).all()
    model.logits(hidden_BTD)[real_BT].float().log_softmax(-1).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name


def test_float16_inputs_and_heads_stay_finite_beyond_its_range() -> None:
    """Convolutions, the projection of patches and the layer before a prediction, each times 50,000."""
    torch.manual_seed(0)
    base = TINY | {"tie": "none"}
    sound = BidirectionalEncoder(
        ModelSettings.model_validate(base | {"input": "frames", "norm_placement": "pre"}), None
    )
    image = {"input": "patches", "patches": {"height": 4, "width": 4, "size": 2}, "norm_placement": "pre"}
    sight = BidirectionalEncoder(ModelSettings.model_validate(base | image), None)
    text = BidirectionalEncoder(ModelSettings.model_validate(base), 30, HeadSettings(kind="masked-lm"))
    for model, loud in ((sound, "convolutions"), (sight, "projection"), (text, "dense")):
        for name, parameter in model.named_parameters():
            if loud in name and "in_projection" not in name and "out_projection" not in name:
                parameter.data *= 5e4
        model.half()
    assert torch.isfinite(sound.encode(torch.randn(2, 80, 8).half())).all()
    assert torch.isfinite(sight.encode(torch.randn(2, 3, 4, 4).half())).all()
    assert torch.isfinite(text.predict(text.encode(tokens(2, 5)))).all()


attending = pytest.mark.parametrize(
    "name", [name for name in sorted(VARIANTS) if name.startswith(("positions", "span", "kv", "soft"))]
)
"""Variants that change what an attention over given queries, keys and values does."""


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, the checks of types at run time would stand in the way of FlexAttention."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@attending
@pytest.mark.parametrize("execution", ["blocks", "blocks without gradients", "flex"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.usefixtures("untraced")
def test_fused_executions_are_the_reference(
    name: str, execution: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks by rule and biases by distance, a few queries at a time or all through FlexAttention."""
    monkeypatch.setattr(fused, "BLOCK_SCORES", 30)
    chosen = settings(name, d_key=16)
    torch.manual_seed(0)
    real_BN = torch.arange(9) >= torch.tensor([0, 3])[:, None]
    documents_BN = torch.tensor([[0] * 5 + [1] * 4, [0] * 9])
    where = places((2, 9), real_BN, documents_BN)
    mask = self_attention_mask(where, where, chosen, chosen.span(0), causal=causal)
    scheme = POSITIONS[chosen.positions](chosen, causal=causal)
    relation = scheme.relate(where, where)
    bias = relation.bias if relation else None
    inputs = [torch.randn(2, heads, 9, 16) for heads in (4, chosen.key_heads, chosen.key_heads)]
    softcap = chosen.attention_softcap
    expected = reference_attention(*inputs, mask, bias, softcap=softcap).output_BHTE
    if execution == "flex":
        result = fused.flex(*inputs, mask, bias, softcap=softcap, compiled=False)
    else:
        with torch.set_grad_enabled(execution == "blocks"):
            result = fused.blocks(*inputs, mask, bias, softcap=softcap)
    torch.testing.assert_close(result, expected, **CLOSE)


@pytest.mark.usefixtures("untraced")
def test_flex_takes_masks_and_biases_by_value_too() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, heads, 9, 16) for heads in (4, 2, 2)]
    for shape in ((2, 4, 9, 9), (1, 4, 9, 9), (2, 1, 1, 9)):
        mask, bias = Mask(torch.rand(shape) < 0.5), Bias(torch.randn(shape))
        expected = reference_attention(*inputs, mask, bias).output_BHTE
        torch.testing.assert_close(fused.flex(*inputs, mask, bias, compiled=False), expected, **CLOSE)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("by_rule", [True, False])
def test_what_flex_makes_of_a_mask_goes_with_it(by_rule: bool) -> None:
    where, x = places((1, 9)), torch.randn(1, 4, 9, 16)
    chosen = settings("span window")
    mask = (
        self_attention_mask(where, where, chosen, "window", causal=True)
        if by_rule
        else Mask(torch.ones(1, 1, 9, 9) > 0)
    )
    fused.flex(x, x, x, mask, compiled=False)
    kept = weakref.ref(mask)
    del mask
    gc.collect()
    assert kept() is None


@attending
def test_long_rows_take_a_fused_execution_and_learn_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of attention over 70 positions, above what the reference is chosen for."""
    monkeypatch.setattr(fused, "BLOCK_SCORES", 70 * 16)
    chosen = settings(name)
    torch.manual_seed(0)
    where = places((2, 70), torch.arange(70) >= torch.tensor([0, 30])[:, None])
    mask = self_attention_mask(where, where, chosen, chosen.span(0), causal=True)
    scheme = POSITIONS[chosen.positions](chosen, causal=True)
    inputs = [torch.randn(2, heads, 70, 4, requires_grad=True) for heads in (4, chosen.key_heads, chosen.key_heads)]
    learned = [*inputs, *scheme.parameters()] if isinstance(scheme, DistanceBiases) else inputs
    direction = torch.randn(2, 4, 70, 4)
    found = []
    for execution in (lambda *a, **k: reference_attention(*a, **k).output_BHTE, attention):
        relation = scheme.relate(where, where)
        output = execution(*inputs, mask, relation.bias if relation else None, softcap=chosen.attention_softcap)
        found.append([output, *torch.autograd.grad(output, learned, direction)])
    for expected, result in zip(*found, strict=True):
        torch.testing.assert_close(result, expected, **CLOSE)
