"""Section 5.4: residual dropout and label smoothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.model import blocks, feed_forward, inputs, reference
from regard.model.dropout import dropout
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.training.loss import cross_entropy, reference_cross_entropy

LOSSES = [reference_cross_entropy, cross_entropy]
LOGITS = torch.tensor([[2.0, 0.0, 0.0, 0.0]])


def places_of_dropout(monkeypatch: pytest.MonkeyPatch, **settings: float) -> list[tuple[str, tuple[int, ...]]]:
    """Where dropout really happens in one training pass, by module, with the shape of what it happens to."""
    places = []
    for module in (reference, blocks, feed_forward, inputs):

        def spy(x: Tensor, probability: float, training: bool, name: str = module.__name__) -> Tensor:
            if training and probability > 0:
                places.append((name.rpartition(".")[2], tuple(x.shape)))
            return dropout(x, probability, training)

        monkeypatch.setattr(module, "dropout", spy)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 3}
    model = EncoderDecoder(ModelSettings.model_validate(values | settings), 9, 9).train()
    model(torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1, 6]]))
    return places


def test_dropout_is_on_each_sublayers_output_and_on_the_embedded_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """'to the output of each sub-layer' (2 an encoder layer, 3 a decoder layer) 'and to the sums of the embeddings
    and the positional encodings in both the encoder and decoder stacks', and nowhere else."""
    places = places_of_dropout(monkeypatch, dropout=0.1)
    encoder = [("inputs", (1, 3, 16)), *[("blocks", (1, 3, 16))] * (2 * 2)]
    decoder = [("inputs", (1, 2, 16)), *[("blocks", (1, 2, 16))] * (3 * 3)]
    assert places == encoder + decoder


def test_dropout_of_weights_and_activations_is_there_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    on_weights = places_of_dropout(monkeypatch, dropout=0.0, attention_dropout=0.1)
    of_encoder, of_decoder, over_memory = (1, 2, 3, 3), (1, 2, 2, 2), (1, 2, 2, 3)
    shapes = [of_encoder] * 2 + [of_decoder, over_memory] * 3
    assert on_weights == [("reference", shape) for shape in shapes]
    monkeypatch.undo()
    inside = places_of_dropout(monkeypatch, dropout=0.0, activation_dropout=0.1)
    assert inside == [("feed_forward", (1, 3, 32))] * 2 + [("feed_forward", (1, 2, 32))] * 3


@pytest.mark.parametrize("loss", LOSSES)
def test_label_smoothing_by_hand(loss: object) -> None:
    """Logits [2,0,0,0], target 0: log sum exp = ln(e^2 + 3) = 2.3408, so the negative log-likelihood is 0.3408.

    With eps = 0.1 over all 4 classes, the right one included: 0.9 x 0.3408 + 0.1 x (0.3408 + 3 x 2.3408) / 4 = 0.4908.
    """
    assert callable(loss)
    smoothed, nll = loss(LOGITS, torch.eye(4), torch.tensor([0]), 0.1)
    assert smoothed.item() == pytest.approx(0.4908, abs=5e-5)
    assert nll.item() == pytest.approx(0.3408, abs=5e-5)
    assert math.exp(nll.item()) == pytest.approx(1.406, abs=5e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_smoothing_hurts_perplexity_but_never_the_reported_likelihood(loss: object) -> None:
    assert callable(loss)
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(20, 8), torch.randn(11, 8), torch.randint(11, (20,))
    likelihoods = {loss(hidden, weight, targets, eps)[1].item() for eps in (0.0, 0.1, 0.5)}
    assert len(likelihoods) == 1
    plain, nll = loss(hidden, weight, targets, 0.0)
    torch.testing.assert_close(plain, nll)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_best_prediction_under_smoothing_is_the_smoothed_distribution(loss: object) -> None:
    """At logits = log q the gradient vanishes: q = (1 - eps) [target] + eps / V, and the loss is the entropy of q."""
    assert callable(loss)
    eps, classes = 0.3, 5
    q = torch.full((1, classes), eps / classes)
    q[0, 2] += 1 - eps
    hidden = q.log().requires_grad_()
    smoothed, _ = loss(hidden, torch.eye(classes), torch.tensor([2]), eps)
    (gradient,) = torch.autograd.grad(smoothed, hidden)
    torch.testing.assert_close(gradient, torch.zeros(1, classes), atol=1e-6, rtol=0)
    assert smoothed.item() == pytest.approx(-(q * q.log()).sum().item(), abs=1e-6)
