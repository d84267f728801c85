"""Decoding in pieces gives what decoding at once gives, and no sentence knows its neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.model.attention import AttentionValues, watching
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
MODELS: list[dict[str, object]] = [
    {"norm_placement": "post"},
    {"norm_placement": "pre", "d_key": 3, "d_value": 5},
    {"norm_placement": "both", "norm": "rms", "kv_heads": 1, "qk_norm": True, "feed_forward": "swiglu"},
    *({"positions": name, "norm_placement": "pre", "d_key": 6, "d_value": 3} for name in POSITIONS),
]
LIMITED = [
    number for number, model in enumerate(MODELS) if model.get("positions", "sinusoidal") in ("sinusoidal", "learned")
]
"""Models whose positions end with max_length."""
models = st.sampled_from(range(len(MODELS)))
lengths = st.lists(st.integers(0, 7), min_size=1, max_size=4)


def build(number: int, **changes: object) -> EncoderDecoder:
    torch.manual_seed(number)
    tiny = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return EncoderDecoder(ModelSettings.model_validate(tiny | MODELS[number] | changes), 30, 30).eval()


CACHED_MODELS = [build(number) for number in range(len(MODELS))]


def sources(lengths: list[int], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Sources of these lengths, and which positions are real. Length 0 is a source of padding only."""
    generator = torch.Generator().manual_seed(sum(lengths))
    width = max(1, *lengths) + padding
    keys_BS = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 30, (len(lengths), width), generator=generator)
    return ids.masked_fill(~keys_BS, 0), keys_BS


def targets(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 30, (rows, length), generator=torch.Generator().manual_seed(seed))


