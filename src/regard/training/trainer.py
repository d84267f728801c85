"""The training loop: batches in, better weights out. What watches it (validation, checkpoints, logs) is a listener."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.feed import AnyBatch, Feed
from regard.errors import JobError, UserError
from regard.settings import Settings
from regard.training.averaging import MovingAverage
from regard.training.checkpoint import Checkpoint, restore, snapshot
from regard.training.guard import DivergenceError, GuardSettings, LossWatch, OnDivergence, Recovery
from regard.training.guided import GuidedSettings
from regard.training.optimizers import OPTIMIZERS, OptimizerSettings
from regard.training.passes import Objective, Passes, Precision, fastest_precision
from regard.training.replicas import replicas
from regard.training.schedules import ScheduleSettings, learning_rate

log = logging.getLogger("regard")


class TrainingSettings(Settings):
    """How a model learns."""

    steps: int = Field(100_000, gt=0, lt=2**31)
    """Updates of the weights."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Share of each target distribution spread evenly over all classes (section 5.4)."""
    r_drop: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Weight (alpha) of what two readings of each batch with other units dropped disagree about (R-Drop, Wu et al.
    2021): 5 in the publication's translation, 0: each batch is read once. Needs dropout, and twice the time."""
    alignment: GuidedSettings | None = None
    """A head of a translation model learns which words stand for each other (Garg et al. 2019), from alignments that
    are learned from the text itself, or given by data.train.alignments; unset: none does."""
    schedule: ScheduleSettings = ScheduleSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of a moving average of the weights, such as 0.999: an average over the last 1000 steps or so. It is what is
    validated, and the best of it a candidate for the final model. Unset: there is none."""
    accumulate: int = Field(1, gt=0)
    """Batches whose gradients are summed for one update."""
    clip_norm: float | None = Field(None, gt=0)
    """Gradients of a larger norm are scaled down to it. The paper does not clip."""
    precision: Literal["auto"] | Precision = "auto"
    """bfloat16, float16: matrix products in half precision, weights and optimizer in float32. float16 holds a smaller
    range: the loss is scaled up for the backward pass, by as much as the gradients allow. auto: bfloat16 on a CPU that
    is faster with it (with AVX512_BF16, the products take half the time), else float32."""
    on_divergence: OnDivergence = "stop"
    """What follows when training diverges. lower-rate: go back to the last good checkpoint and on from there at half
    the rate; full-precision: go back and compute in float32, and at half the rate if that does not help."""
    guard: GuardSettings = GuardSettings()
    seed: int = Field(1, ge=0, lt=2**63)
    """Decides initial weights, order of batches and dropout."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1, ...; unset: a GPU if there is one."""
    threads: int | None = Field(None, gt=0, le=1024)
    """CPU threads; unset: torch's choice."""
    replicas: int | None = Field(None, gt=0, le=64)
    """On a CPU, parts of each batch that are worked on at the same time, each by its share of the threads; unset: as
    many as threads, up to four. With one thread for each a resumed run repeats the unbroken one bit for bit."""


@dataclass
class Progress:
    """Where a run stands: what has been used of the data, to the batch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are used, by all ranks together."""
    source_tokens: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all sittings."""
    skipped: int = 0
    """Steps that left the weights as they were, as float16 could not hold the gradients."""
    split: int = 0
    """Parts that steps were computed in beyond their batches, which the device's memory could not hold."""


@dataclass(frozen=True)
class StepReport:
    """What one update did. Losses are in nats per target token of the whole step."""

    step: int
    loss: float
    nll: float
    gradient_norm: float
    rate: float
    source_tokens: int
    target_tokens: int
    seconds: float
    skipped: bool = False
    """The weights were left as they were: float16 could not hold the gradients, whose norm is not finite."""
    split: int = 0
    """Parts beyond the batches of the window, which did not fit into memory."""


