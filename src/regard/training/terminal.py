"""The view of a run on screen: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from regard.training.trainer import Listening, StepReport, Trainer

PLAIN_SECONDS = 10.0
"""Without a terminal there is a line about this often."""

FORETOLD_AFTER = 20.0
"""So many seconds of steps say how long the others will take."""


class TerminalView(Listening):
    """Step, loss, rate, target tokens a second and time left; the scores of each validation stay on screen."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._recent: deque[StepReport] = deque(maxlen=50)
        self._progress: Progress | None = None
        self._begin = 0.0
        self._first_step = 0
        self._last_line = 0.0
        self._spent = 0.0
        self._foretold = False

    def say(self, text: str) -> None:
        """A line that stays, as it is."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_start(self, trainer: Trainer) -> None:
        self._begin = self._last_line = time.monotonic()
        self._first_step = trainer.progress.step
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24))
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.add_task("starting", total=trainer.settings.steps, completed=trainer.progress.step)
            self._progress.start()

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self._recent.append(report)
        self._foretell(trainer, report)
        if self._progress is not None:
            line = self._line(trainer)
            self._progress.update(self._progress.task_ids[0], completed=report.step, description=line)
        elif time.monotonic() - self._last_line >= PLAIN_SECONDS or report.step == trainer.settings.steps:
            self._last_line = time.monotonic()
            self.say(self._line(trainer))

    def on_validation(self, trainer: Trainer, scores: dict[str, float]) -> None:
        values = " · ".join(f"{name} {value:.{'2f' if abs(value) < 1e6 else '3g'}}" for name, value in scores.items())
        self.say(f"step {trainer.progress.step} · validation · {values}")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _foretell(self, trainer: Trainer, report: StepReport) -> None:
        """Say once how long the steps that are left will take."""
        self._spent += report.seconds
        left = trainer.settings.steps - report.step
        seconds = left * self._spent / (report.step - self._first_step)
        if self._foretold or self._spent < FORETOLD_AFTER or seconds < FORETOLD_AFTER:
            return
        self._foretold = True
        time_left = duration(seconds)
        self.say(f"predicted: {time_left} for the {left:,} steps that are left; validations and the test come on top")

    def _line(self, trainer: Trainer) -> str:
        step, steps = trainer.progress.step, trainer.settings.steps
        tokens = sum(report.target_tokens for report in self._recent)
        seconds = sum(report.seconds for report in self._recent)
        loss = sum(report.loss * report.target_tokens for report in self._recent) / tokens
        elapsed = time.monotonic() - self._begin
        left = elapsed / (step - self._first_step) * (steps - step)
        return (
            f"step {step:,}/{steps:,} · epoch {trainer.progress.epoch + 1} · loss {loss:.3f} · "
            f"rate {self._recent[-1].rate:.2e} · {tokens / seconds:,.0f} tokens/s · {duration(left)} left"
        )


def duration(seconds: float) -> str:
    """Seconds as `1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
