"""One training run in its directory: begin, go on, finish.

settings.yaml   resolved settings
tokenizer.json  (or tokenizer.source.json and tokenizer.target.json)
data/           what training reads
metrics.jsonl   and tensorboard/
checkpoints/    step-N/
model/          the model directory that everything after training uses
adapters/       adapters by themselves, where they were trained
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from regard.errors import UserError
from regard.model import store
from regard.pipelines import choose_device
from regard.recipes import merge, read_yaml
from regard.runs.export import export
from regard.runs.fitting import expect, refuse_hopeless
from regard.runs.initial import adapt, take_over, take_over_moments
from regard.runs.overview import prepare
from regard.runs.prepare import begin_anew
from regard.runs.recovery import go_back, note
from regard.runs.settings import RunSettings
from regard.runs.task import Run, Say, Task
from regard.runs.tasks import TASKS, reread, written
from regard.text.directories import alone
from regard.text.lines import atomic_write, leftovers
from regard.training.checkpoint import Checkpoint, checkpoints, load_latest
from regard.training.guard import DivergenceError, Recovery
from regard.training.keeping import CheckpointKeeper
from regard.training.logs import MetricsLog
from regard.training.process import settle
from regard.training.terminal import TerminalView, duration
from regard.training.trainer import Listener, Trainer
from regard.training.validation import EarlyStopping, Validation

SETTINGS = "settings.yaml"
TRAINING = "is training here"
"""What another process does that has a run's directory to itself."""
CHANGEABLE = ("training", "validation", "checkpoints", "search", "generation", "metrics")
"""Sections that may differ when a run goes on; the others decide what the weights mean."""


def train(directory: Path, settings: RunSettings, view: TerminalView, say: Say) -> dict[str, float] | None:
    """Carry out a run, or go on with it: if the directory has one with these settings, it continues.

    Returns the scores of the exported model, or None when the run was interrupted and can go on.
    """
    settle(settings.training.threads)
    choose_device(settings.training.device)  # a device that is not there is known before any work
    run = Run(directory, settings, TASKS[settings.task].corpus(settings.data), say)
    with claimed(directory, settings):
        return _carry_out(run, view)


def _carry_out(run: Run, view: TerminalView) -> dict[str, float] | None:
    settings, say = run.settings, run.say
    task = prepare(run)
    refuse_hopeless(task, choose_device(settings.training.device))
    trainer = _learn(task, view)
    if trainer.stop_reason == INTERRUPTED:
        say(f"stopped and saved at step {trainer.progress.step:,}; go on with: regard train --resume {run.directory}")
        return None
    if trainer.stop_reason:
        say(f"stopped early at step {trainer.progress.step:,}: {trainer.stop_reason}")
    say(f"trained {trainer.progress.step:,} steps in {duration(trainer.progress.seconds)}")
    return export(task, trainer)


def _learn(task: Task, view: TerminalView) -> Trainer:
    """Train to the last step; after a divergence go back and on from there, as the settings say."""
    folder, say = task.run.directory / "checkpoints", task.run.say
    trainer, found = begin(task, view)
    say(_describe(task, trainer))
    say(expect(task, trainer).sentence(trainer.device))
    if found is not None:
        changed = f", {trainer.recovery} as it has diverged before" if trainer.recovery.attempts else ""
        say(f"going on from step {trainer.progress.step:,} ({found}){changed}")
    while trainer.progress.step < trainer.settings.steps:
        try:
            with _interruptible(trainer):
                trainer.train()
            break
        except DivergenceError as error:
            if trainer.stop_reason:
                raise
            recovery = go_back(folder, trainer, error, say)
            diverged = error.step, error.place
        # Out of the handler: its traceback holds the tensors of the step that failed.
        del trainer
        trainer, _ = begin(task, view, recovery)
        note(trainer, *diverged)
    return trainer


def begin(task: Task, view: TerminalView, recovery: Recovery | None = None) -> tuple[Trainer, Path | None]:
    """A trainer at the newest checkpoint, which is named; at the beginning where there is none, with this recovery."""
    found = load_latest(task.run.directory / "checkpoints")
    trainer = build_trainer(task, build_model(task, new=found is None), view)
    if found is None:
        take_over_moments(trainer.model, trainer.optimizer, task.run)
        trainer.recover(recovery or Recovery())
        return trainer, None
    go_on(trainer, *found)
    return trainer, found[0]


