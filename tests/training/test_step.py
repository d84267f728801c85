"""One update: what is summed, what it is divided by, and when it does not happen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.errors import JobError, UserError
from regard.model.precision import products_are_half
from regard.model.transformer import EncoderDecoder
from regard.training import passes
from regard.training.loss import LossSums, translation_loss
from regard.training.schedules import learning_rate
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


class Reports(Listening):
    """Keeps all reports, and the order in which it was called."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.calls: list[str] = []

    def on_start(self, trainer: Trainer) -> None:
        self.calls.append("start")

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.reports.append(report)
        self.calls.append("step")

    def on_end(self, trainer: Trainer) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.calls.append("close")


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_batches_are_one_big_batch(
    make_trainer: MakeTrainer, dataset: PairDataset, batches: Batches, smoothing: float
) -> None:
    def objective(model: nn.Module, batch: Batch) -> LossSums:
        assert isinstance(model, EncoderDecoder)
        return translation_loss(model, batch, smoothing)

    whole = Batches(dataset, BatchSettings(tokens=10_000))
    parts = batches.count(0)
    big = make_trainer(data=whole, objective=objective)
    small = make_trainer(data=batches, objective=objective, accumulate=parts)
    (window,) = ([batch] for batch in whole.epoch(0))
    assert len(window[0].indices) == len(dataset)
    one, other = big.step(window), small.step(list(batches.epoch(0)))
    assert (one.target_tokens, one.source_tokens) == (other.target_tokens, other.source_tokens)
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.nll == pytest.approx(other.nll, rel=1e-6)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)
    found = gradients(small)
    for name, gradient in gradients(big).items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


def test_the_loss_is_divided_once_by_the_tokens_of_the_whole_step(make_trainer: MakeTrainer, batches: Batches) -> None:
    """Not a mean of means: a short batch counts for its few tokens only."""
    window = sorted(batches.epoch(0), key=lambda batch: batch.target_tokens)
    window = [window[0], window[-1]]
    assert window[0].target_tokens * 1.2 < window[1].target_tokens
    trainer = make_trainer()
    sums = [trainer.objective(trainer.model, batch) for batch in window]
    tokens = sum(batch.target_tokens for batch in window)
    report = trainer.step(window)
    assert report.target_tokens == tokens
    assert report.loss == pytest.approx(sum(each.loss.item() for each in sums) / tokens, rel=1e-6)
    assert report.nll == pytest.approx(sum(each.nll.item() for each in sums) / tokens, rel=1e-6)
    mean_of_means = sum(each.loss.item() / each.tokens for each in sums) / 2
    assert report.loss != pytest.approx(mean_of_means, rel=1e-6)


