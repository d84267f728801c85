"""Which checkpoints are written, and which are kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import Field

from regard.settings import Settings
from regard.training.checkpoint import checkpoints, prune, save_checkpoint
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import DIRECTIONS, Metric


class CheckpointSettings(Settings):
    """When to save, and how much to keep."""

    every: int | None = Field(None, gt=0)
    """Steps between checkpoints, besides those at validations and at the end; unset: only those."""
    keep_last: int = Field(5, gt=0)
    """The newest so many are kept; their average is a candidate for the final model (section 6.1)."""
    keep_best: int = Field(1, ge=0)
    """The best so many by the validation metric are kept."""


class CheckpointKeeper(Listening):
    """Saves at each validation, every so many steps and at the end. It must be the last listener, to save them all."""

    def __init__(self, directory: Path, settings: CheckpointSettings, metric: Metric) -> None:
        self.directory = directory
        self.settings = settings
        self.metric: Metric = metric
        self.scores: dict[int, float] = {}
        """Validation scores by step; one that is no number is not a score."""
        self._saved: int | None = None
        self._validated: int | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._saved = trainer.progress.step

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self._validated = trainer.progress.step
        if math.isfinite(scores[self.metric]):
            self.scores[self._validated] = scores[self.metric]

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        due = self.settings.every is not None and report.step % self.settings.every == 0
        if due or report.step == self._validated:
            self.save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        if trainer.progress.step != self._saved:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save the present state, then remove what need not be kept any more."""
        step = trainer.progress.step
        save_checkpoint(self.directory, step, trainer.checkpoint())
        self._saved = step
        self.prune(step)

    def prune(self, step: int) -> None:
        """Remove what need not be kept any more at this step, and what a killed save left."""
        # Newer ones than this were damaged, or the run would have gone on from them.
        written = [other for other in checkpoints(self.directory) if other <= step]
        prune(self.directory, [*written[-self.settings.keep_last :], *self.best()])

    def best(self) -> list[int]:
        """The steps of the best validations, best first; of equal ones the latest, which has learned more."""
        sign = DIRECTIONS[self.metric]
        return sorted(self.scores, key=lambda step: (-sign * self.scores[step], -step))[: self.settings.keep_best]

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "scores": {str(step): score for step, score in self.scores.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the scores, unless they are by another metric: those do not compare."""
        if state["metric"] == self.metric:
            self.scores = {int(step): score for step, score in state["scores"].items()}
