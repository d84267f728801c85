"""A cache whose tensors never move decodes what one that grows does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.model.cache import Held, StaticCache
from regard.model.masks import SPANS, Mask, self_attention_mask
from regard.model.places import places, run
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder, Memory

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TINY: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 4, "kv_heads": 2, "encoder_layers": 1, "decoder_layers": 2}


def settings(**changes: Any) -> ModelSettings:
    return ModelSettings.model_validate(TINY | {"d_key": 6, "d_value": 3} | changes)


def build(**changes: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(settings(**changes), 30, 30).eval().requires_grad_(False)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 30, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("span", SPANS)
def test_chunks_of_any_length_go_where_they_belong(positions: str, span: str) -> None:
    """Two rows for each of two sources, among places for four rows of four sources."""
    model = build(positions=positions, spans=[span, "full"], window=2, block=3)
    keys_BS = torch.arange(7) < torch.tensor([7, 4])[:, None]
    memory, ids_RT = model.encode(tokens(2, 7).masked_fill(~keys_BS, 0), keys_BS), tokens(4, 12)
    whole_RTD, begun = model.decode(ids_RT, memory), model.new_cache()
    model.decode(ids_RT[:, :2], memory, begun)
    cache = StaticCache(model.settings, 4, 4, 8, 16, model.output)
    cache.take(Held.by(begun.layers, keys_BS), torch.arange(4), torch.arange(2), 2, 2)
    assert cache.held.real_BS.tolist()[1:3] == [[True] * 4 + [False] * 4, [True] + [False] * 7]
    unread, mask = torch.zeros(4, 8, 16), Mask(cache.held.real_BS[:, None, None], never_empty=True)
    static_RT = torch.full((4, 4, 12), 29)
    static_RT[:2, :2] = ids_RT.view(2, 2, 12)
    where = [tensor.data_ptr() for tensor in (*cache.held, cache.count_1)]
    for start, stop in ((2, 3), (3, 8), (8, 12)):
        part_RTD = model.decode(static_RT.flatten(0, 1)[:, start:stop], Memory(unread, mask), cache)
        found_RTD = part_RTD.unflatten(0, (4, 4))[:2, :2].flatten(0, 1)
        torch.testing.assert_close(found_RTD, whole_RTD[:, start:stop], **CLOSE)
    assert cache.count_1.item() == 12
    assert [tensor.data_ptr() for tensor in (*cache.held, cache.count_1)] == where


def test_rows_change_places_with_each_other() -> None:
    """What is written may be what is still to be read."""
    cache = StaticCache(settings(), 2, 4, 5, 6, torch.empty(0))
    for number, tensor in enumerate(cache.held[:4]):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    keys, values, memory_keys, memory_values, _ = (tensor.clone() for tensor in cache.held)
    rows = [5, 4, 5, 0, 1, 0]
    cache.take(cache.held, torch.tensor(rows), torch.tensor([1, 0]), 2, 3)
    for place, row in zip([0, 1, 2, 4, 5, 6], rows, strict=True):
        assert torch.equal(cache.held.keys_LRGCE[:, place, :, :3], keys[:, row, :, :3])
        assert torch.equal(cache.held.values_LRGCE[:, place, :, :3], values[:, row, :, :3])
        assert torch.equal(cache.held.keys_LRGCE[:, place, :, 3:], keys[:, place, :, 3:])
    assert torch.equal(cache.held.memory_keys_LBGSE, memory_keys[:, [1, 0]])
    assert torch.equal(cache.held.memory_values_LBGSE, memory_values[:, [1, 0]])
    assert cache.count_1.item() == 3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("span", SPANS)
def test_without_padding_every_token_sees_itself(span: str, causal: bool) -> None:
    """What masks say without looking is what one would see."""
    chosen = settings(spans=[span], window=1, block=2)
    documents_BN = torch.tensor([[0, 0, 1, 1, 1, 2]])
    for where in (run(3, 6), places((1, 6), None, documents_BN)):
        mask = self_attention_mask(where, where, chosen, chosen.span(0), causal=causal)
        if mask is not None:
            assert mask.never_empty
            assert bool(mask.allowed_BHTS.any(dim=-1).all())
            assert mask.rows(2, 4).never_empty
    padded = places((2, 6), torch.arange(6) < torch.tensor([[6], [0]]))
    mask = self_attention_mask(padded, padded, chosen, chosen.span(0), causal=True)
    assert mask is not None
    assert mask.empty_BHT1 is not None
    assert mask.empty_BHT1[:, 0, :, 0].all(dim=1).tolist() == [False, True]


@pytest.mark.parametrize(("positions", "name"), [("rotary", "frequencies_R"), ("alibi", "slopes")])
def test_what_positions_compute_with_follows_the_device_and_stays_exact(positions: str, name: str) -> None:
    model = build(positions=positions, window_rotary={"base": 50.0} if positions == "rotary" else None)
    scheme = model.target_embedding.positions
    schemes = [scheme, scheme.of("window")]
    exact = [getattr(each, name).clone() for each in schemes]
    model.to(torch.float16)
    assert [getattr(each, name).dtype for each in schemes] == [each.dtype for each in exact]
    model.to("meta")
    assert all(getattr(each, name).is_meta for each in schemes)
    model.to_empty(device="cpu")
    assert all(torch.equal(getattr(each, name), other) for each, other in zip(schemes, exact, strict=True))
    assert not [key for key in model.state_dict() if "exact" in key or name in key]
