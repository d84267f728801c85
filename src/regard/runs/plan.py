"""What a run will take, said before it is begun: what it learns from, its parameters, memory and hours.

Its text is prepared; what cannot fit by what must be held at once is refused; then the run is rehearsed (see
`regard.runs.rehearsal`). The two happen in processes of their own, one after the other.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from regard.errors import UserError
from regard.model import store
from regard.pipelines import choose_device
from regard.runs import memory
from regard.runs.child import OutOfMemoryError, Tell, in_child
from regard.runs.fitting import expect, options, refuse_hopeless
from regard.runs.footprint import Footprint
from regard.runs.memory import size
from regard.runs.overview import Overview, overview, prepare
from regard.runs.rehearsal import SECONDS, Clock, Rehearsal, rehearse
from regard.runs.run import build_model, build_trainer, claimed
from regard.runs.settings import RunSettings
from regard.runs.task import Corpus, Run, Say
from regard.runs.tasks import TASKS
from regard.training.terminal import TerminalView, duration


class Part(Protocol):
    """A part of a model."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> int: ...


SCRATCH = ".plan-"
"""What the name of a folder begins with that a plan works in."""

Parts = Callable[[Any], Sequence[Part]]
"""Gives the parts of a model."""


@dataclass(frozen=True)
class Job:
    """What both processes are told."""

    folder: Path
    settings: RunSettings
    corpus: Corpus
    spare: int
    """Bytes held by the process that plans, which is not there beside the run."""
    clock: Clock

    def run(self, tell: Tell) -> Run:
        return Run(self.folder, self.settings, self.corpus, lambda text: tell("say", text))


@dataclass(frozen=True)
class Look:
    """What is known without training."""

    overview: Overview
    parts: Sequence[Part]
    """Of the model."""
    needed: Footprint
    """Memory of a step, as counted."""
    preparation: float
    """Seconds that preparing the text took."""
    peak: int
    """Bytes that were held at most meanwhile, where the run computes."""
    left: int
    """Of these, bytes that the process goes on to hold."""


