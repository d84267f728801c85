"""The moving average of the weights: its values, and that nothing but validation and the final model sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.data.batches import Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.model.adapters import AdapterSettings, apply
from regard.runs.export import _validated
from regard.training.averaging import MovingAverage, decay_at
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import Validation, ValidationSettings, validation_loss

MakeTrainer = Callable[..., Trainer]


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


def averages(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.checkpoint().averages.items()}


class Diary(Listening):
    """The weights after each step, and the scores of each validation."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.scores: list[dict[str, float]] = []

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.weights.append(weights(trainer))

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.scores.append(scores)


def test_the_decay_grows_to_what_was_asked_for() -> None:
    assert [decay_at(step, 0.9) for step in (1, 2, 11, 79, 80, 81, 10**6)] == pytest.approx(
        [2 / 11, 3 / 12, 12 / 21, 80 / 89, 0.9, 0.9, 0.9]
    )


def test_it_is_the_published_recursion_over_the_weights_after_each_step(make_trainer: MakeTrainer) -> None:
    diary = Diary()
    trainer = make_trainer([diary], dropout=0.3, steps=15, ema=0.6)
    expected = {name: weight.double() for name, weight in weights(trainer).items()}
    trainer.train()
    for step, after in enumerate(diary.weights, start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        expected = {name: decay * old + (1 - decay) * after[name].double() for name, old in expected.items()}
    found = averages(trainer)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-5)
        assert not torch.allclose(tensor, diary.weights[-1][name], atol=1e-4)


def test_the_weights_go_on_as_if_there_were_none(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    """Also through validations, which see the average."""
    both = []
    for ema in (None, 0.9):
        diary = Diary()
        validation = Validation(ValidationSettings(every=3), Batches(dataset, BatchSettings(tokens=100)))
        make_trainer([validation, diary], dropout=0.3, steps=10, ema=ema).train()
        both.append(diary)
    for one, other in zip(both[0].weights, both[1].weights, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert [len(diary.scores) for diary in both] == [4, 4]
    assert both[0].scores[-1]["loss"] != both[1].scores[-1]["loss"]


def test_validation_is_of_the_average(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    """The loss, and what is decoded, in evaluation mode."""
    batches = Batches(dataset, BatchSettings(tokens=100))
    seen: list[dict[str, Tensor]] = []

    def decode(model: nn.Module) -> dict[str, float]:
        assert not model.training
        seen.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        return {"bleu": 1.0}

    diary = Diary()
    trainer = make_trainer([Validation(ValidationSettings(every=6), batches, decode), diary], steps=6, ema=0.9)
    trainer.train()
    found = averages(trainer)
    (shown,) = seen
    assert all(torch.equal(shown[name], found[name]) for name in found)
    other = make_trainer()
    other.model.load_state_dict(found, strict=False)
    assert diary.scores == [validation_loss(other, batches) | {"bleu": 1.0}]
    assert validation_loss(trainer, batches)["loss"] != diary.scores[0]["loss"]


def test_the_weights_are_back_after_what_failed(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(steps=3, ema=0.9)
    trainer.train()
    before, average = weights(trainer), averages(trainer)

    def look() -> None:
        with trainer.averaged():
            assert all(torch.equal(weight, average[name]) for name, weight in weights(trainer).items())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look()
    for found, expected in ((weights(trainer), before), (averages(trainer), average)):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_without_a_decay_there_is_none(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(steps=1)
    trainer.train()
    before = weights(trainer)
    with trainer.averaged():
        assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())
    assert trainer.checkpoint().averages == {}


def test_only_what_learns_is_averaged(make_trainer: MakeTrainer, make_model: Callable[..., nn.Module]) -> None:
    model = make_model()
    apply(model, AdapterSettings(rank=2))
    trainer = make_trainer(model=model, steps=4, ema=0.5)
    trainer.train()
    names = averages(trainer).keys()
    assert names == {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all(name.endswith((".a", ".b")) for name in names)


def test_a_checkpoint_holds_it_and_a_candidate_is_made_of_it(make_trainer: MakeTrainer, folder: Path) -> None:
    trainer = make_trainer(steps=5, ema=0.9)
    trainer.train()
    checkpoint = load_checkpoint(save_checkpoint(folder, 5, trainer.checkpoint()))
    found = averages(trainer)
    assert checkpoint.averages.keys() == found.keys() == checkpoint.model.keys()
    candidate = _validated(5, checkpoint)
    assert candidate.name == "step 5, the moving average of the weights, the best by validation"
    assert all(torch.equal(candidate.weights[name], tensor) for name, tensor in found.items())
    plain = make_trainer(steps=5)
    plain.train()
    candidate = _validated(5, plain.checkpoint())
    assert candidate.name == "step 5, the best by validation"
    assert all(torch.equal(candidate.weights[name], weight) for name, weight in weights(plain).items())


def test_it_may_be_turned_on_and_off_in_a_run_that_goes_on(make_trainer: MakeTrainer) -> None:
    """Turned on, it begins from the weights of that time."""
    plain = make_trainer(steps=4)
    plain.train()
    on = make_trainer(steps=5, ema=0.9)
    on.resume(plain.checkpoint(), "here")
    assert all(torch.equal(averages(on)[name], weight) for name, weight in weights(plain).items())
    before = weights(on)
    on.train()
    after, decay = weights(on), 6 / 15
    for name, tensor in averages(on).items():
        torch.testing.assert_close(tensor, decay * before[name] + (1 - decay) * after[name], atol=1e-6, rtol=1e-5)
    off = make_trainer(steps=6)
    off.resume(on.checkpoint(), "here")
    off.train()
    assert off.checkpoint().averages == {}


def test_an_average_of_other_weights_is_refused(make_model: Callable[..., nn.Module]) -> None:
    average = MovingAverage(make_model(), 0.9)
    other = MovingAverage(make_model(tie="none"), 0.9)
    with pytest.raises(UserError, match=r"^here: its moving average is of other weights than those that learn"):
        average.load_state(other.state(), "here")
