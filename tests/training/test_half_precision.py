"""Training in half precision: float16 with a scaled loss, whose overflows are no errors until nothing helps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.data.batches import Batch, Batches
from regard.model.transformer import EncoderDecoder
from regard.training.checkpoint import load_latest
from regard.training.guard import DivergenceError
from regard.training.keeping import CheckpointKeeper, CheckpointSettings
from regard.training.logs import Averages, MetricsLog
from regard.training.loss import LossSums
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


def state(trainer: Trainer) -> dict[str, Tensor]:
    found = trainer.checkpoint()
    return {name: tensor.clone() for name, tensor in (found.model | found.optimizer).items()}


def overflowing(
    inner: Callable[[nn.Module, Batch], LossSums], trainer: Callable[[], Trainer], above: float
) -> Callable[..., LossSums]:
    """An objective whose gradients are beyond float16 as long as the scale is above this."""

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        if model.training and trainer().passes.scaler.get_scale() > above:
            loss = sums.loss.clone()
            loss.register_hook(lambda gradient: gradient * math.inf)
            return LossSums(loss, sums.nll, sums.tokens)
        return sums

    return objective


def make_overflowing(make_trainer: MakeTrainer, above: float, **settings: Any) -> Trainer:
    trainer: Trainer = make_trainer(
        objective=overflowing(make_trainer().objective, lambda: trainer, above), precision="float16", **settings
    )
    return trainer


def test_float16_computes_in_half_precision_what_float32_does(make_trainer: MakeTrainer, batches: Batches) -> None:
    exact, half = make_trainer(), make_trainer(precision="float16")
    dtypes: set[torch.dtype] = set()
    assert isinstance(half.model, EncoderDecoder)
    expand = half.model.encoder.get_submodule("0.feed_forward.expand")
    expand.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    window = list(batches.epoch(0))
    one, other = exact.step(window), half.step(window)
    assert dtypes == {torch.float16}
    assert other.loss == pytest.approx(one.loss, rel=1e-3)
    assert other.loss != one.loss
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-2), "what was scaled up is scaled down again"
    assert not other.skipped
    kinds = {tensor.dtype for name, tensor in state(half).items() if "random" not in name}
    assert kinds == {torch.float32}


def test_clipping_sees_gradients_without_their_scale(make_trainer: MakeTrainer, batches: Batches) -> None:
    window = list(batches.epoch(0))
    trainer = make_trainer(precision="float16", clip_norm=0.01)
    report = trainer.step(window)
    assert 0.1 < report.gradient_norm < 10
    gradients = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
    assert float(torch.nn.utils.get_total_norm(gradients)) == pytest.approx(0.01, rel=1e-3)


def test_an_overflow_skips_the_step_and_halves_the_scale(make_trainer: MakeTrainer, batches: Batches) -> None:
    trainer = make_overflowing(make_trainer, above=2.0**14)
    window = [next(iter(batches.epoch(0)))]
    before = state(trainer)
    reports = [trainer.step(window) for _ in range(2)]
    assert [(report.step, report.skipped, math.isfinite(report.gradient_norm)) for report in reports] == [
        (1, True, False),
        (2, True, False),
    ]
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(trainer).items() if "random" not in name)
    assert trainer.passes.scaler.get_scale() == 2.0**14
    third = trainer.step(window)
    assert (third.step, third.skipped) == (3, False)
    assert trainer.progress.skipped == 2
    assert any(not torch.equal(tensor, before[name]) for name, tensor in state(trainer).items() if name in before)
    averages = Averages()
    for report in (*reports, third):
        averages.add(report)
    assert averages.take()["gradient_norm"] == third.gradient_norm


def test_skipped_steps_are_counted_in_the_metrics(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_overflowing(make_trainer, above=2.0**14, listeners=[MetricsLog(tmp_path, every=5)]).train()
    make_trainer([MetricsLog(tmp_path / "plain", every=5)], precision="float16").train()
    for folder, counts in ((tmp_path, [2, 2, 2, 2]), (tmp_path / "plain", [None] * 4)):
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line).get("skipped_steps") for line in lines] == counts
        assert all(json.loads(line)["gradient_norm"] > 0 for line in lines)


def test_replicas_share_the_scale(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, batches: Batches) -> None:
    monkeypatch.setattr("regard.training.replicas.FEWEST_TOKENS", 4)
    alone, together = make_trainer(precision="float16"), make_trainer(precision="float16", replicas=2)
    window = list(batches.epoch(0))
    one, other = alone.step(window), together.step(window)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-2)
    assert other.loss == pytest.approx(one.loss, rel=1e-3)


def test_an_overflow_that_no_scale_helps_is_a_divergence(make_trainer: MakeTrainer) -> None:
    trainer = make_overflowing(make_trainer, above=0.0)
    before = state(trainer)
    with pytest.raises(
        DivergenceError, match=r"^step 17: .*the gradient's norm nan; the first .* is the gradient"
    ) as caught:
        trainer.train()
    assert caught.value.since == 17, "skipped steps have harmed nothing"
    assert trainer.progress.skipped == 16
    assert trainer.passes.scaler.get_scale() == 0.5
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(trainer).items() if "random" not in name)


def test_a_loss_that_is_no_number_is_not_mended_by_a_scale(make_trainer: MakeTrainer) -> None:
    inner = make_trainer().objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        return LossSums(sums.loss * math.nan, sums.nll, sums.tokens)

    with pytest.raises(DivergenceError, match=r"^step 1: the loss is nan .* is the loss \(nan\)"):
        make_trainer(objective=objective, precision="float16").train()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_ends_in_finite_numbers_and_has_learned(make_trainer: MakeTrainer, precision: str) -> None:
    class Losses(Listening):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            self.losses.append(report.nll)

    losses = Losses()
    trainer = make_trainer([losses], precision=precision, steps=60, dropout=0.1)
    trainer.train()
    assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in state(trainer).values())
    assert losses.losses[-1] < losses.losses[0] - 1.5
    assert trainer.progress.skipped <= 2


@pytest.mark.parametrize("pause", [1, 2, 7, 13])
def test_a_resumed_run_has_the_scale_too(make_trainer: MakeTrainer, tmp_path: Path, pause: int) -> None:
    """Bit for bit, with overflows before and after the pause."""

    def sit(folder: Path, until: int | None) -> Trainer:
        class Pause(Listening):
            def on_step(self, trainer: Trainer, report: StepReport) -> None:
                if report.step == until:
                    trainer.stop("pause")
                if report.step == 10:
                    trainer.passes.scaler.update(2.0**20)

        listeners = [Pause(), CheckpointKeeper(folder, CheckpointSettings(), "loss")]
        trainer = make_overflowing(make_trainer, 2.0**14, listeners=listeners, dropout=0.3)
        torch.manual_seed(1)
        found = load_latest(folder)
        if found is not None:
            trainer.resume(found[1], str(found[0]))
        trainer.train()
        return trainer

    straight = sit(tmp_path / "straight", None)
    sit(tmp_path / "parts", pause)
    resumed = sit(tmp_path / "parts", None)
    assert straight.progress.skipped == resumed.progress.skipped == 8
    assert straight.passes.scaler.state_dict() == resumed.passes.scaler.state_dict()
    expected = state(straight)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state(resumed).items())
