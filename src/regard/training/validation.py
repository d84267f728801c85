"""Validation: how good the model is on text that it does not learn from, and what follows from it.

Listeners of the trainer: `Validation` computes scores, `EarlyStopping` ends a run that no longer improves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from regard.data.feed import AnyBatch, Feed
from regard.settings import Settings
from regard.training.loss import perplexity
from regard.training.passes import Objective
from regard.training.trainer import Listening, StepReport, Trainer

Metric = Literal["loss", "bleu", "chrf", "exact", "edit", "accuracy", "macro_f1"]
DIRECTIONS: dict[Metric, Literal[-1, 1]] = {
    "loss": -1,
    "bleu": 1,
    "chrf": 1,
    "exact": 1,
    "edit": -1,
    "accuracy": 1,
    "macro_f1": 1,
}
"""1: the higher the better; -1: the lower."""


class ValidationSettings(Settings):
    """When to validate, and by what."""

    every: int = Field(1000, gt=0)
    """Steps between validations; there is always one at the last step."""
    metric: Metric = "bleu"
    """Decides which checkpoint is best and when to stop: the loss; BLEU, chrF, exact matches or edit rate of real
    translations; accuracy or macro F1 of classification."""
    sentences: int | None = Field(None, ge=0)
    """How many lines are translated for BLEU and chrF; unset: all. The loss is always that of all."""
    samples: int = Field(3, ge=0)
    """Translations shown on screen at each validation."""
    patience: int | None = Field(None, gt=0)
    """Stop after so many validations in a row without gain; unset: never."""


def better(metric: Metric, score: float, than: float | None) -> bool:
    """Whether `score` is an improvement. NaN and infinity never are; any number is better than nothing."""
    if not math.isfinite(score):
        return False
    return than is None or DIRECTIONS[metric] * (score - than) > 0


@torch.no_grad()
def total_nll(
    objective: Objective,
    model: nn.Module,
    batches: Feed[AnyBatch],
    device: torch.device,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[float, int]:
    """Negative log-likelihood over all batches, and of how many targets."""
    nll, tokens = 0.0, 0
    for batch in batches.in_order():
        with precision():
            sums = objective(model, batch.to(device))
        nll += float(sums.nll)
        tokens += sums.tokens
    return nll, tokens


def validation_loss(trainer: Trainer, batches: Feed[AnyBatch]) -> dict[str, float]:
    """Negative log-likelihood a token, and perplexity, over all batches; each token that is a target counts the same.

    NaN when there is no batch: nothing was measured.
    """
    nll, tokens = total_nll(trainer.objective, trainer.model, batches, trainer.device, trainer.precision)
    return {"loss": nll / tokens if tokens else math.nan, "perplexity": perplexity(nll, tokens)}


class Validation(Listening):
    """Computes the scores every so many steps and announces them: of the moving average of the weights, where there is
    one.

    `decode(model)`, when given, returns further scores, such as `{"bleu": 31.2, "chrf": 55.0}` of translations.
    """

    def __init__(
        self,
        settings: ValidationSettings,
        batches: Feed[AnyBatch],
        decode: Callable[[nn.Module], dict[str, float]] | None = None,
    ) -> None:
        self.settings = settings
        self.batches = batches
        self.decode = decode

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step % self.settings.every == 0 or report.step == trainer.settings.steps:
            with trainer.averaged():
                scores = self.scores(trainer)
            trainer.announce(scores)

    def scores(self, trainer: Trainer) -> dict[str, float]:
        """All scores of the model as it is; it is back in training mode afterwards, also when this fails."""
        trainer.model.eval()
        try:
            scores = validation_loss(trainer, self.batches)
            return scores | (self.decode(trainer.model) if self.decode else {})
        finally:
            trainer.model.train()


class EarlyStopping(Listening):
    """Ends the run after `patience` validations in a row without gain, whatever the learning-rate schedule."""

    def __init__(self, metric: Metric, patience: int | None) -> None:
        self.metric: Metric = metric
        self.patience = patience
        self.best: float | None = None
        self.without_gain = 0

    def on_start(self, trainer: Trainer) -> None:
        """A run that had ended like this, and was taken up again, ends again."""
        self._stop_if_due(trainer)

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        if better(self.metric, scores[self.metric], self.best):
            self.best, self.without_gain = scores[self.metric], 0
        else:
            self.without_gain += 1
        self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self.patience is not None and self.without_gain >= self.patience:
            best = "none" if self.best is None else f"{self.best:.2f}"
            trainer.stop(f"{self.metric} did not improve in {self.without_gain} validations (best {best})")

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "best": self.best, "without_gain": self.without_gain}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the best score, unless it is by another metric: those do not compare."""
        if state["metric"] == self.metric:
            self.best, self.without_gain = state["best"], state["without_gain"]