def test_gradients_do_not_linger(make_trainer: MakeTrainer, batches: Batches) -> None:
    trainer = make_trainer()
    window = [next(iter(batches.epoch(0)))]
    trainer.step(window)
    trainer.step(window)
    expected = torch.autograd.grad(
        trainer.objective(trainer.model, window[0]).loss / window[0].target_tokens, list(trainer.model.parameters())
    )
    trainer.step(window)
    for one, other in zip(gradients(trainer).values(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_clipping(make_trainer: MakeTrainer, batches: Batches) -> None:
    """The reported norm is that before clipping; gradients end at the limit, or untouched below it."""
    window = [next(iter(batches.epoch(0)))]
    free, clipped, wide = make_trainer(), make_trainer(clip_norm=0.01), make_trainer(clip_norm=1e6)
    norms = [trainer.step(window).gradient_norm for trainer in (free, clipped, wide)]
    after = [
        math.sqrt(sum(gradient.square().sum().item() for gradient in gradients(trainer).values()))
        for trainer in (free, clipped, wide)
    ]
    assert norms == pytest.approx([after[0]] * 3, rel=1e-5)
    assert after == pytest.approx([norms[0], 0.01, norms[0]], rel=1e-3)


def test_each_step_uses_the_rate_of_the_schedule_from_step_1_on(make_trainer: MakeTrainer) -> None:
    reports = Reports()
    trainer = make_trainer([reports], steps=12)
    used: list[float] = []
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    trainer.train()
    assert used == [learning_rate(trainer.settings.schedule, step, 12, 16) for step in range(1, 13)]
    assert [report.rate for report in reports.reports] == used
    assert [report.step for report in reports.reports] == list(range(1, 13))


def test_every_pair_is_used_once_an_epoch_also_under_accumulation(
    make_trainer: MakeTrainer, batches: Batches, dataset: PairDataset
) -> None:
    """A window reaches over the end of an epoch; no batch is left out or used twice."""
    used: list[tuple[int, ...]] = []
    inner = make_trainer().objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        used.append(batch.indices)
        return inner(model, batch)

    trainer = make_trainer(objective=objective, accumulate=3, steps=10)
    trainer.train()
    expected = [batch.indices for epoch in range(9) for batch in batches.epoch(epoch)]
    assert used == expected[:30]
    first_epoch = sorted(index for indices in used[: batches.count(0)] for index in indices)
    assert first_epoch == list(range(len(dataset)))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_position_is_that_of_all_ranks(make_trainer: MakeTrainer, dataset: PairDataset, ranks: int) -> None:
    """10 batches an epoch: all ranks stand at the same place after each update, and together use each batch once."""
    used: dict[int, list[tuple[int, ...]]] = {}
    places: list[list[tuple[int, int]]] = []
    for rank in range(ranks):
        shared = Batches(dataset, BatchSettings(tokens=40), seed=3, rank=rank, ranks=ranks)
        trainer = make_trainer(data=shared, accumulate=2)
        stations = []
        for _, window in zip(range(12), trainer._windows(), strict=False):
            stations.append((trainer.progress.epoch, trainer.progress.batch))
            used.setdefault(len(stations), []).extend(batch.indices for batch in window)
        places.append(stations)
    assert places == [places[0]] * ranks
    rounds = [(epoch, min(first + ranks, 10)) for epoch in range(12) for first in range(0, 10, ranks)]
    assert places[0] == rounds[1:24:2]
    whole = Batches(dataset, BatchSettings(tokens=40), seed=3)
    last_epoch, last = places[0][-1]
    expected = [batch.indices for epoch in range(last_epoch) for batch in whole.epoch(epoch)]
    expected += [batch.indices for batch in whole.epoch(last_epoch)][:last]
    assert sorted(index for step in used.values() for index in step) == sorted(expected)


def test_another_number_of_ranks_goes_on_at_the_same_place(make_trainer: MakeTrainer, dataset: PairDataset) -> None:
    def trainer(rank: int, ranks: int) -> Trainer:
        return make_trainer(data=Batches(dataset, BatchSettings(tokens=40), seed=3, rank=rank, ranks=ranks))

    first = trainer(1, 2)
    for _ in zip(range(2), first._windows(), strict=False):
        pass
    assert first.progress.batch == 4
    alone = trainer(0, 1)
    alone.progress = first.progress
    (batch,) = next(alone._windows())
    assert batch.indices == list(Batches(dataset, BatchSettings(tokens=40), seed=3).epoch(0))[4].indices


def test_progress_counts_what_was_used(make_trainer: MakeTrainer, batches: Batches) -> None:
    trainer = make_trainer(steps=batches.count(0) + 2)
    trainer.train()
    both = [*batches.epoch(0), *list(batches.epoch(1))[:2]]
    progress = trainer.progress
    assert (progress.step, progress.epoch, progress.batch) == (len(both), 1, 2)
    assert progress.target_tokens == sum(batch.target_tokens for batch in both)
    assert progress.source_tokens == sum(batch.source_tokens for batch in both)
    assert progress.seconds > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_no_number_ends_the_run_with_the_weights_untouched(
    make_trainer: MakeTrainer, bad: float, where: str
) -> None:
    inner, steps = make_trainer().objective, 0

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        nonlocal steps
        steps += 1
        sums = inner(model, batch)
        if steps < 4:
            return sums
        if where == "loss":
            return LossSums(sums.loss * bad, sums.nll, sums.tokens)
        loss = sums.loss.clone()
        loss.register_hook(lambda gradient: gradient * bad)
        return LossSums(loss, sums.nll, sums.tokens)

    class Last(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            self.weights = weights(trainer)
            self.moments = {key: value.clone() for key, value in trainer.checkpoint().optimizer.items()}

    last, reports = Last(), Reports()
    trainer = make_trainer([last, reports], objective=objective)
    with pytest.raises(JobError, match=r"^step 4: the loss is .*the weights were left as they were"):
        trainer.train()
    assert trainer.progress.step == 3
    assert reports.calls == ["start", "step", "step", "step", "close"]
    for name, tensor in weights(trainer).items():
        assert torch.equal(tensor, last.weights[name])
    for name, tensor in trainer.checkpoint().optimizer.items():
        assert name.startswith("random.") or torch.equal(tensor, last.moments[name])


def test_listeners_are_told_of_beginning_steps_and_end(make_trainer: MakeTrainer) -> None:
    reports = Reports()
    make_trainer([reports], steps=2).train()
    assert reports.calls == ["start", "step", "step", "end", "close"]


def test_a_run_that_is_stopped_ends_after_its_present_step(make_trainer: MakeTrainer) -> None:
    class Stopper(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 3:
                trainer.stop("enough")
                trainer.stop("a later reason")

    reports = Reports()
    trainer = make_trainer([Stopper(), reports])
    trainer.train()
    assert trainer.stop_reason == "enough"
    assert reports.calls == ["start", "step", "step", "step", "end", "close"]


def test_listeners_are_closed_after_an_error_of_one_of_them(make_trainer: MakeTrainer) -> None:
    class Faulty(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            raise ZeroDivisionError

    reports = Reports()
    with pytest.raises(ZeroDivisionError):
        make_trainer([reports, Faulty()]).train()
    assert reports.calls == ["start", "step", "close"]


def test_no_batches_are_an_error_and_not_an_endless_loop(make_trainer: MakeTrainer) -> None:
    class Nothing:
        def count(self, epoch: int) -> int:
            return 0

        def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
            return iter(())

    with pytest.raises(UserError, match="nothing to train on"):
        make_trainer(data=Nothing()).train()


def test_bfloat16_computes_in_half_precision_and_keeps_weights_and_moments_in_float32(
    make_trainer: MakeTrainer, batches: Batches
) -> None:
    exact, mixed = make_trainer(), make_trainer(precision="bfloat16")
    half: set[bool] = set()
    for model in (exact.model, mixed.model):
        inside: Any = model
        inside.encoder[0].feed_forward.expand.register_forward_hook(lambda *a: half.add(products_are_half()))
    window = list(batches.epoch(0))
    one = exact.step(window)
    assert half == {False}
    half.clear()
    other = mixed.step(window)
    assert half == {True}
    assert other.loss == pytest.approx(one.loss, rel=0.01)
    assert other.loss != one.loss
    state = mixed.checkpoint()
    kinds = {tensor.dtype for name, tensor in (state.model | state.optimizer).items() if "random" not in name}
    assert kinds == {torch.float32}


@pytest.mark.parametrize("faster", [False, True])
def test_a_cpu_that_multiplies_bfloat16_faster_does_so(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    monkeypatch.setattr(passes, "faster_in_half", lambda: faster)
    chosen = "bfloat16" if faster else "float32"
    trainer = make_trainer(precision="auto")
    assert trainer.passes.numbers == chosen
    with trainer.precision():
        assert products_are_half() == faster
    assert make_trainer(precision="float32").passes.numbers == "float32"
    assert passes.fastest_precision(torch.device("cuda")) == "float32"


def test_a_small_model_learns_what_is_asked_of_it(make_trainer: MakeTrainer) -> None:
    reports = Reports()
    make_trainer([reports], steps=60).train()
    assert reports.reports[-1].nll < reports.reports[0].nll - 2
