"""Whether a run that is taken up again computes what it would have computed: steps done again, compared bit for bit.

Where the run wrote a checkpoint at most so many steps before its last one, the steps between the two are done again
from it, and must give what the run itself wrote: a resumed run against the one that was not stopped. Otherwise the
steps that come next are done twice, once in one go and once with a stop in the middle, and must agree after each step.

Nothing in the run's directory is written or changed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from regard.errors import JobError, UserError
from regard.pipelines import choose_device
from regard.runs.run import TRAINING, build_model, build_trainer, go_on
from regard.runs.settings import RunSettings
from regard.runs.task import Run, Say, Task
from regard.runs.tasks import TASKS
from regard.text.directories import alone
from regard.training.checkpoint import Checkpoint, checkpoints, load_checkpoint, load_latest, save_checkpoint
from regard.training.keeping import CheckpointKeeper
from regard.training.logs import MetricsLog
from regard.training.process import settle
from regard.training.terminal import TerminalView
from regard.training.trainer import Listener, StepReport, Trainer

Prints = dict[str, str]
"""A fingerprint of each part of a run's state: weights, moments and random numbers first, then the rest."""

Watch = Callable[[Trainer, StepReport], None]
"""Looks at a run after a step."""


def verify(directory: Path, settings: RunSettings, steps: int, say: Say) -> None:
    """Do `steps` steps of a run again and compare what comes out; `say` is told each step and the verdict.

    Early stopping does not end it. Validations that lie in between are carried out, as they are part of the run.

    Raises:
        UserError: the run has no checkpoint yet, has ended with only one, or another process is training there.
        JobError: something differs; it names the first step and the first part, and how far apart they are.
    """
    settle(settings.training.threads)
    endless = settings.model_copy(update={"validation": settings.validation.model_copy(update={"patience": None})})
    with alone(directory, TRAINING):
        found = load_latest(directory / "checkpoints")
        if found is None:
            raise UserError(f"{directory}: has no checkpoint yet to go on from; let it train to its first one")
        path, checkpoint = found
        last = int(checkpoint.state["progress"]["step"])
        older = {step: each for step, each in checkpoints(path.parent).items() if step < last}
        changed = checkpoint.state.get("recovery", {}).get("step", 0)  # before, a divergence was still to come
        near = [step for step in older if step >= max(last - steps, changed)]
        start = next((step for step in near if _whole(older[step])), None)
        replay = _Replay(directory, endless)
        if start is not None:
            _against_stored(replay, {step: older[step] for step in near if step >= start} | {last: path}, say)
        elif last < settings.training.steps:
            _twice(replay, path, last, min(last + steps, settings.training.steps), say)
        else:
            before = next((step for step in reversed(older) if step >= changed and _whole(older[step])), None)
            if before is None:
                raise UserError(
                    f"{directory}: has ended with one checkpoint, and no step before or behind it to do again; a "
                    "higher --training.steps lets it go further"
                )
            _twice(replay, older[before], before, before + steps, say)


@dataclass(frozen=True)
class _Replay:
    """Carries out steps of a run, each time with everything made anew, and writes nothing."""

    directory: Path
    settings: RunSettings

    def __call__(self, path: Path, until: int, watch: Watch) -> Trainer:
        """From the checkpoint `path` to the step `until`."""
        corpus = TASKS[self.settings.task].corpus(self.settings.data)
        task: Task = TASKS[self.settings.task](Run(self.directory, self.settings, corpus, lambda _: None))
        trainer = build_trainer(task, build_model(task, new=False), TerminalView(Console(quiet=True)))
        trainer.listeners = [_unwriting(listener, until, watch) for listener in trainer.listeners]
        go_on(trainer, path, load_checkpoint(path))
        trainer.train()
        trainer.stop_reason = None
        return trainer

    @property
    def inexact(self) -> str:
        """Why steps done again may differ on this device, if anything is known."""
        if choose_device(self.settings.training.device).type != "cpu":
            return "; a GPU may add sums in another order each time"
        if torch.get_num_threads() > 1:
            return (
                f"; {torch.get_num_threads()} threads may add sums in another order each time: a run with "
                "--training.threads 1 is exact"
            )
        return ""


class _Unwritten(MetricsLog):
    """Averages as the log does, and writes them nowhere."""

    def on_start(self, trainer: Trainer) -> None: ...
    def write(self, trainer: Trainer, kind: str, values: Mapping[str, float | str]) -> None: ...


class _Witness(CheckpointKeeper):
    """In the place of the keeper, looks at the state that it would save."""

    def __init__(self, keeper: CheckpointKeeper, until: int, watch: Watch) -> None:
        super().__init__(keeper.directory, keeper.settings, keeper.metric)
        self.until = until
        self.watch = watch

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.watch(trainer, report)
        if report.step >= self.until:
            trainer.stop("seen")

    def save(self, trainer: Trainer) -> None: ...


