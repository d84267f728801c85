"""The reference models: what a model of this kind must do, whatever it is made of, and each one's own mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.experiments.convolution import ConvolutionalEncoderDecoder, ConvolutionSettings, GatedConvolution
from regard.experiments.recurrent import RecurrentEncoderDecoder, RecurrentSettings
from regard.experiments.reference import AttentionMemory, ReferenceModel
from regard.model.attention import AttentionValues, watching
from regard.model.interface import SequenceToSequence
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.settings import SearchSettings
from regard.training.loss import cross_entropy

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
V = 30


def lstm(**changes: object) -> ReferenceModel:
    torch.manual_seed(1)
    values = {"d_model": 12, "hidden": 10, "dropout": 0.0}
    return RecurrentEncoderDecoder(RecurrentSettings.model_validate(values | changes), V, V).eval()


def convolution(**changes: object) -> ReferenceModel:
    torch.manual_seed(2)
    values = {"d_model": 12, "hidden": 10, "dropout": 0.0, "max_length": 40}
    return ConvolutionalEncoderDecoder(ConvolutionSettings.model_validate(values | changes), V, V).eval()


BUILDERS: list[Callable[..., ReferenceModel]] = [lstm, convolution]
MODELS = [lstm(), lstm(encoder_layers=1, decoder_layers=1), convolution(), convolution(kernel=5), convolution(kernel=1)]
models = st.sampled_from(MODELS)
lengths = st.lists(st.integers(0, 7), min_size=1, max_size=4)


def sources(lengths: list[int], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Sources of these lengths, and which positions are real. Length 0 is a source of padding only."""
    generator = torch.Generator().manual_seed(sum(lengths))
    width = max(1, *lengths) + padding
    keys_BS = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, V, (len(lengths), width), generator=generator)
    return ids.masked_fill(~keys_BS, 0), keys_BS


def targets(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("build", BUILDERS)
def test_they_answer_to_what_training_and_search_ask_as_the_transformer_does(build: Callable[..., nn.Module]) -> None:
    settings = ModelSettings(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
    assert isinstance(EncoderDecoder(settings, V, V), SequenceToSequence)
    assert isinstance(build(), SequenceToSequence)
    assert not isinstance(nn.Linear(2, 2), SequenceToSequence)


@given(models, lengths, st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_cached_chunks_of_any_sizes_equal_the_whole(
    model: ReferenceModel, lengths: list[int], chunks: list[int]
) -> None:
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
    model: ReferenceModel, lengths: list[int], data: st.DataObject
) -> None:
    """k rows a source share its memory; after each step rows are repeated and left out within their source."""
    k = data.draw(st.integers(1, 3))
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
def test_sources_may_leave_in_the_middle(model: ReferenceModel, lengths: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 2))
    memory, cache = model.encode(*sources(lengths)), model.new_cache()
    history = targets(len(lengths) * k, 3)
    model.decode(history, memory, cache)
    stay = torch.tensor(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, unique=True)))
    rows = (stay[:, None] * k + torch.arange(k)).flatten()
    cache.reorder(rows, stay)
    following = targets(len(rows), 1, seed=9)
    hidden = model.decode(following, memory.select(stay), cache)
    whole = model.decode(torch.cat((history[rows], following), dim=1), memory.select(stay))
    torch.testing.assert_close(hidden, whole[:, -1:], **CLOSE)


@given(models, st.integers(0, 6))
def test_a_trimmed_cache_goes_on_from_where_it_was_cut(model: ReferenceModel, kept: int) -> None:
    memory, cache = model.encode(*sources([3, 5])), model.new_cache()
    first, other = targets(2, 6), targets(2, 2, seed=5)
    model.decode(first, memory, cache)
    cache.trim(kept)
    assert cache.length == kept
    hidden = model.decode(other, memory, cache)
    whole = model.decode(torch.cat((first[:, :kept], other), dim=1), memory)
    torch.testing.assert_close(hidden, whole[:, kept:], **CLOSE)