class Listener(Protocol):
    """Something beside the loop; `Listening` has a default for each method.

    `on_end` is called when the run ends by itself or by `Trainer.stop`; `close` always, also after an error.
    """

    def on_start(self, trainer: Trainer) -> None: ...
    def on_step(self, trainer: Trainer, report: StepReport) -> None: ...
    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None: ...
    def on_end(self, trainer: Trainer) -> None: ...
    def close(self) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


class Listening:
    """A listener that does nothing; real ones override what they need."""

    def on_start(self, trainer: Trainer) -> None: ...
    def on_step(self, trainer: Trainer, report: StepReport) -> None: ...
    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None: ...
    def on_end(self, trainer: Trainer) -> None: ...
    def close(self) -> None: ...
    def load_state(self, state: dict[str, Any]) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}


class Trainer:
    """Carries out the steps of a run.

    `objective(model, batch)` gives the sums of loss over a batch of `batches`. Listeners are called in their order
    after each step.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Feed[AnyBatch],
        settings: TrainingSettings,
        d_model: int,
        listeners: Sequence[Listener] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model.to(device)
        self.objective = objective
        self.batches = batches
        self.settings = settings
        self.d_model = d_model
        self.listeners = list(listeners)
        self.device = torch.device(device)
        self.optimizer = OPTIMIZERS[settings.optimizer.kind](model, settings.optimizer)
        self.average = None if settings.ema is None else MovingAverage(self.model, settings.ema)
        self.replicas = replicas(self.model, settings.replicas) if self.device.type == "cpu" else None
        self.progress = Progress()
        self.watch = LossWatch(settings.guard)
        self.recover(Recovery())
        self.stop_reason: str | None = None

    def train(self) -> None:
        """Step until the last step, or until somebody calls `stop`."""
        try:
            for listener in self.listeners:
                listener.on_start(self)
            windows = self._windows()
            while self.progress.step < self.settings.steps and self.stop_reason is None:
                report = self.step(next(windows))
                for listener in self.listeners:
                    listener.on_step(self, report)
            for listener in self.listeners:
                listener.on_end(self)
        except torch.OutOfMemoryError:  # of the optimizer or of validation: a step divides its own work
            raise JobError(
                f"the memory of {self.device} is used up; take a smaller model or smaller batches, or train on the cpu"
            ) from None
        finally:
            for listener in self.listeners:
                listener.close()

    def step(self, window: Sequence[AnyBatch]) -> StepReport:
        """One update from all batches of `window`: the sum of token losses over the number of target tokens of all."""
        begin = time.perf_counter()
        step = self.progress.step + 1
        rate = self.recovery.rate * learning_rate(self.settings.schedule, step, self.settings.steps, self.d_model)
        tokens = max(sum(batch.target_tokens for batch in window), 1)
        self.model.train()
        sums = self.passes.gradients(window, tokens)
        norm = self._clip()
        skipped = not bool(torch.isfinite(norm)) and self.passes.lower_scale()
        if not (torch.isfinite(sums.loss) and (torch.isfinite(norm) or skipped)):
            place = self.passes.first_not_finite(sums)
            raise DivergenceError.not_finite(step, float(sums.loss) / tokens, float(norm), place)
        self.watch.see(step, float(sums.nll) / tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if not skipped:
            self.passes.update(self.optimizer)
        if self.average is not None:
            self.average.update(step)
        report = StepReport(
            step=step,
            loss=float(sums.loss) / tokens,
            nll=float(sums.nll) / tokens,
            gradient_norm=float(norm),
            rate=rate,
            source_tokens=sum(batch.source_tokens for batch in window),
            target_tokens=tokens,
            seconds=time.perf_counter() - begin,
            skipped=skipped,
            split=len(sums.parts) - len(window),
        )
        self._count(report)
        return report

    def announce(self, scores: dict[str, float]) -> None:
        """Tell all listeners the scores of a validation."""
        for listener in self.listeners:
            listener.on_validation(self, scores)

    def stop(self, reason: str) -> None:
        """End the run after the present step."""
        self.stop_reason = self.stop_reason or reason

    def checkpoint(self) -> Checkpoint:
        """Everything that is needed to go on from here."""
        state = {
            "progress": asdict(self.progress),
            "optimizer": self.settings.optimizer.kind,
            "listeners": [listener.state() for listener in self.listeners],
            "recovery": asdict(self.recovery),
            "watch": self.watch.state(),
            "scaler": self.passes.scaler.state_dict(),
        }
        averages = {} if self.average is None else self.average.state()
        return snapshot(self.model, self.optimizer, state, averages)

    def resume(self, checkpoint: Checkpoint, origin: str) -> None:
        """Go on from a checkpoint of a run with the same model, optimizer, data and listeners.

        Raises:
            UserError: the weights or the optimizer are others.
        """
        kind = checkpoint.state.get("optimizer", "adamw")  # those of older releases have no other
        if kind != self.settings.optimizer.kind:
            raise UserError(
                f"{origin}: learns by {kind}; training.optimizer.kind cannot change in a run that goes on (a new one "
                "can begin with its model: initial)"
            )
        restore(checkpoint, self.model, self.optimizer, origin)
        if self.average is not None:
            self.average.load_state(checkpoint.averages, origin)
        self.progress = Progress(**checkpoint.state["progress"])
        for listener, state in zip(self.listeners, checkpoint.state["listeners"], strict=True):
            listener.load_state(state)
        # Checkpoints of older releases have none of these.
        self.recover(Recovery(**checkpoint.state.get("recovery", {})))
        if "watch" in checkpoint.state:
            self.watch.load_state(checkpoint.state["watch"])
        if checkpoint.state.get("scaler") and self.passes.scaler.is_enabled():
            self.passes.scaler.load_state_dict(checkpoint.state["scaler"])

    def recover(self, recovery: Recovery) -> None:
        """Train from here on as a run that has gone back does."""
        self.recovery = recovery
        wanted = self.settings.precision
        precision = fastest_precision(self.device) if wanted == "auto" else wanted
        if recovery.full_precision:
            precision = "float32"
        self.passes = Passes(self.model, self.objective, self.device, precision, self.replicas)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has the moving average of its weights, where there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the model computes."""
        return self.passes.precision()

    def _windows(self) -> Iterator[list[AnyBatch]]:
        """The batches of each update from where `progress` stands; a window may reach over the end of an epoch.

        All ranks make the same rounds, of one batch each; in the last one of an epoch some may have none left.
        """
        window: list[AnyBatch] = []
        rounds = 0
        epoch, start = self.progress.epoch, self.progress.batch
        if not self.batches.count(epoch):
            raise UserError("there is nothing to train on; look at what was left out of the training data, and why")
        while True:
            own = self.batches.epoch(epoch, start)
            count = self.batches.count(epoch)
            for first in range(start, count, self.batches.ranks):
                window += itertools.islice(own, 1)
                rounds += 1
                if rounds % self.settings.accumulate == 0:
                    # Counted as used when handed out: a checkpoint is only ever taken between two updates.
                    self.progress.epoch, self.progress.batch = epoch, min(first + self.batches.ranks, count)
                    yield window
                    window = []
            epoch, start = epoch + 1, 0

    def _clip(self) -> Tensor:
        """The norm of all gradients; those of a norm above `clip_norm` are scaled down to it."""
        gradients = self.passes.unscale(self.optimizer)
        if self.settings.clip_norm is not None:
            return nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        return nn.utils.get_total_norm(gradients)

    def _count(self, report: StepReport) -> None:
        self.progress.step = report.step
        self.progress.source_tokens += report.source_tokens
        self.progress.target_tokens += report.target_tokens
        self.progress.seconds += report.seconds
        self.progress.skipped += report.skipped
        if report.split and not self.progress.split:
            log.warning("step %d did not fit into the memory of %s and was computed in parts", report.step, self.device)
        self.progress.split += report.split