@dataclass(frozen=True)
class Plan:
    """What a run will take."""

    settings: RunSettings
    look: Look
    rehearsal: Rehearsal
    available: int
    """Bytes of memory that the run may hold."""
    directory: Path | None
    """Where the run will find the text prepared; None where it prepares it again."""

    @property
    def peaks(self) -> dict[str, int]:
        """Bytes held at most, by stage."""
        if self.directory is not None:
            return self.rehearsal.peaks
        later = {stage: self.look.left + peak for stage, peak in self.rehearsal.peaks.items()}
        return {"preparation": self.look.peak, **later}

    @property
    def peak(self) -> int:
        """Bytes held at most."""
        return max(self.peaks.values())

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage takes, all of its kind together."""
        found, settings = self.rehearsal, self.settings
        validated, saved = occasions(settings, found.first_step)
        return {
            "start": found.start,
            "preparation": self.look.preparation if self.directory is None else 0.0,
            "steps": found.step * (settings.training.steps - found.first_step),
            "validations": sum(map(found.validation_at, validated)),
            "checkpoints": found.checkpoint * len(saved),
            "final model": found.final,
            "test": found.test,
        }

    def lines(self) -> list[str]:
        """All of it, to be read."""
        return [*_corpus_lines(self.look.overview), *_model_lines(self), *_memory_lines(self), *_time_lines(self)]


def occasions(settings: RunSettings, first: int) -> tuple[list[int], list[int]]:
    """The steps of validations, and those of checkpoints, after the first so many."""
    steps, every, saves = settings.training.steps, settings.validation.every, settings.checkpoints.every
    validated = {*range(every, steps + 1, every), steps}
    saved = validated | ({*range(saves, steps + 1, saves)} if saves else set())
    after = [sorted(step for step in steps if step > first) for steps in (validated, saved)]
    return after[0], after[1]


def plan(
    directory: Path | None,
    settings: RunSettings,
    parts: Parts,
    say: Say,
    *,
    seconds: float = SECONDS,
    clock: Clock = "wall",
) -> Plan:
    """Find out what a run in `directory` will take; without one, in a folder that is removed again.

    Args:
        parts: gives the parts of a model.
        say: is told what is going on.
        seconds: how long training is tried.

    Raises:
        UserError: it cannot fit into memory, or cannot be begun at all.
    """
    device = choose_device(settings.training.device)
    corpus = TASKS[settings.task].corpus(settings.data)
    with ExitStack() as stack:
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="regard-plan-")))
        else:
            stack.enter_context(claimed(directory, settings, rewrite=False))
            folder = directory
            for left in folder.glob(f"{SCRATCH}*"):  # by a plan that was killed
                shutil.rmtree(left, ignore_errors=True)
        job = Job(folder, settings, corpus, memory.held().now if device.type == "cpu" else 0, clock)
        try:
            look = in_child(say, _look, job, parts)
            say(f"trying each stage of the run, training for {seconds:.0f} seconds")
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder)))
            found, available = in_child(say, _try, job, scratch, seconds, time.time())
        except OutOfMemoryError as error:
            raise UserError(_too_much(settings, str(error), "ran out of memory")) from None
    made = Plan(settings, look, found, available, directory)
    if made.peak > available:
        stage = max(made.peaks, key=lambda name: made.peaks[name])
        raise UserError(_too_much(settings, stage, f"needs {size(made.peak)}, and {size(available)} are available"))
    return made


def _too_much(settings: RunSettings, stage: str, what: str) -> str:
    amount, _ = options(settings)
    change = f"lower {amount} ({attrgetter(amount)(settings):,})" if stage == "training" else "choose a smaller model"
    return f"{stage} {what}; {change}"


def _look(job: Job, parts: Parts, tell: Tell) -> Look:
    """In a process of its own: prepare the text, count, and refuse what cannot fit."""
    tell("stage", "preparation")
    clock = time.process_time if job.clock == "cpu" else time.perf_counter
    device = choose_device(job.settings.training.device)
    begin, before = clock(), memory.held_on(device).now
    task = prepare(job.run(tell))
    spent, held = clock() - begin, memory.held_on(device)
    refuse_hopeless(task, device, job.spare)
    tell("stage", "training")
    trainer = build_trainer(task, build_model(task), TerminalView())
    needed = expect(task, trainer, job.spare)
    return Look(overview(task), parts(store.unwrap(trainer.model)), needed, spent, held.peak, held.now - before)


def _try(job: Job, scratch: Path, seconds: float, started: float, tell: Tell) -> tuple[Rehearsal, int]:
    """In a process of its own: rehearse; also say how much memory there is."""
    available = memory.available(choose_device(job.settings.training.device)) + job.spare
    return rehearse(job.run(tell), scratch, seconds, partial(tell, "stage"), started, job.clock), available


def _corpus_lines(seen: Overview) -> list[str]:
    lines = [f"learns from {seen.amount}"]
    if seen.sides:
        lines.append(f"  {'tokens of a text':<18}{'all':>14}{'mean':>8}{'median':>8}{'99%':>8}{'longest':>9}")
    lines += [
        f"  {name:<18}{side.tokens:>14,}{side.mean:>8.1f}{side.median:>8.0f}{side.high:>8.0f}{side.longest:>9,}"
        for name, side in seen.sides.items()
    ]
    lines += [f"  {note}" for note in seen.notes]
    if seen.longest:
        lines += ["  longest lines of the files:", *(f"    {line}" for line in seen.longest)]
    return lines


def _model_lines(made: Plan) -> list[str]:
    parts = made.look.parts
    return [
        f"model: {sum(part.parameters for part in parts):,} parameters",
        *(f"  {part.name:<38}{part.parameters:>14,}" for part in parts),
    ]


def _memory_lines(made: Plan) -> list[str]:
    needed = made.look.needed
    return [
        f"memory: {size(made.peak)} at the peak, of {size(made.available)} available",
        *(f"  {stage:<18}{size(peak):>10}" for stage, peak in made.peaks.items()),
        f"  among it weights {size(needed.weights)}, gradients and optimizer {size(needed.optimizer)}, "
        f"what is kept of the largest batch {size(needed.batch)}",
    ]


def _time_lines(made: Plan) -> list[str]:
    found, settings = made.rehearsal, made.settings
    validated, saved = occasions(settings, found.first_step)
    counts = {
        "steps": f"{settings.training.steps - found.first_step:,} x {found.step:.3f} s (of {found.tried:,} tried)",
        "validations": f"{len(validated):,}, the last of {found.validation_at(settings.training.steps):.1f} s",
        "checkpoints": f"{len(saved):,} x {found.checkpoint:.2f} s",
    }
    speed = f"{found.source_rate:,.0f} source and {found.target_rate:,.0f} target tokens a second"
    lines = [f"time: {duration(sum(made.seconds.values()))}, training at {speed}"]
    lines += [
        f"  {stage:<18}{duration(spent):>10}  {counts.get(stage, '')}".rstrip() for stage, spent in made.seconds.items()
    ]
    if settings.validation.patience is not None:
        lines.append(f"  or less: {settings.validation.patience} validations without gain end it (validation.patience)")
    where = "was removed again: the run prepares it anew" if made.directory is None else f"stays in {made.directory}"
    return [*lines, f"the prepared text {where}"]
