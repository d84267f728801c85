"""What a run leaves to read: `metrics.jsonl`, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import JobError
from regard.text.lines import read_lines, write_lines
from regard.training.events import EventFile
from regard.training.loss import perplexity
from regard.training.trainer import Listening, Progress, StepReport, Trainer


class Averages:
    """The reports since the last time somebody asked, as one record."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        """All that is kept of them, and part of a checkpoint."""

    def add(self, report: StepReport) -> None:
        tokens = report.target_tokens
        new = {
            "tokens": tokens,
            "seconds": report.seconds,
            "loss": report.loss * tokens,
            "nll": report.nll * tokens,
            "gradient_norm": report.gradient_norm if math.isfinite(report.gradient_norm) else 0.0,
            "norms": math.isfinite(report.gradient_norm),
        }
        self.sums = {name: self.sums.get(name, 0) + value for name, value in new.items()} | {"rate": report.rate}

    def take(self) -> dict[str, float]:
        """Losses weighted by tokens, tokens a second; empties the store."""
        sums, self.sums = self.sums, {}
        tokens = int(sums["tokens"])
        return {
            "loss": sums["loss"] / tokens,
            "perplexity": perplexity(sums["nll"], tokens),
            "gradient_norm": sums["gradient_norm"] / sums["norms"] if sums["norms"] else math.nan,
            "rate": sums["rate"],
            "target_tokens_per_second": tokens / max(sums["seconds"], 1e-9),
        }


class MetricsLog(Listening):
    """Writes training averages every so many steps and the scores of each validation."""

    def __init__(self, directory: Path, every: int) -> None:
        self.path = directory / "metrics.jsonl"
        self.folder = directory / "tensorboard"
        self.every = every
        self._averages = Averages()
        self._events: EventFile | None = None

    def on_start(self, trainer: Trainer) -> None:
        """A resumed run goes on after its own step: what an interrupted one wrote beyond it is taken back."""
        step = trainer.progress.step
        if self.path.exists():
            write_lines(self.path, [line for line in read_lines(self.path, bad="replace") if _step(line) <= step])
        with _on_a_full_disk(self.folder):
            self._events = EventFile(self.folder, first=step + 1)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self._averages.add(report)
        if report.step % self.every == 0 or report.step == trainer.settings.steps:
            self.write(trainer, "training", self._averages.take() | _incidents(trainer.progress))

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.write(trainer, "validation", scores)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def state(self) -> dict[str, Any]:
        return {"sums": self._averages.sums}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the averages too; checkpoints of older releases have none."""
        self._averages.sums = state.get("sums", {})

    def write(self, trainer: Trainer, kind: str, values: Mapping[str, float | str]) -> None:
        """A record of these values, at the step where the trainer is."""
        progress = trainer.progress
        record = {"kind": kind, "step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        # JSON has no word for a value that is no number.
        nothing = {name: None for name, value in numbers.items() if not math.isfinite(value)}
        with _on_a_full_disk(self.path), self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps({**record, **values, **nothing}) + "\n")
        if self._events is not None:
            with _on_a_full_disk(self.folder):
                for name, value in numbers.items():
                    self._events.add(f"{kind}/{name}", value, progress.step)


def _incidents(progress: Progress) -> dict[str, float]:
    """How often in all a step was no ordinary one, where there were any."""
    counts = {"skipped_steps": progress.skipped, "split_batches": progress.split}
    return {name: count for name, count in counts.items() if count}


@contextmanager
def _on_a_full_disk(path: Path) -> Iterator[None]:
    """What cannot be written is a failed job."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{path}: cannot be written: {error.strerror}; make room and train again") from None


def _step(line: str) -> float:
    """The step of a line; what is no record, such as a line that a kill cut short, belongs to no step."""
    try:
        record: Any = json.loads(line)
        return float(record["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
