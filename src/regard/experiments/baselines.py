"""The Transformer beside recurrence and convolution, as in the paper's Table 2: the same text, vocabulary, batches,
trainer, loss, search and number of parameters, for the same number of updates or the same time.

experiment.json   settings of the comparison
data/             what training reads (and the tokenizers beside it)
NAME/             one kind of model: metrics.jsonl, checkpoints/, test.txt
results.md        the table, and results.json with all values
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.experiments import report
from regard.experiments.contenders import Contender, ContendersSettings, contenders, parameters
from regard.pipelines import choose_device
from regard.runs.prepare import begin_anew
from regard.runs.run import build_trainer, go_on
from regard.runs.settings import RunSettings
from regard.runs.task import Run, Say
from regard.runs.translation import Translation
from regard.settings import read_json
from regard.text.lines import atomic_write
from regard.training.checkpoint import load_latest
from regard.training.terminal import TerminalView
from regard.training.trainer import Listening, StepReport, Trainer, TrainingSettings
from regard.training.validation import validation_loss

COLUMNS = {
    "model": "",
    "parameters": ",",
    "updates": ",",
    "minutes": ".1f",
    "target tokens/s": ",.0f",
    "validation loss": ".3f",
}
"""Of the table; the scores of translations follow."""

SETTINGS, TRAINING = "experiment.json", "training.json"

FIRST_STEPS, TIMED_STEPS = 5, 40
"""Updates that are made to see how long one takes: the first, slower ones are not timed."""


class Comparison:
    """A comparison in its directory, which the same call takes up again where it was left."""

    def __init__(
        self,
        directory: Path,
        settings: RunSettings,
        own: ContendersSettings,
        view: TerminalView,
        say: Say,
        minutes: float | None = None,
    ) -> None:
        """`minutes`: each model makes as many updates as take about so long; without, all make `training.steps`.

        Raises:
            UserError: the recipe is not one of translation, the settings do not fit, or the directory holds another
                comparison.
        """
        if settings.task != "translation":
            raise UserError(f"task: {settings.task} is not compared, only translation")
        if settings.initial is not None:
            raise UserError("initial: all models of a comparison begin anew; leave it out")
        if settings.training.threads is not None:
            torch.set_num_threads(settings.training.threads)
        choose_device(settings.training.device)  # a device that is not there is known before any work
        # All make the updates that were agreed upon, whether they still gain or not.
        validation = settings.validation.model_copy(update={"patience": None})
        settings = settings.model_copy(update={"validation": validation})
        run = Run(directory, settings, Translation.corpus(settings.data), say)
        _claim(directory, {"minutes": minutes, **own.model_dump(), **json.loads(settings.model_dump_json())})
        self.view, self.minutes = view, minutes
        self.task = Translation(run)
        self.vocabularies = self.task.tokenizers.source.size, self.task.tokenizers.target.size
        self.contenders = contenders(settings, own, self.vocabularies)

    def run(self) -> str:
        """Train and measure all models; the table, which is also written into the directory after each of them."""
        run = self.task.run
        measured = "validation text, greedy search" if run.corpus.test is None else "test text, the recipe's search"
        rows: list[dict[str, Any]] = []
        text = ""
        for contender in self.contenders:
            rows.append(self._measured(contender))
            scores = dict.fromkeys(rows[0]["scores"], ".1f")
            text = report.write(
                run.directory,
                "Transformer, recurrence and convolution",
                COLUMNS | scores,
                [{**row, **row["scores"]} for row in rows],
                {
                    "data": f"{run.corpus.description} {self.task.amount}",
                    "vocabulary": " and ".join(f"{size:,}" for size in dict.fromkeys(self.vocabularies)),
                    "scores": " · ".join([measured, *rows[0]["signatures"]]),
                },
            )
        return text

    def _measured(self, contender: Contender) -> dict[str, Any]:
        """Train one model, or go on with it; its row of the table."""
        task = self._task(contender.name, self._training(contender))
        run, training = task.run, task.run.settings.training
        size = parameters(contender.build, self.vocabularies)
        trainer = self._trainer(task, contender, self.view)
        run.say(f"{contender.name}: {size:,} parameters, {training.steps:,} updates")
        found = load_latest(run.directory / "checkpoints")
        if found:
            go_on(trainer, *found)
            run.say(f"{contender.name}: going on from step {trainer.progress.step:,}")
        if trainer.progress.step < training.steps:
            trainer.train()
        model, progress = trainer.model.eval(), trainer.progress
        tested = task.test(model)
        return {
            "model": contender.name,
            "parameters": size,
            "updates": progress.step,
            "minutes": progress.seconds / 60,
            "target tokens/s": progress.target_tokens / max(progress.seconds, 1e-9),
            "validation loss": validation_loss(trainer, task.dev)["loss"],
            "scores": {score.name: score.value for score in tested} or task.measure(model),
            "signatures": [score.signature for score in tested],
            "settings": contender.model.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
        }

    def _task(self, name: str, training: TrainingSettings) -> Translation:
        """The task with a folder and training settings of its own; the text is that of all."""
        run = self.task.run
        task = copy.copy(self.task)
        settings = run.settings.model_copy(update={"training": training})
        task.run = replace(run, directory=run.directory / name, settings=settings)
        return task

    def _trainer(self, task: Translation, contender: Contender, view: TerminalView) -> Trainer:
        """The trainer of a new model, its weights decided by the seed alone."""
        torch.manual_seed(task.run.settings.training.seed)
        return build_trainer(task, contender.build(*self.vocabularies), view)

    def _training(self, contender: Contender) -> TrainingSettings:
        """The settings, with the number of updates that fit into the time; training that goes on keeps its number."""
        path = self.task.run.directory / contender.name / TRAINING
        if path.exists():
            return TrainingSettings.parse(read_json(path), str(path))
        training = contender.training
        if self.minutes is not None:
            seconds = self._seconds_a_step(contender)
            self.task.run.say(f"{contender.name}: {1000 * seconds:.0f} ms an update")
            training = training.model_copy(update={"steps": max(1, round(60 * self.minutes / seconds))})
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(training.model_dump_json(indent=2).encode("utf-8"))
        return training

    def _seconds_a_step(self, contender: Contender) -> float:
        """The mean over some updates of a model that is then forgotten."""
        timer = _Timer()
        training = contender.training.model_copy(update={"steps": FIRST_STEPS + TIMED_STEPS})
        trainer = self._trainer(self._task(contender.name, training), contender, self.view)
        trainer.listeners = [timer]
        trainer.train()
        return sum(timer.seconds[FIRST_STEPS:]) / TIMED_STEPS


class _Timer(Listening):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.seconds.append(report.seconds)


def _claim(directory: Path, settings: dict[str, Any]) -> None:
    """Make the directory this comparison's own, or find that it is. Where nothing was learned yet, it begins anew."""
    path = directory / SETTINGS
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made: {error.strerror}; choose another --out") from None
    if path.exists():
        before = read_json(path)
        changed = [name for name in settings if before.get(name) != settings[name]]
        if changed and any(directory.glob("*/checkpoints")):
            raise UserError(
                f"{directory}: holds a comparison with other settings of {', '.join(changed)}; choose another --out"
            )
        if changed:
            begin_anew(directory)
            for planned in directory.glob(f"*/{TRAINING}"):
                planned.unlink()
    elif any(directory.iterdir()):
        raise UserError(f"{directory}: is not empty and holds no comparison; choose another --out")
    with atomic_write(path) as file:
        file.write(json.dumps(settings, indent=2).encode("utf-8"))