@given(models, st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 9))
def test_neither_padding_nor_neighbours_change_a_result(
    model: ReferenceModel, lengths: list[int], padding: int
) -> None:
    ids_BS, keys_BS = sources(lengths, padding)
    target = targets(len(lengths), 4)
    together = model(ids_BS, keys_BS, target)
    assert bool(together.isfinite().all())
    assert torch.equal(model(ids_BS.masked_fill(~keys_BS, 17), keys_BS, target), together)
    for row, length in enumerate(lengths):
        if length:
            alone = model(ids_BS[row : row + 1, :length], keys_BS[row : row + 1, :length], target[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], alone, **CLOSE)


@given(models)
def test_without_keys_all_tokens_are_real(model: ReferenceModel) -> None:
    ids_BS, target = targets(2, 5), targets(2, 3)
    assert torch.equal(model(ids_BS, None, target), model(ids_BS, torch.ones(2, 5, dtype=torch.bool), target))


@given(models, st.integers(0, 5))
def test_no_position_knows_of_later_ones_and_each_knows_of_itself(model: ReferenceModel, changed: int) -> None:
    memory, target = model.encode(*sources([4, 6])), targets(2, 6)
    before = model.decode(target, memory)
    target[:, changed] = (target[:, changed] - 2) % (V - 3) + 3
    after = model.decode(target, memory)
    assert torch.equal(after[:, :changed], before[:, :changed])
    assert bool((after[:, changed] != before[:, changed]).any(dim=-1).all())


@pytest.mark.parametrize("build", BUILDERS)
def test_gradients_of_a_batch_with_an_empty_source_are_finite(build: Callable[..., ReferenceModel]) -> None:
    model = build().train()
    hidden = model(*sources([4, 0]), targets(2, 3))
    hidden.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients.values())
    assert {name for name, gradient in gradients.items() if gradient is None} == set()


@pytest.mark.parametrize("build", BUILDERS)
def test_attention_weights_are_a_distribution_over_the_real_tokens(build: Callable[..., ReferenceModel]) -> None:
    model = build()
    ids_BS, keys_BS = sources([3, 5, 0], padding=2)
    values: list[AttentionValues] = []
    with watching(values.append):
        watched = model(ids_BS, keys_BS, targets(3, 4))
    assert torch.equal(watched, model(ids_BS, keys_BS, targets(3, 4)))
    # The LSTM looks back once a position, the convolution once a layer.
    shapes = [(3, 1, 1, 7)] * 4 if isinstance(model, RecurrentEncoderDecoder) else [(3, 1, 4, 7)] * 3
    assert [tuple(each.weights_BHTS.shape) for each in values] == shapes
    real = keys_BS.any(dim=1).float()[:, None, None]
    for each in values:
        assert bool((each.weights_BHTS.masked_select(~keys_BS[:, None, None]) == 0).all())
        torch.testing.assert_close(each.weights_BHTS.sum(-1), real.expand(each.weights_BHTS.shape[:3]), **CLOSE)


def test_attention_by_hand() -> None:
    """Scores ln 1, ln 2, ln 5: weights 1/8, 2/8, 5/8; with the last key hidden 1/3, 2/3. Two rows share one source."""
    keys = torch.tensor([[[0.0, 0.0], [math.log(2), 0.0], [math.log(5), 0.0]]])
    values = torch.tensor([[[8.0], [16.0], [24.0]]])
    query = torch.tensor([[[1.0, 7.0]], [[0.0, 3.0]]])
    context = AttentionMemory(keys, values, None).attend(query)
    torch.testing.assert_close(context, torch.tensor([[[1 + 4 + 15.0]], [[16.0]]]))


def test_a_gated_convolution_by_hand() -> None:
    """Kernel (1, 10, 100) for A and (0, 1, 0) for B over 1, 2, 3, 4."""
    gated = GatedConvolution(ConvolutionSettings(hidden=1, kernel=3, dropout=0.0))
    with torch.no_grad():
        gated.convolution.weight.copy_(torch.tensor([[[1.0, 10.0, 100.0]], [[0.0, 1.0, 0.0]]]))
    output = gated(torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]))
    sigmoid = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-3))]
    torch.testing.assert_close(output, torch.tensor([[[321 * sigmoid[0]], [432 * sigmoid[1]]]]))


