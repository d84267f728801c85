"""The compiled decoder against the model as PyTorch carries it out, for all that it can express."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from regard.model import adapters
from regard.model.adapters import AdapterSettings
from regard.model.settings import ModelSettings
from regard.model.transformer import BidirectionalEncoder, EncoderDecoder
from regard.native.library import NativeError, library
from regard.search.compiled import NativeDecoder, PackedModel, obstacle
from regard.search.decoder import CachedDecoder
from regard.search.executors import pad
from regard.search.ranking import largest

pytestmark = pytest.mark.skipif(library() is None, reason="the compiled decoder was not built here")

VOCABULARY = 90
SOURCES = [list(range(5, 12)), [7, 8, 9], list(range(30, 53))]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_placement": "pre"},
    {"norm_placement": "both", "norm": "rms"},
    {"norm_placement": "post", "final_norm": True},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "rotary", "rotary": {"layout": "interleaved", "fraction": 0.5}},
    {"positions": "alibi"},
    {"positions": "t5"},
    {"positions": "none", "kv_heads": 1},
    {"sinusoids": {"layout": "halves", "spacing": "inclusive", "first": 2}},
    {"feed_forward": "swiglu"},
    {"feed_forward": "gelu", "tie": "all"},
    {"feed_forward": "glu", "tie": "decoder"},
    {"feed_forward": "geglu-tanh", "feed_forward_bias": False, "attention_bias": "none"},
    {"qk_norm": True, "attention_softcap": 5.0, "output_softcap": 10.0, "output_bias": True},
    {"d_model": 40, "d_ff": 52, "heads": 4, "d_key": 6, "d_value": 22},
    {"embedding_norm": True, "attention_bias": "in", "attention_scale": 1.0, "embedding_scale": 1.0},
    {"encoder_layers": 0, "decoder_layers": 1},
]


def build(**choices: Any) -> EncoderDecoder:
    values = {"d_model": 32, "d_ff": 48, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "max_length": 64}
    torch.manual_seed(1)
    model = EncoderDecoder(ModelSettings(**{**values, "tie": "none", **choices}), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that say something
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def compared(model: EncoderDecoder, precision: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits of PyTorch and of the library, over steps with rows that multiply, change places and leave."""
    theirs = CachedDecoder(model, *pad(SOURCES, 0))
    ours = NativeDecoder(PackedModel(model, precision))
    ours.read(SOURCES)
    pairs = []
    tokens_R = torch.tensor([1, 2, 3])
    with torch.inference_mode():
        for turn in range(9):
            pairs.append((theirs.step(tokens_R), ours.step(tokens_R)))
            rows_R = torch.arange(len(tokens_R))
            sources_N = None
            if turn == 2:
                rows_R = torch.tensor([0, 0, 1, 1, 2, 2])
            elif turn == 5:
                rows_R, sources_N = torch.tensor([3, 2, 5, 5]), torch.tensor([1, 2])
            elif turn == 6:
                rows_R = torch.tensor([1, 0, 2, 3])
            if turn in (2, 5, 6):
                theirs.reorder(rows_R, sources_N)
                ours.reorder(rows_R, sources_N)
            tokens_R = (tokens_R[rows_R] * 7 + turn + torch.arange(len(rows_R))) % VOCABULARY
    return pairs


@pytest.mark.parametrize("choices", VARIANTS, ids=lambda choices: " ".join(map(str, choices.values())) or "paper")
def test_logits_are_those_of_the_model(choices: dict[str, Any]):
    for expected, found in compared(build(**choices), "float32"):
        torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("choices", [{}, {"norm_placement": "pre"}, {"feed_forward": "swiglu", "norm": "rms"}])
def test_bytes_come_near(choices: dict[str, Any]):
    model = build(d_model=128, d_ff=256, heads=4, **choices)
    for expected, found in compared(model, "int8"):
        assert (found - expected).norm() < 0.05 * expected.norm()
        assert not torch.equal(found, expected)


