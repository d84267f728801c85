"""The loss of a batch: real target tokens, each once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from regard.data.batches import Batch, Batches
from regard.model.transformer import EncoderDecoder
from regard.training.loss import LossSums, translation_loss

MakeModel = Callable[..., EncoderDecoder]
PAD, EOS = 0, 2


def values(sums: LossSums) -> tuple[float, float, int]:
    return sums.loss.item(), sums.nll.item(), sums.tokens


def padded(batch: Batch, columns: int) -> Batch:
    """The same pairs with more padding on both sides."""
    wider = {
        name: functional.pad(getattr(batch, name), (0, columns))
        for name in ("source_BS", "source_mask_BS", "target_in_BT", "target_out_BT", "target_mask_BT")
    }
    return replace(batch, **wider)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_torchs_cross_entropy_over_the_real_tokens_of_each_sentence(
    batches: Batches, make_model: MakeModel, smoothing: float
) -> None:
    model = make_model().eval()
    for batch in batches.epoch(0):
        loss = nll = 0.0
        for i in range(len(batch.indices)):
            source = batch.source_BS[i][batch.source_mask_BS[i]][None]
            real = batch.target_mask_BT[i]
            hidden = model(source, torch.ones_like(source, dtype=torch.bool), batch.target_in_BT[i][real][None])
            arguments = model.logits(hidden[0]), batch.target_out_BT[i][real]
            loss += functional.cross_entropy(*arguments, reduction="sum", label_smoothing=smoothing).item()
            nll += functional.cross_entropy(*arguments, reduction="sum").item()
        sums = translation_loss(model, batch, smoothing)
        assert values(sums) == pytest.approx((loss, nll, batch.target_tokens), rel=1e-5)
        assert sums.tokens == int(batch.target_mask_BT.sum())


def test_any_amount_of_padding_changes_nothing(batches: Batches, make_model: MakeModel) -> None:
    model, batch = make_model(), next(iter(batches.epoch(0)))
    expected = values(translation_loss(model, batch, 0.1))
    for columns in (1, 50):
        assert values(translation_loss(model, padded(batch, columns), 0.1)) == pytest.approx(expected, rel=1e-5)


def test_padding_is_told_by_the_mask_and_not_by_the_id(batches: Batches, make_model: MakeModel) -> None:
    """A real token whose id is the padding's counts like any other."""
    model, batch = make_model(), next(iter(batches.epoch(0)))
    target_out = batch.target_out_BT.clone()
    target_out[0, 0] = PAD
    changed = translation_loss(model, replace(batch, target_out_BT=target_out), 0.0)
    hidden = model(batch.source_BS, batch.source_mask_BS, batch.target_in_BT)[0, 0]
    log_probabilities = model.logits(hidden).log_softmax(-1)
    difference = log_probabilities[batch.target_out_BT[0, 0]] - log_probabilities[PAD]
    before = translation_loss(model, batch, 0.0)
    assert (changed.loss - before.loss).item() == pytest.approx(difference.item(), abs=1e-4)


def test_each_pair_learns_its_end_exactly_once(batches: Batches) -> None:
    for batch in batches.epoch(0):
        counted = batch.target_out_BT[batch.target_mask_BT]
        assert int((counted == EOS).sum()) == len(batch.indices)
        last = batch.target_mask_BT.sum(1) - 1
        assert torch.all(batch.target_out_BT.gather(1, last[:, None]) == EOS)


def test_a_batch_of_padding_only_costs_nothing_and_leaves_gradients_finite(
    batches: Batches, make_model: MakeModel
) -> None:
    model, batch = make_model(), next(iter(batches.epoch(0)))
    empty = replace(batch, target_mask_BT=torch.zeros_like(batch.target_mask_BT), target_tokens=0)
    sums = translation_loss(model, empty, 0.1)
    assert values(sums) == (0.0, 0.0, 0)
    sums.loss.backward()
    assert all(torch.all(p.grad == 0) for p in model.parameters() if p.grad is not None)
