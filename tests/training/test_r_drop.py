"""R-Drop: the loss of two readings of a batch, by hand, by torch's own functions, and without all logits at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batches import Batch
from regard.data.examples import LabelledBatch
from regard.data.masking import MaskedBatch
from regard.data.packing import PackedBatch
from regard.errors import UserError
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder
from regard.runs.tasks import resolve
from regard.training import r_drop
from regard.training.loss import (
    LossSums,
    causal_loss,
    classification_loss,
    cross_entropy,
    masked_loss,
    token_classification_loss,
    translation_loss,
)
from regard.training.r_drop import fused_r_drop, readings, reference_r_drop

VOCABULARY = 19


def published(logits_MV: Tensor, targets_M: Tensor, smoothing: float, alpha: float) -> Tensor:
    """CE_1 + CE_2 + alpha (KL(1 || 2) + KL(2 || 1)) / 2, equation (4) of the publication."""
    logs = [each.log_softmax(-1) for each in (logits_MV[: len(logits_MV) // 2], logits_MV[len(logits_MV) // 2 :])]
    divergences = [
        functional.kl_div(of, other, reduction="sum", log_target=True) for of, other in (logs, reversed(logs))
    ]
    entropies = functional.cross_entropy(logits_MV, targets_M, reduction="sum", label_smoothing=smoothing)
    return entropies + alpha * (divergences[0] + divergences[1]) / 2


def example(positions: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of two readings, an output matrix, targets."""
    torch.manual_seed(0)
    hidden = torch.randn(2 * positions, 7, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, 7, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(VOCABULARY, (positions,)).repeat(2)


@pytest.fixture(params=[1, 2, 100])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Positions at a time: 5 in chunks of 2 leave a shorter one."""
    monkeypatch.setattr(r_drop, "CHUNK_BYTES", request.param * 4 * VOCABULARY)
    return int(request.param)


def test_one_position_by_hand() -> None:
    """p_1 = (3/4, 1/4), p_2 = (1/2, 1/2), the first class being the right one."""
    one, other = (0.75, 0.25), (0.5, 0.5)
    forwards = sum(p * math.log(p / q) for p, q in zip(one, other, strict=True))
    backwards = sum(q * math.log(q / p) for p, q in zip(one, other, strict=True))
    expected = (-math.log(0.75) - math.log(0.5)) / 2 + 5 * (forwards + backwards) / 4
    hidden, weight, targets = torch.log(torch.tensor([one, other])), torch.eye(2), torch.tensor([0, 0])
    for loss, nll in (
        reference_r_drop(hidden, targets, 0.0, 5.0),
        fused_r_drop(hidden, weight, targets, 0.0, 5.0),
    ):
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        assert nll.item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_it_is_half_of_the_published_loss(chunks: int, smoothing: float, alpha: float) -> None:
    hidden, weight, targets = example()
    expected = published(hidden @ weight.T, targets, smoothing, alpha) / 2
    wanted = torch.autograd.grad(expected, (hidden, weight))
    nll = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum") / 2
    for found in (
        reference_r_drop(hidden @ weight.T, targets, smoothing, alpha),
        fused_r_drop(hidden, weight, targets, smoothing, alpha),
    ):
        torch.testing.assert_close(found[0], expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(found[1], nll.detach(), atol=1e-10, rtol=1e-10)
        assert not found[1].requires_grad
        for one, other in zip(torch.autograd.grad(found[0], (hidden, weight)), wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_the_gradient_made_by_hand_is_that_of_differences(chunks: int) -> None:
    hidden, weight, targets = example()
    assert torch.autograd.gradcheck(lambda h, w: 3 * fused_r_drop(h, w, targets, 0.1, 2.5)[0], (hidden, weight))


def test_readings_that_agree_cost_no_more_than_one() -> None:
    hidden, weight, targets = example(dtype=torch.float32)
    with torch.no_grad():
        hidden[5:] = hidden[:5]
    one, nll = cross_entropy(hidden[:5], weight, targets[:5], 0.1)
    both, both_nll = fused_r_drop(hidden, weight, targets, 0.1, 5.0)
    torch.testing.assert_close(both, one)
    torch.testing.assert_close(both_nll, nll)
    (expected,), (found,) = torch.autograd.grad(one, (weight,)), torch.autograd.grad(both, (weight,))
    torch.testing.assert_close(found, expected)


def test_confident_readings_that_contradict_each_other_give_numbers() -> None:
    """Logits 100 apart: the divergence is about 200 nats, and nothing overflows."""
    hidden = torch.tensor([[100.0, 0.0], [0.0, 100.0]], requires_grad=True)
    loss, nll = fused_r_drop(hidden, torch.eye(2), torch.tensor([0, 0]), 0.0, 1.0)
    assert (loss.item(), nll.item()) == pytest.approx((100 / 2 + 200 / 4, 100 / 2))
    loss.backward()
    assert hidden.grad is not None
    assert bool(torch.isfinite(hidden.grad).all())


def test_no_position_costs_nothing() -> None:
    hidden, weight, targets = example(0, torch.float32)
    for loss, nll in (
        fused_r_drop(hidden, weight, targets, 0.1, 5.0),
        reference_r_drop(hidden @ weight.T, targets, 0.1, 5.0),
    ):
        assert (loss.item(), nll.item()) == (0, 0)
        assert all(bool((each == 0).all()) for each in torch.autograd.grad(loss, (hidden, weight)))


def test_half_precision_is_near() -> None:
    hidden, weight, targets = example(64, torch.float32)
    exact = fused_r_drop(hidden, weight, targets, 0.1, 5.0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = fused_r_drop(hidden, weight, targets, 0.1, 5.0)[0]
    assert near.dtype == torch.float32
    assert near.item() == pytest.approx(exact.item(), rel=0.02)
    assert near.item() != exact.item()
    for one, other in zip(
        torch.autograd.grad(near, (hidden, weight)), torch.autograd.grad(exact, (hidden, weight)), strict=True
    ):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.05 * other.abs().max().item(), rtol=0)


def settings(**values: object) -> ModelSettings:
    small = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.3}
    return ModelSettings.parse({**small, **values}, "test")


def ids(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


REAL = torch.tensor([[True, True, True, True], [True, True, False, False], [True, True, True, False]])
LABELS = HeadSettings(kind="text", labels=("a", "b", "c"))
Hidden = Callable[[Any, Any], tuple[Tensor, Tensor]]


def translation(**values: object) -> tuple[nn.Module, Batch, Callable[..., LossSums], Hidden]:
    model = EncoderDecoder(settings(**values), VOCABULARY, VOCABULARY)
    batch = Batch(ids(3, 4), REAL, ids(3, 4), ids(3, 4), REAL, (0, 1, 2), source_tokens=9, target_tokens=9)

    def hidden(model: EncoderDecoder, both: Batch) -> tuple[Tensor, Tensor]:
        states = model(both.source_BS, both.source_mask_BS, both.target_in_BT)
        return model.logits(states)[both.target_mask_BT], both.target_out_BT[both.target_mask_BT]

    return model, batch, translation_loss, hidden


def causal(**values: object) -> tuple[nn.Module, PackedBatch, Callable[..., LossSums], Hidden]:
    model = CausalDecoder(settings(**values), VOCABULARY)
    documents = torch.tensor([[0, 0, 1, 1], [0, 0, -1, -1], [0, 1, 1, -1]])
    batch = PackedBatch(ids(3, 4), ids(3, 4), REAL, documents, source_tokens=9, target_tokens=9)

    def hidden(model: CausalDecoder, both: PackedBatch) -> tuple[Tensor, Tensor]:
        states = model(both.tokens_BT, both.documents_BT)
        return model.logits(states)[both.scored_BT], both.targets_BT[both.scored_BT]

    return model, batch, causal_loss, hidden


def masked() -> tuple[nn.Module, MaskedBatch, Callable[..., LossSums], Hidden]:
    model = BidirectionalEncoder(settings(), VOCABULARY, HeadSettings(kind="masked-lm"))
    scored = REAL & torch.tensor([True, False, False, True])
    batch = MaskedBatch(ids(3, 4), ids(3, 4), scored, REAL, None, source_tokens=9, target_tokens=4)

    def hidden(model: BidirectionalEncoder, both: MaskedBatch) -> tuple[Tensor, Tensor]:
        logits = model.logits(model.encode(both.tokens_BS, both.real_BS))
        return logits[both.scored_BS], both.targets_BS[both.scored_BS]

    return model, batch, masked_loss, hidden


def labelled() -> tuple[nn.Module, LabelledBatch, Callable[..., LossSums], Hidden]:
    model = BidirectionalEncoder(settings(), VOCABULARY, LABELS)
    batch = LabelledBatch(ids(3, 4), REAL, torch.tensor([0, 2, 1]), (0, 1, 2), source_tokens=9, target_tokens=3)

    def hidden(model: BidirectionalEncoder, both: LabelledBatch) -> tuple[Tensor, Tensor]:
        return model.logits(model.encode(both.inputs, both.real_BS)), both.labels

    return model, batch, classification_loss, hidden


def tagged() -> tuple[nn.Module, LabelledBatch, Callable[..., LossSums], Hidden]:
    model = BidirectionalEncoder(settings(), VOCABULARY, LABELS.model_copy(update={"kind": "tokens"}))
    labels = torch.tensor([[-1, 0, 2, -1], [-1, 1, -1, -1], [-1, -1, 2, -1]])
    batch = LabelledBatch(ids(3, 4), REAL, labels, (0, 1, 2), source_tokens=9, target_tokens=4)

    def hidden(model: BidirectionalEncoder, both: LabelledBatch) -> tuple[Tensor, Tensor]:
        return model.logits(model.encode(both.inputs, both.real_BS))[both.labels >= 0], both.labels[both.labels >= 0]

    return model, batch, token_classification_loss, hidden


CASES: dict[str, Callable[[], tuple[nn.Module, Any, Callable[..., LossSums], Hidden]]] = {
    "translation": translation,
    "a bias of the output": lambda: causal(output_bias=True),
    "bent logits": lambda: causal(output_softcap=2.0),
    "causal": causal,
    "masked": masked,
    "labels": labelled,
    "labels of words": tagged,
}


@pytest.mark.parametrize("case", CASES)
def test_every_objective_reads_the_batch_twice_with_other_units_dropped(case: str) -> None:
    torch.manual_seed(1)
    model, batch, objective, hidden = CASES[case]()
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    both = replace(batch, **{name: torch.cat((value, value)) for name, value in tensors.items()})
    torch.manual_seed(2)
    logits, targets = hidden(model, both)
    half = len(logits) // 2
    assert not torch.allclose(logits[:half], logits[half:], atol=1e-3)
    assert torch.equal(targets[:half], targets[half:])
    assert half == batch.target_tokens
    expected = published(logits, targets, 0.1, 4.0) / 2
    torch.manual_seed(2)
    sums = objective(model, batch, 0.1, 4.0)
    assert sums.tokens == batch.target_tokens
    torch.testing.assert_close(sums.loss, expected, atol=1e-5, rtol=1e-5)
    nll = functional.cross_entropy(logits, targets, reduction="sum") / 2
    torch.testing.assert_close(sums.nll, nll.detach(), atol=1e-5, rtol=1e-5)
    weights = list(model.parameters())
    for found, wanted in zip(
        torch.autograd.grad(sums.loss, weights, allow_unused=True),
        torch.autograd.grad(expected, weights, allow_unused=True),
        strict=True,
    ):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_outside_of_training_and_without_weight_nothing_changes(case: str) -> None:
    torch.manual_seed(1)
    model, batch, objective, _ = CASES[case]()
    for train, alpha in ((False, 4.0), (True, 0.0)):
        model.train(train)
        torch.manual_seed(2)
        plain = objective(model, batch, 0.1)
        torch.manual_seed(2)
        found = objective(model, batch, 0.1, alpha)
        assert torch.equal(found.loss, plain.loss)
        assert torch.equal(found.nll, plain.nll)
        assert readings(model, batch, alpha) == (batch, 0.0)


def test_without_dropout_there_is_nothing_to_compare() -> None:
    recipe = {"data": {"train": {"source": "a", "target": "b"}}, "training": {"r_drop": 5}}
    assert resolve(recipe, "recipe").training.r_drop == 5.0
    with pytest.raises(UserError, match=r"^recipe: training\.r_drop .* needs model\.dropout above 0"):
        resolve({**recipe, "model": {"dropout": 0}}, "recipe")
    assert resolve({**recipe, "model": {"dropout": 0, "attention_dropout": 0.1}}, "recipe").model.dropout == 0