def test_weights_become_bytes_by_a_scale_for_each_output():
    """One product by hand: a model without layers gives normalised embeddings times the output matrix."""
    model = build(encoder_layers=1, decoder_layers=0, positions="none", norm_placement="pre", final_norm=False)
    decoder = NativeDecoder(PackedModel(model, "int8"))
    decoder.read([[5, 6]])
    logits = decoder.step(torch.tensor([9]))[0].numpy()
    row = (model.target_embedding.weight[9] * model.target_embedding.scale).detach().numpy()
    weight = model.output.detach().numpy()
    scales = np.abs(weight).max(axis=1) / 127
    scale = np.abs(row).max() / 127
    expected = (np.rint(weight / scales[:, None]) @ np.rint(row / scale)) * scales * scale
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@examples(max_examples=20)
@given(
    count=st.integers(1, VOCABULARY),
    banned=st.sets(st.integers(0, VOCABULARY - 1), max_size=VOCABULARY - 1),
    step=st.integers(0, 3),
)
def test_candidates_are_the_largest_of_the_logits(count: int, banned: set[int], step: int):
    model = PACKED[1]
    decoder, same = NativeDecoder(model), NativeDecoder(model)
    for each in (decoder, same):
        each.read(SOURCES)
    for turn in range(step + 1):
        logits_RV = same.step(torch.tensor([turn, 5, 7]))
        decoder.advance(np.array([turn, 5, 7]))
    allowed_V = np.zeros(VOCABULARY, dtype=np.float32)
    allowed_V[list(banned)] = -np.inf
    values_RC, tokens_RC = decoder.candidates(count, allowed_V)
    log_probabilities_RV = logits_RV.log_softmax(dim=1) + torch.from_numpy(allowed_V)
    expected_RC, places_RC = largest(log_probabilities_RV, count)
    real = expected_RC[0] > -torch.inf
    assert tokens_RC[:, : int(real.sum())].tolist() == places_RC[:, real].tolist()
    np.testing.assert_allclose(values_RC[:, real.numpy()], expected_RC[:, real], atol=2e-5)
    assert (values_RC[:, ~real.numpy()] == -np.inf).all()


def test_of_equal_candidates_the_lower_ids_come_first():
    model = build(tie="none")
    with torch.no_grad():
        model.output[:] = model.output[0]
    decoder = NativeDecoder(PackedModel(model, "float32"))
    decoder.read(SOURCES[:1])
    decoder.advance(np.array([1]))
    values_RC, tokens_RC = decoder.candidates(40, np.zeros(VOCABULARY, dtype=np.float32))
    assert tokens_RC.tolist() == [list(range(40))]
    np.testing.assert_allclose(values_RC, -np.log(VOCABULARY), atol=1e-5)


PACKED = [PackedModel(build(), "float32"), PackedModel(build(), "int8")] if library() is not None else []


@pytest.mark.parametrize("packed", PACKED, ids=["float32", "int8"])
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it(packed: PackedModel):
    """Alone, among others of other lengths, and joined late."""
    said = [[1, 8, 3, 4], [2, 30, 31, 6], [4, 4, 50, 2]]
    alone = []
    for source, tokens in zip(SOURCES, said, strict=True):
        decoder = NativeDecoder(packed)
        decoder.read([source])
        alone.append([decoder.step(torch.tensor([token]))[0] for token in tokens])
    decoder = NativeDecoder(packed)
    decoder.read([*SOURCES * 5, [3]])
    for turn in range(4):
        logits = decoder.step(torch.tensor([tokens[turn] for tokens in said] * 5 + [turn]))
        for row in range(15):
            assert torch.equal(logits[row], alone[row % 3][turn])
    late = NativeDecoder(packed)
    late.read([[9, 9, 9]])
    late.step(torch.tensor([4]))
    late.read(SOURCES)
    for turn in range(4):
        logits = late.step(torch.tensor([5, *[tokens[turn] for tokens in said]]))
        for row in range(3):
            assert torch.equal(logits[1 + row], alone[row][turn])


