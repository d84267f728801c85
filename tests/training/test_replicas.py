"""Replicas share the weights and the work: gradients are sums, and nothing depends on which thread is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.data.batches import Batch, Batches
from regard.model.transformer import EncoderDecoder
from regard.training import replicas as module
from regard.training.loss import LossSums, total
from regard.training.replicas import Replicas, replicas
from regard.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeModel = Callable[..., EncoderDecoder]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "FEWEST_TOKENS", 4)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def batch(batches: Batches) -> Batch:
    """The one with most tokens."""
    return max(batches.epoch(0), key=lambda each: each.target_tokens)


def gradients(trainer: Trainer, batch: Batch) -> dict[str, torch.Tensor]:
    trainer.passes.gradients([batch], batch.target_tokens)
    return {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_and_sums_are_those_of_the_whole_batch(count: int, make_trainer: MakeTrainer, batch: Batch) -> None:
    alone, together = make_trainer(), make_trainer(replicas=count)
    assert together.replicas is not None
    parts = together.replicas.parts(batch)
    assert len(parts) == count
    assert [i for part in parts for i in part.indices] == list(batch.indices)
    whole, sums = (each.passes.gradients([batch], batch.target_tokens) for each in (alone, together))
    torch.testing.assert_close(sums.loss, whole.loss)
    torch.testing.assert_close(sums.nll, whole.nll)
    expected = gradients(alone, batch)
    found = gradients(together, batch)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def test_weights_are_shared_and_gradients_are_not(make_model: MakeModel) -> None:
    model = make_model()
    (first, second) = Replicas(model, 2, 2).models
    assert first is model
    for own, other in zip(first.parameters(), second.parameters(), strict=True):
        assert own is not other
        assert own.data_ptr() == other.data_ptr()
    assert isinstance(second, EncoderDecoder)
    assert second.output is second.target_embedding.weight  # tied in the model, tied in its copy


def test_what_a_thread_draws_does_not_depend_on_which_is_faster(
    make_trainer: MakeTrainer, make_model: MakeModel
) -> None:
    """Three steps with dropout, the threads held up in one order and in the other: the same weights, bit for bit."""

    def weights(slow: int) -> list[torch.Tensor]:
        model = make_model(0.3)
        trainer = make_trainer(model=model, replicas=2)
        inner = trainer.objective

        def objective(reader: nn.Module, batch: Batch) -> LossSums:
            assert trainer.replicas is not None
            if reader is trainer.replicas.models[slow]:
                time.sleep(0.02)
            return inner(reader, batch)

        trainer.passes.objective = objective
        torch.manual_seed(5)
        for batch in list(trainer.batches.epoch(0))[:3]:
            trainer.step([batch])
        return [weight.detach().clone() for weight in model.parameters()]

    for first, second in zip(weights(0), weights(1), strict=True):
        assert torch.equal(first, second)


def test_each_part_has_dropout_of_its_own(make_trainer: MakeTrainer, make_model: MakeModel, batch: Batch) -> None:
    """The same rows twice, one for each replica, lose different units."""
    trainer = make_trainer(model=make_model(0.5), replicas=2)
    assert trainer.replicas is not None
    losses = trainer.replicas.work(lambda model, part: trainer.objective(model, part).loss.item(), [batch, batch])
    assert losses[0] != losses[1]


def test_copies_are_in_the_mode_of_the_model(make_trainer: MakeTrainer, make_model: MakeModel, batch: Batch) -> None:
    trainer = make_trainer(model=make_model(0.5).eval(), replicas=2)
    assert trainer.replicas is not None
    for training in (True, False):
        trainer.model.train(training)
        modes = trainer.replicas.work(lambda model, part: model.training, [batch, batch])
        assert modes == [training, training]


def test_an_error_in_one_part_is_raised_and_leaves_no_gradient_of_the_others_copies(
    make_trainer: MakeTrainer, batch: Batch
) -> None:
    trainer = make_trainer(replicas=2)
    assert trainer.replicas is not None
    first, second = trainer.replicas.parts(batch)

    def work(model: nn.Module, part: Batch) -> None:
        trainer.objective(model, part).loss.backward()
        if part is second:
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        trainer.replicas.work(work, [first, second])
    assert all(weight.grad is None for weight in trainer.replicas.models[1].parameters())


def test_a_batch_too_small_for_parts_is_one(make_trainer: MakeTrainer, batch: Batch) -> None:
    trainer = make_trainer(replicas=4)
    assert trainer.replicas is not None
    assert len(trainer.replicas.parts(replace(batch, target_tokens=7))) == 1
    assert len(trainer.replicas.parts(replace(batch, target_tokens=8))) == 2


@pytest.mark.parametrize(("threads", "count"), [(1, None), (2, 2), (3, 3), (4, 4), (6, 3), (16, 4), (7, None)])
def test_replicas_divide_the_threads(threads: int, count: int | None, make_model: MakeModel) -> None:
    torch.set_num_threads(threads)
    found = replicas(make_model())
    assert (None if found is None else len(found.models)) == count


def test_sums_of_parts() -> None:
    parts = [LossSums(torch.tensor(loss), torch.tensor(loss / 2), tokens) for loss, tokens in ((3.0, 2), (5.0, 4))]
    sums = total(parts)
    assert (float(sums.loss), float(sums.nll), sums.tokens) == (8.0, 4.0, 6)
