"""Going back after a divergence: to the last good checkpoint, which from then on says what is done otherwise."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from regard.errors import JobError
from regard.runs.task import Say
from regard.training.checkpoint import amend, checkpoints, load_latest, prune
from regard.training.guard import DivergenceError, Recovery
from regard.training.logs import MetricsLog
from regard.training.trainer import Trainer


def go_back(folder: Path, trainer: Trainer, error: DivergenceError, say: Say) -> Recovery:
    """Make the last good checkpoint in `folder` the newest one, and let it say what is tried from there on.

    Later checkpoints, whose weights may be those of the divergence, are removed. Where there never was a good one, the
    run begins anew. Returns what is tried.

    Raises:
        DivergenceError: the settings say that a divergence ends the run.
        JobError: it went back too often already, or no good checkpoint is left.
    """
    settings, before = trainer.settings, trainer.recovery
    if settings.on_divergence == "stop":
        raise error
    happened = f"step {error.step:,}: {error.what}"
    if before.attempts >= settings.guard.attempts:
        raise JobError(
            f"{happened}; the run has gone back {before.attempts} times, as often as training.guard.attempts allows. "
            "Begin anew with a lower training.schedule.peak_rate or more warmup_steps"
        ) from None
    there = checkpoints(folder)
    good = [step for step in there if step < error.since]
    if there and not good and error.since > 1:
        raise JobError(
            f"{happened}; it may have begun at step {error.since:,}, and no checkpoint from before is left to go back "
            "to. Begin anew with a lower training.schedule.peak_rate or more warmup_steps"
        ) from None
    prune(folder, good)  # first: a kill in between leads back here
    found = load_latest(folder)
    step = 0 if found is None else int(found[1].state["progress"]["step"])
    recovery = before.next(step, settings.on_divergence, half_precision=trainer.passes.half)
    if found is not None:
        amend(found[0], {"recovery": asdict(recovery)})
    where = f"back to step {step:,}" if found is not None else "the run begins anew"
    say(f"{happened}; {where}, and on from there {recovery} ({recovery.attempts} of at most {settings.guard.attempts})")
    return recovery


def note(trainer: Trainer, step: int, place: str) -> None:
    """Leave a record in the metrics, where a trainer has gone back to: from which step, and why."""
    log = next(each for each in trainer.listeners if isinstance(each, MetricsLog))
    recovery = trainer.recovery
    log.write(
        trainer,
        "divergence",
        {
            "diverged_at": step,
            "place": place,
            "attempt": recovery.attempts,
            "rate_factor": recovery.rate,
            "full_precision": recovery.full_precision,
        },
    )