@pytest.mark.parametrize("packed", PACKED, ids=["float32", "int8"])
def test_a_shortlist_leaves_the_logits_of_its_tokens_and_no_others(packed: PackedModel):
    shortlists = [np.array([2, 5, 70, 89]), np.arange(VOCABULARY), np.arange(0, VOCABULARY, 3)]
    listed, whole = NativeDecoder(packed), NativeDecoder(packed)
    listed.read(SOURCES, shortlists)
    whole.read(SOURCES)
    rows_R = torch.tensor([0, 0, 1, 1, 2, 2])
    tokens_R = torch.tensor([1, 2, 3])
    for _ in range(3):
        logits_RV, all_RV = listed.step(tokens_R), whole.step(tokens_R)
        for row, values_V in enumerate(logits_RV):
            inside = shortlists[row * 3 // len(logits_RV)]
            assert torch.equal(values_V[inside], all_RV[row][inside])
            assert int(values_V.isfinite().sum()) == len(inside)
        count = 3
        values_RC, tokens_RC = listed.candidates(count, np.zeros(VOCABULARY, dtype=np.float32))
        expected_RC, places_RC = largest(logits_RV.log_softmax(dim=1), count)
        assert tokens_RC.tolist() == places_RC.tolist()
        np.testing.assert_allclose(values_RC, expected_RC, atol=2e-5)
        if len(tokens_R) == 3:
            for each in (listed, whole):
                each.reorder(rows_R, None)
        tokens_R = torch.tensor([4, 9, 30, 7, 60, 2])


def test_rows_that_are_not_wanted_stay_as_they_are():
    packed = PACKED[0]
    waits, goes = NativeDecoder(packed), NativeDecoder(packed)
    for each in (waits, goes):
        each.read(SOURCES[:2])
    waits.advance(np.array([1, 60]), np.array([True, False]))
    values_RC, _ = waits.candidates(3, np.zeros(VOCABULARY, dtype=np.float32))
    assert (values_RC[1] == -np.inf).all()
    assert np.isfinite(values_RC[0]).all()
    waits.advance(np.array([1, 2]), np.array([False, True]))
    both = goes.step(torch.tensor([1, 2]))
    assert torch.equal(waits.step(torch.tensor([7, 8])), goes.step(torch.tensor([7, 8])))
    assert torch.isfinite(both).all()


def test_memory_is_used_again():
    """A thousand searches in one session hold no more entries than the rows that grow."""
    decoder = NativeDecoder(PACKED[0])
    decoder.read(SOURCES[:1])
    first = None
    for _ in range(300):
        for token in (1, 2, 3, 4):
            logits = decoder.step(torch.tensor([token]))
        first = logits if first is None else first
        assert torch.equal(logits, first)
        decoder.reorder(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))
        assert decoder.rows == decoder.sources == 0
        decoder.read(SOURCES[:1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float):
    model = build()
    with torch.no_grad():
        model.decoder[0].feed_forward.expand.weight[0, 0] = value
    with pytest.raises(NativeError, match=r"decoder\.0\.feed_forward\.expand\.weight has NaN or infinite"):
        PackedModel(model)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_numbers_that_overflow_are_seen(precision: Any):
    model = build(norm_placement="pre", final_norm=False)
    with torch.no_grad():
        model.decoder[1].feed_forward.contract.bias[:] = 3e38
        model.output[:] = 3e38
    decoder = NativeDecoder(PackedModel(model, precision))
    decoder.read(SOURCES[:1])
    decoder.advance(np.array([1]))
    values_RC, _ = decoder.candidates(2, np.zeros(VOCABULARY, dtype=np.float32))
    assert np.isnan(values_RC).all()


def test_what_cannot_be_done_is_said():
    decoder = NativeDecoder(PACKED[0])
    with pytest.raises(NativeError, match="no source"):
        decoder.advance(np.array([1]))
    with pytest.raises(NativeError, match="a source is empty"):
        decoder.read([[]])
    with pytest.raises(NativeError, match="not in the vocabulary"):
        decoder.read([[VOCABULARY]])
    with pytest.raises(NativeError, match="more positions than the model has"):
        decoder.read([[5] * 65])
    with pytest.raises(NativeError, match="not in the vocabulary"):
        decoder.read([[5]], [np.array([VOCABULARY])])
    decoder.read(SOURCES[:1])
    with pytest.raises(NativeError, match="not in the vocabulary"):
        decoder.advance(np.array([-1]))
    with pytest.raises(NativeError, match="there is no such row"):
        decoder.reorder(torch.tensor([1]), None)


def test_models_that_the_library_does_not_know():
    assert obstacle(build()) is None
    assert "no encoder-decoder" in (obstacle(BidirectionalEncoder(ModelSettings(d_model=8, heads=2), 9)) or "")
    assert "does not reach everything" in (obstacle(build(spans=("window",), window=3)) or "")
    changed = build()
    changed.decoder[0].feed_forward.expand = nn.Sequential(changed.decoder[0].feed_forward.expand)
    assert obstacle(changed) == "decoder.0.feed_forward.expand is a Sequential"
    with pytest.raises(NativeError, match="is a Sequential"):
        PackedModel(changed)


def test_adapters_count():
    model = build()
    plain = compared(model, "float32")[0][0]
    adapters.apply(model, AdapterSettings(rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "original" not in name and "parametrizations" in name:
                parameter.add_(0.1)
    expected, found = compared(model, "float32")[0]
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-5)
    assert (found - plain).abs().max() > 0.01