@pytest.mark.parametrize(("kernel", "layers"), [(3, 1), (3, 2), (5, 2)])
def test_a_causal_stack_sees_so_far_and_no_farther(kernel: int, layers: int) -> None:
    """Position p reaches back layers * (kernel - 1) positions."""
    model = convolution(kernel=kernel, decoder_layers=layers)
    memory, target = model.encode(*sources([3])), targets(1, 12)
    before = model.decode(target, memory)
    target[0, 1] = (target[0, 1] - 2) % (V - 3) + 3
    changed = (model.decode(target, memory) != before).any(dim=-1)[0]
    assert changed.nonzero()[:, 0].tolist() == list(range(1, 1 + layers * (kernel - 1) + 1))


def test_lstm_parameters_are_counted_by_hand() -> None:
    """d_model 12, hidden 10, one layer each: embedding V*12; encoder 2*4*10*(12+10+2); decoder 4*10*(24+10+2)."""
    model = lstm(encoder_layers=1, decoder_layers=1)
    count = sum(parameter.numel() for parameter in model.parameters())
    first_state, keys, out = 10 * 20 + 20, 20 * 10, 30 * 12
    assert count == V * 12 + 1920 + 1440 + first_state + keys + out


def test_an_lstm_begins_with_open_forget_gates() -> None:
    model = lstm()
    assert isinstance(model, RecurrentEncoderDecoder)
    for name, bias in model.named_parameters():
        if "bias_ih" in name:
            assert bias.tolist() == [0.0] * 10 + [1.0] * 10 + [0.0] * 20
        elif "bias_hh" in name:
            assert not bias.any()


def test_an_lstm_refuses_padding_before_tokens() -> None:
    with pytest.raises(ValueError, match="only stand at the end"):
        lstm().encode(torch.tensor([[0, 5]]), torch.tensor([[False, True]]))


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    model = convolution(max_length=6)
    memory, cache = model.encode(*sources([6])), model.new_cache()
    model.decode(targets(1, 6), memory, cache)
    with pytest.raises(ValueError, match="7 positions are more than the model's max_length of 6"):
        model.decode(targets(1, 1), memory, cache)
    with pytest.raises(ValueError, match="7 positions"):
        model.encode(*sources([7]))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="odd number"):
        ConvolutionSettings(kernel=4)
    with pytest.raises(ValueError, match="one vocabulary"):
        RecurrentEncoderDecoder(RecurrentSettings(), 5, 6)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("inputs", 2), ("decoder", 2), ("none", 3)])
def test_ties(build: Callable[..., ReferenceModel], tie: str, matrices: int) -> None:
    model = build(tie=tie)
    assert sum(parameter.shape == (V, 12) for parameter in model.parameters()) == matrices
    assert (model.output is model.target_embedding) == (tie in ("all", "decoder"))
    assert (model.source_embedding is model.target_embedding) == (tie in ("all", "inputs"))


@pytest.mark.parametrize("build", BUILDERS)
def test_a_few_updates_teach_copying_and_beam_search_finds_the_copies(build: Callable[..., ReferenceModel]) -> None:
    """Greedy and beam search of what a model learned in some updates give the source back."""
    begin, end = 1, 2
    model = build(d_model=24, hidden=32).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(180):
        source = torch.randint(3, 9, (24, 4), generator=generator)
        said = torch.cat((source, torch.full((24, 1), end)), dim=1)
        read = torch.cat((torch.full((24, 1), begin), source), dim=1)
        hidden = model(source, torch.ones_like(source, dtype=torch.bool), read)
        loss, _ = cross_entropy(hidden.flatten(0, 1), model.output, said.flatten(), 0.0)
        optimizer.zero_grad()
        (loss / said.numel()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()) / said.numel())
    assert losses[0] > 2.5
    assert sum(losses[-10:]) / 10 < 0.15
    model.eval()
    source, keys = torch.randint(3, 9, (20, 4), generator=generator), torch.ones(20, 4, dtype=torch.bool)
    for beam in (1, 3):
        decoder = CachedDecoder(model, source, keys)
        found = beam_search(decoder, [8] * 20, SearchSettings(beam=beam), begin=begin, end=end)
        copies = [list(each[0].ids) == wanted for each, wanted in zip(found, source.tolist(), strict=True)]
        assert sum(copies) >= 18
