from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from regard.data.batches import Batch
from regard.model.attention import reading
from regard.model.settings import AlignmentHead, ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.training.guided import GuidedSettings, guided_loss
from regard.training.loss import translation_loss


def model(**settings: object) -> EncoderDecoder:
    torch.manual_seed(1)
    values = {"d_model": 16, "d_ff": 16, "heads": 4, "encoder_layers": 1, "decoder_layers": 3, "dropout": 0.0}
    return EncoderDecoder(ModelSettings.parse({**values, **settings}, "test"), 30, 30)


def batch(aligned: bool = True) -> Batch:
    torch.manual_seed(2)
    source_BS, target_BT = torch.randint(3, 30, (4, 6)), torch.randint(3, 30, (4, 5))
    real_BS, real_BT = torch.ones_like(source_BS, dtype=torch.bool), torch.ones_like(target_BT, dtype=torch.bool)
    real_BS[1, 3:] = real_BT[2, 2:] = False
    aligned_BTS = torch.zeros(4, 5, 6)
    aligned_BTS[0, 0, 1] = aligned_BTS[2, 1, 5] = 1.0
    aligned_BTS[1, 2, :2] = 0.5
    into = torch.cat((torch.ones(4, 1, dtype=torch.long), target_BT[:, :-1]), dim=1)
    tokens = int(real_BS.sum()), int(real_BT.sum())
    return Batch(source_BS, real_BS, into, target_BT, real_BT, (0, 1, 2, 3), *tokens, aligned_BTS if aligned else None)


def test_the_loss_of_a_head_by_hand() -> None:
    weights_BTS = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]]])
    aligned_BTS = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    expected = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25)) - math.log(0.9)
    assert float(guided_loss(weights_BTS, aligned_BTS)) == pytest.approx(expected)
    assert math.isfinite(guided_loss(torch.zeros(1, 1, 2), torch.ones(1, 1, 2)))


def test_the_loss_is_added_by_weight_and_the_likelihood_is_not_touched() -> None:
    net, examples = model(), batch()
    plain = translation_loss(net, examples, 0.1)
    light, heavy = (translation_loss(net, examples, 0.1, guided=GuidedSettings(weight=weight)) for weight in (0.1, 1.0))
    assert float(heavy.loss - plain.loss) == pytest.approx(10 * float(light.loss - plain.loss), rel=1e-3)
    assert float(light.loss) > float(plain.loss)
    assert float(heavy.nll) == float(plain.nll)
    without = translation_loss(net, batch(aligned=False), 0.1, guided=GuidedSettings())
    assert torch.equal(without.loss, plain.loss)


def test_two_readings_count_once() -> None:
    net, examples, guided = model(dropout=0.5), batch(), GuidedSettings(weight=1.0)
    for each in net.modules():  # r-drop needs a model that trains; nothing is dropped, so that both readings are alike
        for name in ("drop", "layer_drop"):
            if isinstance(getattr(each, name, None), float):
                setattr(each, name, 0.0)
    plain, twice = (
        float(
            translation_loss(net, examples, 0.0, r_drop, guided).loss
            - translation_loss(net, examples, 0.0, r_drop).loss
        )
        for r_drop in (0.0, 1.0)
    )
    assert twice == pytest.approx(plain, rel=1e-4)


def test_the_head_learns_its_links() -> None:
    net, examples, guided = model(), batch(), GuidedSettings(weight=5.0, layer=1, head=2)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        sums = translation_loss(net, replace(examples, target_tokens=1), 0.0, guided=guided)
        sums.loss.backward()
        optimizer.step()
        losses.append(float(sums.loss))
    assert losses[-1] < losses[0] / 4
    with torch.no_grad(), reading(net.memory_attention(1), 2) as read:
        net(examples.source_BS, examples.source_mask_BS, examples.target_in_BT)
    weights_BTS = read.weights_BHTS[:, 0]
    assert float(weights_BTS[0, 0, 1]) > 0.8
    assert float(weights_BTS[1, 2, :2].min()) > 0.3


def test_a_layer_that_is_left_out_adds_nothing() -> None:
    net, examples = model(layer_dropout=0.999), batch()
    torch.manual_seed(5)
    plain = translation_loss(net, examples, 0.0).loss
    torch.manual_seed(5)
    assert torch.equal(translation_loss(net, examples, 0.0, guided=GuidedSettings()).loss, plain)


def test_where_the_head_is() -> None:
    assert GuidedSettings().among(6) == AlignmentHead(layer=4, head=0)
    assert GuidedSettings(layer=0, head=3).among(1) == AlignmentHead(layer=0, head=3)
    assert GuidedSettings().among(1) == AlignmentHead(layer=0, head=0)
