"""What a run leaves to read: `metrics.jsonl`, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from regard.errors import JobError
from regard.text.lines import read_lines, write_lines
from regard.training.loss import perplexity
from regard.training.trainer import Listening, StepReport, Trainer


class Averages:
    """The reports since the last time somebody asked, as one record."""

    def __init__(self) -> None:
        self._reports: list[StepReport] = []

    def add(self, report: StepReport) -> None:
        self._reports.append(report)

    def take(self) -> dict[str, float]:
        """Losses weighted by tokens, tokens a second; empties the store."""
        reports, self._reports = self._reports, []
        tokens = sum(report.target_tokens for report in reports)
        seconds = sum(report.seconds for report in reports)
        nll = sum(report.nll * report.target_tokens for report in reports)
        return {
            "loss": sum(report.loss * report.target_tokens for report in reports) / tokens,
            "perplexity": perplexity(nll, tokens),
            "gradient_norm": sum(report.gradient_norm for report in reports) / len(reports),
            "rate": reports[-1].rate,
            "target_tokens_per_second": tokens / max(seconds, 1e-9),
        }


class MetricsLog(Listening):
    """Writes training averages every so many steps and the scores of each validation."""

    def __init__(self, directory: Path, every: int) -> None:
        self.path = directory / "metrics.jsonl"
        self.every = every
        self._averages = Averages()
        self._tensorboard: SummaryWriter | None = None

    def on_start(self, trainer: Trainer) -> None:
        """A resumed run goes on after its own step: what an interrupted one wrote beyond it is taken back."""
        step = trainer.progress.step
        if self.path.exists():
            write_lines(self.path, [line for line in read_lines(self.path, bad="replace") if _step(line) <= step])
        folder = self.path.parent / "tensorboard"
        self._tensorboard = SummaryWriter(str(folder), purge_step=step + 1)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self._averages.add(report)
        if report.step % self.every == 0 or report.step == trainer.settings.steps:
            self._write(trainer, "training", self._averages.take())

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self._write(trainer, "validation", scores)

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _write(self, trainer: Trainer, kind: str, values: dict[str, float]) -> None:
        progress = trainer.progress
        record = {"kind": kind, "step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
        # JSON has no word for a value that is no number.
        numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps(record | numbers) + "\n")
        except OSError as error:
            raise JobError(f"{self.path}: cannot be written: {error.strerror}; make room and train again") from None
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{kind}/{name}", value, progress.step)


def _step(line: str) -> float:
    """The step of a line; what is no record, such as a line that a kill cut short, belongs to no step."""
    try:
        record: Any = json.loads(line)
        return float(record["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
