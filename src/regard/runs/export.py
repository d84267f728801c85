"""The end of a run: the best weights as a model directory, measured, with a card that says what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from regard.errors import JobError
from regard.model import adapters, store
from regard.pipelines import write_directory
from regard.runs.card import Outcome, card
from regard.runs.task import Task
from regard.text.lines import write_lines
from regard.training.checkpoint import Checkpoint, average, checkpoints, load_checkpoint
from regard.training.guard import refuse_not_finite
from regard.training.keeping import CheckpointKeeper
from regard.training.trainer import Trainer
from regard.training.validation import Validation, better


@dataclass(frozen=True)
class Candidate:
    """Weights that might be the final ones."""

    name: str
    weights: dict[str, Tensor]


def export(task: Task, trainer: Trainer) -> dict[str, float]:
    """Choose the final weights by validation, write `model` into the run's directory, and score it on the test text.

    The candidates are the best checkpoint and the average of the last ones (section 6.1). Adapters become part of the
    weights, and are also written by themselves. Returns the scores by name.

    Raises:
        JobError: there is no usable checkpoint, or a weight is not finite.
    """
    run = task.run
    chosen, validation = _choose(task, trainer)
    run.say(f"the model: {chosen}")
    model = store.unwrap(trainer.model).eval()
    refuse_not_finite(store.parameters(model).items(), trainer.progress.step)
    if run.settings.adapters is not None:
        adapters.save(run.directory / "adapters", adapters.adapters(model, run.settings.adapters))
        adapters.merge(model)
    scores = task.test(model)
    for score in scores:
        run.say(f"test: {score.name} {score.value:.1f}" + f" ({score.signature})" * bool(score.signature))
    outcome = Outcome(chosen, validation, scores, trainer.progress)
    directory = run.directory / "model"
    write_directory(directory, task.pipeline(model), card(task, model, outcome))
    result = {"validation": validation, "test": {score.name: score.value for score in scores}}
    write_lines(run.directory / "result.json", [json.dumps(result)])
    run.say(f"written to {directory}; use it with: {task.command.replace('MODEL', str(directory))}")
    return result["test"] or validation


def _choose(task: Task, trainer: Trainer) -> tuple[str, dict[str, float]]:
    """Load into the trainer's model the candidate that validates best; return its name and scores."""
    metric = task.run.settings.validation.metric
    validation = Validation(task.run.settings.validation, task.dev, task.measure)
    best: Candidate | None = None
    best_scores: dict[str, float] = {}
    for candidate in _candidates(task, trainer):
        store.assign(trainer.model, candidate.weights, candidate.name)
        scores = validation.scores(trainer)
        if best is None or better(metric, scores[metric], best_scores.get(metric)):
            best, best_scores = candidate, scores
    if best is None:
        raise JobError(f"{task.run.directory}: has no usable checkpoint to make a model from")
    store.assign(trainer.model, best.weights, best.name)
    return best.name, best_scores


def _candidates(task: Task, trainer: Trainer) -> Iterator[Candidate]:
    """The best checkpoint, or without validation scores the last one, and the average of the last ones."""
    keeper = next(each for each in trainer.listeners if isinstance(each, CheckpointKeeper))
    keeper.prune(trainer.progress.step)  # as after the last save, should a kill have come between
    paths = checkpoints(task.run.directory / "checkpoints")
    for step in [step for step in keeper.best() if step in paths] or list(paths)[-1:]:
        yield _validated(step, load_checkpoint(paths[step]))
    last = list(paths.values())[-task.run.settings.checkpoints.keep_last :]
    if len(last) > 1:
        yield Candidate(f"the average of the last {len(last)} checkpoints", average(last))


def _validated(step: int, checkpoint: Checkpoint) -> Candidate:
    """What was validated at a step: the moving average of the weights, where there is one."""
    averages = checkpoint.averages
    what = "the moving average of the weights, " * bool(averages)
    return Candidate(f"step {step:,}, {what}the best by validation", checkpoint.model | averages)