def _unwriting(listener: Listener, until: int, watch: Watch) -> Listener:
    """A listener of the same state that leaves the run's directory as it is."""
    if isinstance(listener, MetricsLog):
        return _Unwritten(listener.path.parent, listener.every)
    if isinstance(listener, CheckpointKeeper):
        return _Witness(listener, until, watch)
    return listener


def _against_stored(replay: _Replay, stored: Mapping[int, Path], say: Say) -> None:
    """From the first of the checkpoints to the last, meeting each of them on the way."""
    start, last = min(stored), max(stored)
    say(f"steps {start + 1:,} to {last:,} again, from {stored[start]} to what the run itself wrote")

    def watch(trainer: Trainer, report: StepReport) -> None:
        again = trainer.checkpoint()
        prints = fingerprints(again)
        same = ""
        if report.step in stored:
            written = load_checkpoint(stored[report.step])
            part = first_difference(fingerprints(written), prints)
            if part:
                raise JobError(
                    f"step {report.step:,}: {part} is not what the run wrote in {stored[report.step]}"
                    f"{_apart(written, again)}{replay.inexact}; where the run went on in between with other settings, "
                    "another release or on another machine, it differs as well"
                )
            same = f" · identical to {stored[report.step]}"
        say(_line(report, prints) + same)

    replay(stored[start], last, watch)
    say(f"identical: steps {start + 1:,} to {last:,} again gave what the run wrote")


def _twice(replay: _Replay, path: Path, begin: int, end: int, say: Say) -> None:
    """The same steps in one go and with a stop in the middle."""
    middle = begin + (end - begin) // 2
    say(f"steps {begin + 1:,} to {end:,} from {path}, in one go")
    seen: dict[int, tuple[float, Prints]] = {}
    differing: list[str] = []

    def first(trainer: Trainer, report: StepReport) -> None:
        seen[report.step] = report.loss, fingerprints(trainer.checkpoint())
        say(_line(report, seen[report.step][1]))

    def second(trainer: Trainer, report: StepReport) -> None:
        loss, prints = seen[report.step]
        now = fingerprints(trainer.checkpoint())
        part = first_difference(prints, now)
        if part and not differing:
            differing.append(f"step {report.step:,}: {part} differs (losses {loss!r} and {report.loss!r})")
        say(f"{_line(report, now)} · {'differs' if part else 'identical'}")

    straight = _copy(replay(path, end, first).checkpoint())
    say(f"again, stopped after step {middle:,}, saved and taken up" if middle > begin else "again")
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        if middle > begin:
            path = save_checkpoint(Path(folder), middle, replay(path, middle, second).checkpoint())
        again = replay(path, end, second).checkpoint()
    if differing:
        raise JobError(f"{differing[0]}{_apart(straight, again, f' after step {end:,}')}{replay.inexact}")
    say(f"identical: steps {begin + 1:,} to {end:,} gave the same twice")


def fingerprints(checkpoint: Checkpoint) -> Prints:
    """SHA-256 of each tensor, and the other state as it is; the time that steps took is no part of it."""
    tensors = checkpoint.model | checkpoint.optimizer
    state = json.loads(json.dumps(checkpoint.state))  # as it is when it has been stored
    rest = dict(_leaves({name: value for name, value in state.items() if name != "version"}))
    return {name: _digest(tensor) for name, tensor in tensors.items()} | rest


def first_difference(one: Prints, other: Prints) -> str | None:
    """The first part that is not the same in both; random numbers of GPUs count where both have them."""
    for name in [*one, *other]:
        absent = name.startswith("random.cuda.") and (name not in one or name not in other)
        if one.get(name) != other.get(name) and not absent:
            return name
    return None


def _apart(one: Checkpoint, other: Checkpoint, when: str = "") -> str:
    """The largest difference between values of two states, in words; nothing where there is none."""
    before, after = (state.model | state.optimizer for state in (one, other))
    apart = {
        name: float((tensor.double().cpu() - after[name].double().cpu()).abs().max())
        for name, tensor in before.items()
        if not name.startswith("random.") and name in after and after[name].shape == tensor.shape and tensor.numel()
    }
    name = max(apart, key=apart.__getitem__)
    return f"; the largest difference{when} is {apart[name]:.2g}, in {name}" if apart[name] else ""


def _digest(tensor: Tensor) -> str:
    """SHA-256 of type, shape and bytes."""
    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)}".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and JSON of each value in nested dicts and lists."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            if key != "seconds":
                yield from _leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, json.dumps(value)


def _line(report: StepReport, prints: Prints) -> str:
    whole = hashlib.sha256("".join(f"{name} {value}\n" for name, value in prints.items()).encode())
    return f"step {report.step:,} · loss {report.loss:.6f} · sha256 {whole.hexdigest()[:16]}"


def _copy(checkpoint: Checkpoint) -> Checkpoint:
    """A state that the next step does not change."""
    model, optimizer = (
        {name: tensor.clone() for name, tensor in part.items()} for part in (checkpoint.model, checkpoint.optimizer)
    )
    return Checkpoint(model, optimizer, checkpoint.state)


def _whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except UserError:
        return False
    return True