@given(models, lengths, st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_cached_chunks_of_any_sizes_equal_the_whole(number: int, lengths: list[int], chunks: list[int]) -> None:
    model = CACHED_MODELS[number]
    memory = model.encode(*sources(lengths))
    ids = targets(len(lengths), sum(chunks))
    whole, cache = model.decode(ids, memory), model.new_cache()
    start = 0
    for size in chunks:
        assert cache.length == start
        part = model.decode(ids[:, start : start + size], memory, cache)
        torch.testing.assert_close(part, whole[:, start : start + size], **CLOSE)
        start += size
    assert cache.length == sum(chunks)


@given(models, lengths, st.data())
def test_reordered_rows_go_on_as_if_they_had_always_been_there(
    number: int, lengths: list[int], data: st.DataObject
) -> None:
    """k rows a source share its memory; after each step rows are repeated and left out within their source."""
    model, k = CACHED_MODELS[number], data.draw(st.integers(1, 3))
    memory = model.encode(*sources(lengths))
    rows, cache = len(lengths) * k, model.new_cache()
    history = torch.empty(rows, 0, dtype=torch.long)
    for step in range(4):
        history = torch.cat((history, targets(rows, 1, seed=step)), dim=1)
        hidden = model.decode(history[:, -1:], memory, cache)
        alone = model.decode(history, memory.select(torch.arange(rows) // k))
        torch.testing.assert_close(hidden, alone[:, -1:], **CLOSE)
        choice = [i // k * k + data.draw(st.integers(0, k - 1)) for i in range(rows)]
        history = history[choice]
        cache.reorder(torch.tensor(choice))


@given(models, st.lists(st.integers(1, 6), min_size=2, max_size=4), st.data())
def test_sources_may_leave_in_the_middle(number: int, lengths: list[int], data: st.DataObject) -> None:
    model, k = CACHED_MODELS[number], data.draw(st.integers(1, 2))
    memory, cache = model.encode(*sources(lengths)), model.new_cache()
    history = targets(len(lengths) * k, 3)
    model.decode(history, memory, cache)
    stay = torch.tensor(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, unique=True)))
    rows = (stay[:, None] * k + torch.arange(k)).flatten()
    cache.reorder(rows, stay)
    memory = memory.select(stay)
    following = targets(len(rows), 1, seed=9)
    hidden = model.decode(following, memory, cache)
    whole = model.decode(torch.cat((history[rows], following), dim=1), memory)
    torch.testing.assert_close(hidden, whole[:, -1:], **CLOSE)


@given(models, st.integers(0, 5), st.integers(1, 4))
def test_a_trimmed_cache_goes_on_from_where_it_was_cut(number: int, kept: int, more: int) -> None:
    model = CACHED_MODELS[number]
    memory, cache = model.encode(*sources([4, 2])), model.new_cache()
    first, second = targets(2, 5, seed=1), targets(2, more, seed=2)
    model.decode(first, memory, cache)
    cache.trim(kept)
    assert cache.length == kept
    hidden = model.decode(second, memory, cache)
    whole = model.decode(torch.cat((first[:, :kept], second), dim=1), memory)
    torch.testing.assert_close(hidden, whole[:, kept:], **CLOSE)


def test_the_memory_is_projected_once_and_never_copied_for_rows() -> None:
    """Keys and values of a source are made in the first step and stay the very same, with one row a source."""
    model = CACHED_MODELS[0]
    memory, cache = model.encode(*sources([5, 3])), model.new_cache()
    held = []
    for step in range(3):
        model.decode(targets(8, 1, seed=step), memory, cache)
        cache.reorder(torch.tensor([1, 1, 0, 2, 4, 4, 7, 5]))
        held.append([layer.memory for layer in cache.layers])
    assert all(later is first for kept in held for later, first in zip(kept, held[0], strict=True))
    assert all(layer.memory and layer.memory[0].shape[0] == 2 for layer in cache.layers)


def test_the_cache_belongs_to_its_search_and_not_to_the_model() -> None:
    """Two searches take turns; then a longer one follows on the same model."""
    model = CACHED_MODELS[0]
    memories = [model.encode(*sources(lengths)) for lengths in ([5, 3], [2, 6], [7, 7])]
    ids = [targets(2, length, seed=length) for length in (4, 5, 40)]
    caches = [model.new_cache() for _ in ids]
    parts: list[list[Tensor]] = [[] for _ in ids]
    for step in range(40):
        for search, tokens in enumerate(ids):
            if step < tokens.shape[1]:
                parts[search].append(model.decode(tokens[:, step : step + 1], memories[search], caches[search]))
    for search, tokens in enumerate(ids):
        torch.testing.assert_close(torch.cat(parts[search], dim=1), model.decode(tokens, memories[search]), **CLOSE)


@given(models, lengths, st.integers(0, 60), st.randoms(use_true_random=False))
def test_batch_mates_and_padding_change_nothing(number: int, lengths: list[int], padding: int, random: object) -> None:
    """Each sentence alone, unpadded, equals itself in the batch: encoder states, hidden states, any order."""
    model = CACHED_MODELS[number]
    ids, keys = sources(lengths, padding)
    target = targets(len(lengths), 5)
    memory = model.encode(ids, keys)
    hidden = model.decode(target, memory)
    for i, length in enumerate(lengths):
        if length == 0:
            continue
        alone = model.encode(ids[i : i + 1, :length], keys[i : i + 1, :length])
        torch.testing.assert_close(memory.states_BSD[i, :length], alone.states_BSD[0], **CLOSE)
        torch.testing.assert_close(hidden[i], model.decode(target[i : i + 1], alone)[0], **CLOSE)


def test_what_stands_in_padding_is_never_read() -> None:
    model, (ids, keys) = CACHED_MODELS[0], sources([5, 2])
    other = torch.where(keys, ids, torch.full_like(ids, 29))
    target = targets(2, 4)
    padded_target = torch.cat((target, torch.full((2, 3), 17)), dim=1)
    torch.testing.assert_close(model(other, keys, target), model(ids, keys, target), atol=0, rtol=0)
    torch.testing.assert_close(model(ids, keys, padded_target)[:, :4], model(ids, keys, target), **CLOSE)


@pytest.mark.parametrize("number", range(len(MODELS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_source_of_nothing_leaves_values_and_gradients_finite(number: int, dtype: torch.dtype) -> None:
    model = build(number).to(dtype).train()
    ids, keys = sources([4, 0])
    target = targets(2, 5)
    hidden = model(ids, keys, target)
    torch.testing.assert_close(hidden[:1], model(ids[:1], keys[:1], target[:1]), atol=0.05, rtol=0.05)
    model.logits(hidden).float().log_softmax(-1)[:1].sum().backward()
    assert torch.isfinite(hidden).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("number", range(len(MODELS)))
@pytest.mark.parametrize("name", ["in_projection", "out_projection", "expand", "contract"])
def test_float16_activations_beyond_its_range_stay_finite(number: int, name: str) -> None:
    model = build(number)
    for part, module in model.named_modules():
        if part.endswith(name):
            module.weight.data *= 5e4
    model.half()
    ids, keys = sources([4, 2])
    hidden = model(ids, keys, targets(2, 5))
    assert torch.isfinite(hidden).all()
    hidden.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_model_changes_nothing(training: bool) -> None:
    """With an empty source in the batch; weights are shown for every attention, before dropout."""
    model = build(0, dropout=0.5, attention_dropout=0.5).train(training)
    ids, keys = sources([5, 0, 3])
    target = targets(3, 4)
    torch.manual_seed(5)
    unseen = model(ids, keys, target)
    values: list[AttentionValues] = []
    torch.manual_seed(5)
    with watching(values.append):
        watched = model(ids, keys, target)
    assert torch.equal(watched, unseen)
    encoder, decoder = values[:2], values[2:]
    assert [v.weights_BHTS.shape[2:] for v in decoder] == [(4, 4), (4, 5)] * 2
    over_source = [*encoder, *decoder[1::2]]
    for each in over_source:
        assert torch.all(each.weights_BHTS.masked_select(~keys[:, None, None]) == 0)
        real = keys.any(1).float()[:, None, None].expand(each.weights_BHTS.shape[:3])
        torch.testing.assert_close(each.weights_BHTS.sum(-1), real, atol=1e-5, rtol=0)
    for each in decoder[::2]:
        assert torch.all(each.weights_BHTS.triu(1) == 0)
        torch.testing.assert_close(each.weights_BHTS.sum(-1), torch.ones(3, 2, 4), atol=1e-5, rtol=0)


def test_cached_decoding_under_a_watcher_shows_each_step() -> None:
    model = CACHED_MODELS[1]
    memory, cache = model.encode(*sources([3])), model.new_cache()
    values: list[AttentionValues] = []
    with watching(values.append):
        for step in range(3):
            model.decode(targets(1, 3)[:, step : step + 1], memory, cache)
    assert [tuple(v.weights_BHTS.shape[2:]) for v in values[::4]] == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("number", LIMITED)
def test_a_sequence_longer_than_the_model_is_refused_cached_or_not(number: int) -> None:
    model = build(number, max_length=6)
    memory, cache = model.encode(*sources([6])), model.new_cache()
    model.decode(targets(1, 6), memory, cache)
    with pytest.raises(ValueError, match="7 positions are more than the model's max_length of 6"):
        model.decode(targets(1, 1), memory, cache)
    with pytest.raises(ValueError, match="7 positions"):
        model.encode(*sources([7]))
