"""Batches that do not fit into memory: the step is that of the whole batch, and is said to have taken parts."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.errors import JobError
from regard.model.transformer import EncoderDecoder
from regard.training.halving import in_parts_that_fit
from regard.training.loss import LossSums
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


class Full(torch.autograd.Function):
    """The identity, whose backward pass finds no memory."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture
def whole(dataset: PairDataset) -> Batches:
    """All pairs in one batch."""
    return Batches(dataset, BatchSettings(tokens=10_000), seed=3)


def limited(inner: Callable[[nn.Module, Batch], LossSums], rows: int, where: str) -> Callable[..., LossSums]:
    """An objective for which a batch of more rows than these is too much, in the forward or the backward pass."""

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        if len(batch) > rows and where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if len(batch) > rows:  # the gradients of the decoder are there already when memory ends
            assert isinstance(model, EncoderDecoder)
            hook = model.encoder_norm.register_forward_hook(lambda module, inputs, output: Full.apply(output))
            sums = inner(model, batch)
            hook.remove()
            return sums
        return inner(model, batch)

    return objective


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.named_parameters()}


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("rows", "parts"), [(41, 2), (10, 6)])
def test_a_step_in_parts_is_the_step_of_the_whole(
    make_trainer: MakeTrainer, whole: Batches, where: str, rows: int, parts: int
) -> None:
    window = list(whole.epoch(0))
    assert [len(batch) for batch in window] == [42]
    # A larger epsilon, as Adam makes steps of what is only rounding where the gradient is zero.
    settings = {"data": whole, "optimizer": {"epsilon": 1e-3}}
    plain = make_trainer(**settings)
    split = make_trainer(**settings, objective=limited(plain.objective, rows, where))
    for _ in range(3):
        one, other = plain.step(window), split.step(window)
        assert other.split == parts - 1
        assert (other.target_tokens, other.source_tokens) == (one.target_tokens, one.source_tokens)
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.nll == pytest.approx(one.nll, rel=1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
    assert split.progress.split == 3 * (parts - 1)
    expected = weights(plain)
    for name, weight in weights(split).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=1e-4)


def test_only_the_batch_that_is_too_large_is_split(make_trainer: MakeTrainer, batches: Batches) -> None:
    """In a window of several, whose others are computed again and count once."""
    window = list(batches.epoch(0))[:4]
    most = max(map(len, window))
    plain = make_trainer()
    split = make_trainer(objective=limited(plain.objective, most - 1, "backward"))
    one, other = plain.step(window), split.step(window)
    assert other.split == sum(len(batch) == most for batch in window)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)


def test_dropout_of_a_step_in_parts_does_not_depend_on_what_failed(make_trainer: MakeTrainer, whole: Batches) -> None:
    """As if the batch had come in these parts: the pass that failed has drawn no random numbers."""
    window = list(whole.epoch(0))
    plain = make_trainer(dropout=0.3)
    torch.manual_seed(1)
    expected = plain.step(window[0].parts(2))
    split = make_trainer(dropout=0.3, objective=limited(plain.objective, 30, "backward"))
    torch.manual_seed(1)
    assert split.step(window).loss == expected.loss
    assert all(torch.equal(weight, weights(plain)[name]) for name, weight in weights(split).items())


def test_it_is_said_once(make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(objective=limited(make_trainer().objective, 3, "forward"), steps=11)
    with caplog.at_level(logging.WARNING, "regard"):
        trainer.train()
    (record,) = [record for record in caplog.records if "memory" in record.getMessage()]
    assert re.fullmatch(r"step \d did not fit into the memory of cpu and was computed in parts", record.getMessage())
    assert trainer.progress.split > 5


def test_a_single_row_that_does_not_fit_ends_the_run(make_trainer: MakeTrainer) -> None:
    inner = make_trainer().objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        if 41 in batch.indices:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(model, batch)

    with pytest.raises(
        JobError, match=r"^example 42 of the training data alone, of \d+ tokens, does not fit .*max_length"
    ):
        make_trainer(objective=objective).train()


def test_memory_that_ends_elsewhere_is_one_sentence_too(make_trainer: MakeTrainer) -> None:
    class Greedy(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(JobError, match=r"^the memory of cpu is used up; take a smaller model"):
        make_trainer([Greedy()]).train()


def test_work_begins_anew_after_each_failure(batches: Batches) -> None:
    """Nothing of work that failed is left, nor anything of what was done before it."""
    done: list[int] = []

    def work(batch: Batch) -> int:
        done.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return len(batch)

    window = [batch for batch in batches.epoch(0) if len(batch) < 8][:3]
    parts, results = in_parts_that_fit(window, done.clear, work)
    assert done == results == [len(part) for part in parts]
    assert sum(results) == sum(map(len, window))
    assert max(results) <= 2 < max(map(len, window))
    assert len(parts) <= sum(math.ceil(len(batch) / 1) for batch in window)
    assert [i for part in parts for i in part.indices] == [i for batch in window for i in batch.indices]