def go_on(trainer: Trainer, path: Path, checkpoint: Checkpoint) -> None:
    """Let the trainer go on from a checkpoint; `UserError` where that is none of this run."""
    try:
        trainer.resume(checkpoint, str(path))
    except (KeyError, TypeError, ValueError) as error:  # whole, by its checksums, and still not such a state
        raise UserError(f"{path}: does not hold the state of this run ({error!r}); move it away") from None


def build_model(task: Task, new: bool = True) -> nn.Module:
    """A model, its weights decided by the seed and by the initial model; those of one that is not `new` come later."""
    settings = task.run.settings
    torch.manual_seed(settings.training.seed)
    model = store.build(task.model())
    if new:
        take_over(model, task.run)
    adapt(model, settings)
    return model


def build_trainer(task: Task, model: nn.Module, view: TerminalView) -> Trainer:
    """The trainer of a run with all its listeners."""
    directory, settings = task.run.directory, task.run.settings
    metric = settings.validation.metric
    listeners: list[Listener] = [
        view,
        MetricsLog(directory, every=max(1, min(100, settings.validation.every))),
        Validation(settings.validation, task.dev, partial(task.measure, show=True)),
        EarlyStopping(metric, settings.validation.patience),
        CheckpointKeeper(directory / "checkpoints", settings.checkpoints, metric),
    ]
    return Trainer(
        model,
        task.loss,
        task.train,
        settings.training,
        settings.model.d_model,
        listeners,
        device=choose_device(settings.training.device),
    )


def load_settings(directory: Path, overrides: Mapping[str, Any]) -> RunSettings:
    """The settings of the run in `directory`, changed by `overrides` where a run that goes on may be changed."""
    path = directory / SETTINGS
    if not path.is_file():
        raise UserError(f"{directory}: holds no run to go on with (it has no {SETTINGS})")
    for section in overrides:
        if section not in CHANGEABLE:
            raise UserError(f"--{section}: cannot change in a run that goes on; {', '.join(CHANGEABLE)} can")
    return reread(merge(read_yaml(path), overrides), str(path))


@contextmanager
def claimed(directory: Path, settings: RunSettings, *, rewrite: bool = True) -> Iterator[None]:
    """Make the directory this run's own, or find that it is: another run's is left alone.

    What has neither checkpoints nor a model has not really begun, and may begin anew with other settings. Without
    `rewrite`, settings that say the same but for what may change are left as they were written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made: {error.strerror}; choose another --out") from None
    with alone(directory, TRAINING):
        path = directory / SETTINGS
        begun = path.exists()
        changed: list[str] = []
        if begun:
            changed = _changed(reread(read_yaml(path), str(path)), settings)
            if changed and (checkpoints(directory / "checkpoints") or (directory / "model").exists()):
                raise UserError(
                    f"{directory}: holds a run with other settings of {', '.join(changed)}; choose another --out, "
                    f"or go on with that run: regard train --resume {directory}"
                )
            if changed:
                begin_anew(directory)
        elif set(directory.iterdir()) - set(leftovers(directory)):
            raise UserError(f"{directory}: is not empty and holds no run; choose another --out")
        for folder in (directory, directory / "data", *checkpoints(directory / "checkpoints").values()):
            for left in leftovers(folder):
                left.unlink(missing_ok=True)
        if rewrite or changed or not begun:
            with atomic_write(path) as file:
                file.write(written(settings).encode())
        yield


def _changed(before: RunSettings, after: RunSettings) -> list[str]:
    """The sections that differ, of those that a run keeps for ever."""
    kept = (name for name in RunSettings.model_fields if name not in (*CHANGEABLE, "preset"))
    return [name for name in kept if getattr(before, name) != getattr(after, name)]


def _describe(task: Task, trainer: Trainer) -> str:
    parameters = list(trainer.model.parameters())
    learning = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    count = sum(parameter.numel() for parameter in parameters)
    part = f", of which {learning / 1e6:.2f}M learn" if learning < count else ""
    batches = trainer.batches.count(0)
    epochs = trainer.settings.steps * trainer.settings.accumulate / batches
    return (
        f"model: {count / 1e6:.1f}M parameters{part}, products in {trainer.passes.numbers}; "
        f"{task.amount} in {batches:,} batches an epoch ({trainer.batches.real_share(0).both:.1%} real tokens); "
        f"{trainer.settings.steps:,} steps, {epochs:.1f} epochs"
    )


INTERRUPTED = "interrupted"


@contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run after its present step, saved; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        if trainer.stop_reason:
            raise KeyboardInterrupt
        trainer.stop(INTERRUPTED)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
