"""Validation: a true measure, whatever the batches, that leaves training as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.model.transformer import EncoderDecoder
from regard.training.loss import LossSums, translation_loss
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import (
    DIRECTIONS,
    Metric,
    Validation,
    ValidationSettings,
    better,
    validation_loss,
)

MakeTrainer = Callable[..., Trainer]


def scores(trainer: Trainer, dataset: PairDataset, **settings: int) -> dict[str, float]:
    return Validation(ValidationSettings(), Batches(dataset, BatchSettings.model_validate(settings))).scores(trainer)


def test_the_loss_is_the_same_for_any_batches(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    """Total negative log-likelihood over total tokens: not a mean over batches."""
    trainer = make_trainer(dropout=0.3)
    expected = scores(trainer, dataset, tokens=100, max_sentences=1)
    for settings in ({"tokens": 100, "max_sentences": 8}, {"tokens": 30}, {"tokens": 10_000}):
        assert scores(trainer, dataset, **settings) == pytest.approx(expected, rel=1e-5)
    assert expected["perplexity"] == pytest.approx(math.exp(expected["loss"]))


def test_the_loss_is_that_of_every_token_of_every_pair(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    trainer = make_trainer()
    model = trainer.model
    assert isinstance(model, EncoderDecoder)
    nll, tokens = 0.0, 0
    for batch in Batches(dataset, BatchSettings(tokens=10_000)).in_order():
        logits = model.eval().logits(model(batch.source_BS, batch.source_mask_BS, batch.target_in_BT))
        targets = batch.target_out_BT.masked_fill(~batch.target_mask_BT, -100)
        nll += functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
        tokens += int((targets != -100).sum())
    assert tokens == int(dataset.target_lengths.sum()) + len(dataset)
    assert scores(trainer, dataset, tokens=64)["loss"] == pytest.approx(nll / tokens, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_perplexity_knows_no_smoothing(make_trainer: MakeTrainer, dataset: PairDataset, smoothing: float) -> None:
    def objective(model: nn.Module, batch: Batch) -> LossSums:
        assert isinstance(model, EncoderDecoder)
        return translation_loss(model, batch, smoothing)

    plain = scores(make_trainer(), dataset, tokens=100)
    assert scores(make_trainer(objective=objective), dataset, tokens=100) == plain


def test_perplexity_of_the_worked_example(make_trainer: MakeTrainer, batches: Batches) -> None:
    """Logits [2, 0, 0, 0] for each token, the right one first: exp(0.3408) = 1.406, not exp(0.4908) = 1.634."""

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]]).expand(batch.target_tokens, -1)
        targets = torch.zeros(batch.target_tokens, dtype=torch.long)
        smoothed = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
        nll = functional.cross_entropy(logits, targets, reduction="sum")
        return LossSums(smoothed, nll, batch.target_tokens)

    measured = validation_loss(make_trainer(objective=objective), batches)
    assert measured == pytest.approx({"loss": 0.3408, "perplexity": 1.406}, abs=5e-4)


def test_without_pairs_nothing_was_measured(make_trainer: MakeTrainer) -> None:
    class Nothing:
        def in_order(self) -> list[Batch]:
            return []

    assert all(math.isnan(value) for value in validation_loss(make_trainer(), Nothing()).values())


def test_a_huge_loss_has_a_finite_perplexity(make_trainer: MakeTrainer, batches: Batches) -> None:
    def objective(model: nn.Module, batch: Batch) -> LossSums:
        return LossSums(torch.tensor(0.0), torch.tensor(1e6 * batch.target_tokens), batch.target_tokens)

    assert math.isfinite(validation_loss(make_trainer(objective=objective), batches)["perplexity"])


def test_dropout_is_off_and_no_gradients_are_made(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    trainer = make_trainer(dropout=0.5)
    trainer.model.train()
    modes = []
    inner = trainer.objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        modes.append((model.training, torch.is_grad_enabled(), sums.loss.requires_grad))
        return sums

    trainer.objective = objective
    state = torch.get_rng_state()
    assert scores(trainer, dataset, tokens=100) == scores(trainer, dataset, tokens=100)
    assert set(modes) == {(False, False, False)}
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_decoding_adds_its_scores_in_evaluation_mode(make_trainer: MakeTrainer, batches: Batches) -> None:
    trainer, modes = make_trainer(), []

    def decode(model: nn.Module) -> dict[str, float]:
        modes.append(all(not module.training for module in model.modules()))
        return {"bleu": 31.5}

    found = Validation(ValidationSettings(), batches, decode).scores(trainer)
    assert set(found) == {"loss", "perplexity", "bleu"}
    assert found["bleu"] == 31.5
    assert modes == [True]


def test_training_mode_is_back_after_a_validation_and_after_a_failed_one(
    make_trainer: MakeTrainer, batches: Batches
) -> None:
    def fail(model: nn.Module) -> dict[str, float]:
        raise ZeroDivisionError

    trainer = make_trainer()
    trainer.model.train()
    Validation(ValidationSettings(), batches).scores(trainer)
    assert all(module.training for module in trainer.model.modules())
    with pytest.raises(ZeroDivisionError):
        Validation(ValidationSettings(), batches, fail).scores(trainer)
    assert all(module.training for module in trainer.model.modules())


def test_it_happens_every_so_many_steps_and_at_the_last(make_trainer: MakeTrainer, batches: Batches) -> None:
    class Heard(Listening):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
            self.steps.append(trainer.progress.step)

    heard = Heard()
    make_trainer([Validation(ValidationSettings(every=4), batches), heard], steps=10).train()
    assert heard.steps == [4, 8, 10]


def test_validating_does_not_change_the_training(make_trainer: MakeTrainer, batches: Batches) -> None:
    class Losses(Listening):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            self.losses.append(report.loss)

    runs = []
    for every in (1, 1000):
        losses = Losses()
        trainer = make_trainer([losses, Validation(ValidationSettings(every=every), batches)], dropout=0.3, steps=6)
        torch.manual_seed(0)
        trainer.train()
        runs.append(losses.losses)
    assert runs[0] == runs[1]


def test_every_metric_has_a_direction() -> None:
    assert set(DIRECTIONS) == set(get_args(Metric))
    assert {metric for metric, direction in DIRECTIONS.items() if direction == -1} == {"loss", "edit"}


@pytest.mark.parametrize(("metric", "lower", "higher"), [("loss", 1, 2), ("accuracy", 50, 60), ("macro_f1", 1, 2)])
def test_what_is_better(metric: Metric, lower: float, higher: float) -> None:
    worse, best = (higher, lower) if metric == "loss" else (lower, higher)
    assert better(metric, best, worse)
    assert not better(metric, worse, best)
    assert not better(metric, best, best)
    assert better(metric, worse, None)
    assert not better(metric, math.nan, None)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UserError, match=r"metric: input should be 'loss', .*'macro_f1' \(got 'f1'\)"):
        ValidationSettings.parse({"metric": "f1"}, "recipe")
