"""Which checkpoints are kept, what is best, and when to stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regard.training.checkpoint import checkpoints, load_latest
from regard.training.keeping import CheckpointKeeper, CheckpointSettings
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import EarlyStopping, Metric, better

MakeTrainer = Callable[..., Trainer]


class Scripted(Listening):
    """Announces given scores, one at each validation, `every` so many steps."""

    def __init__(self, metric: Metric, scores: Sequence[float], every: int = 1) -> None:
        self.metric, self.scores, self.every = metric, scores, every

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        number, rest = divmod(report.step, self.every)
        if not rest and number <= len(self.scores):
            trainer.announce({self.metric: self.scores[number - 1]})


def keep(
    make_trainer: MakeTrainer, folder: Path, metric: Metric, scores: Sequence[float], **settings: int
) -> list[int]:
    """Train with a validation at each step and say which steps' checkpoints are there at the end."""
    keeper = CheckpointKeeper(folder, CheckpointSettings.model_validate(settings), metric)
    make_trainer([Scripted(metric, scores), keeper], steps=len(scores)).train()
    return list(checkpoints(folder))


@pytest.mark.parametrize(
    ("metric", "scores", "kept"),
    [
        ("bleu", [2, 6, 4, 0], [2, 3]),
        ("chrf", [2, 6, 4, 0], [2, 3]),
        ("accuracy", [2, 6, 4, 0], [2, 3]),
        ("macro_f1", [2, 6, 4, 0], [2, 3]),
        ("loss", [2, 6, 4, 9], [1, 3]),
        ("bleu", [math.nan, 6, math.nan, 4, 0], [2, 4]),
        ("loss", [math.nan, 6, math.nan, 4, 9], [2, 4]),
        ("loss", [-math.inf, 6, 4, math.inf], [2, 3]),
        ("bleu", [5, 5, 5, 5], [3, 4]),
        ("bleu", [1, 2, 3, 4, 0], [3, 4]),
        ("loss", [1, 2, 3, 4, 5], [1, 2]),
    ],
)
def test_the_best_two_are_kept_beside_the_last(
    make_trainer: MakeTrainer, folder: Path, metric: Metric, scores: list[float], kept: list[int]
) -> None:
    last = len(scores)
    assert keep(make_trainer, folder, metric, scores, keep_best=2, keep_last=1) == sorted({*kept, last})


def test_the_second_best_is_kept_though_it_never_was_a_record(make_trainer: MakeTrainer, folder: Path) -> None:
    assert keep(make_trainer, folder, "bleu", [9, 1, 8, 2, 3], keep_best=2, keep_last=1) == [1, 3, 5]


def test_the_last_ones_are_kept_and_none_of_the_best_when_none_is_asked_for(
    make_trainer: MakeTrainer, folder: Path
) -> None:
    assert keep(make_trainer, folder, "bleu", [9, 1, 8, 2, 3], keep_best=0, keep_last=3) == [3, 4, 5]


def test_best_is_sorted_by_quality(folder: Path) -> None:
    keeper = CheckpointKeeper(folder, CheckpointSettings(keep_best=9), "loss")
    keeper.scores = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.0}
    assert keeper.best() == [4, 2, 3, 1]


def test_checkpoints_are_written_at_intervals_validations_and_the_end(
    make_trainer: MakeTrainer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    keeper = CheckpointKeeper(folder, CheckpointSettings(every=3, keep_last=99), "bleu")
    save = keeper.save
    monkeypatch.setattr(keeper, "save", lambda trainer: saved.append(trainer.progress.step) or save(trainer))
    make_trainer([Scripted("bleu", [1, math.nan], every=4), keeper], steps=11).train()
    assert saved == [3, 4, 6, 8, 9, 11]
    assert list(checkpoints(folder)) == saved


def test_a_score_is_in_the_checkpoint_of_its_own_step(make_trainer: MakeTrainer, folder: Path) -> None:
    keep(make_trainer, folder, "bleu", [3, 5])
    for step, path in checkpoints(folder).items():
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        assert state["listeners"][-1]["scores"] == dict(list({"1": 3, "2": 5}.items())[:step])


def test_scores_that_are_no_numbers_leave_the_state_plain_json(make_trainer: MakeTrainer, folder: Path) -> None:
    keep(make_trainer, folder, "loss", [math.nan, math.inf])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in checkpoints(folder).values():
        json.loads((path / "state.json").read_text(encoding="utf-8"), parse_constant=refuse)


def resumed(make_trainer: MakeTrainer, folder: Path, listeners: list[Listening], steps: int) -> Trainer:
    trainer = make_trainer(listeners, steps=steps)
    found = load_latest(folder)
    assert found
    trainer.resume(found[1], str(found[0]))
    trainer.train()
    return trainer


def test_the_best_is_remembered_across_a_resume(make_trainer: MakeTrainer, folder: Path) -> None:
    keep(make_trainer, folder, "bleu", [2, 6, 4], keep_best=1, keep_last=1)
    keeper = CheckpointKeeper(folder, CheckpointSettings(keep_best=1, keep_last=1), "bleu")
    resumed(make_trainer, folder, [Scripted("bleu", [0, 0, 0, 5, 3]), keeper], 5)
    assert keeper.best() == [2]
    assert list(checkpoints(folder)) == [2, 5]


def test_scores_by_another_metric_do_not_compare(make_trainer: MakeTrainer, folder: Path) -> None:
    """BLEU 2, 6, 4, then the metric is the loss: 1.5 and 1.7. The loss of BLEU 2 would be the worst of all."""
    keep(make_trainer, folder, "bleu", [2, 6, 0.4], keep_best=1, keep_last=1)
    keeper = CheckpointKeeper(folder, CheckpointSettings(keep_best=1, keep_last=1), "loss")
    resumed(make_trainer, folder, [Scripted("loss", [0, 0, 0, 1.5, 1.7]), keeper], 5)
    assert keeper.best() == [4]
    assert list(checkpoints(folder)) == [4, 5]


def test_damaged_newer_checkpoints_do_not_take_the_places_of_good_ones(make_trainer: MakeTrainer, folder: Path) -> None:
    keep(make_trainer, folder, "bleu", [1, 2, 3, 4, 5], keep_best=0, keep_last=5)
    for step in (4, 5):
        (folder / f"step-{step}" / "model.safetensors").write_bytes(b"")
    keeper = CheckpointKeeper(folder, CheckpointSettings(keep_best=0, keep_last=2, every=1), "bleu")

    class Pause(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            trainer.stop("pause")

    resumed(make_trainer, folder, [Pause(), keeper], 9)
    assert list(checkpoints(folder)) == [3, 4]
    found = load_latest(folder)
    assert found
    assert found[0].name == "step-4"


SCHEDULES = [
    {"kind": "paper", "warmup_steps": 4},
    *(
        {"kind": kind, "peak_rate": 1e-3, "warmup_steps": 4}
        for kind in ("inverse-sqrt", "cosine", "linear", "constant")
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["kind"])
def test_it_stops_after_two_validations_without_gain_under_every_schedule(
    make_trainer: MakeTrainer, schedule: dict[str, object]
) -> None:
    trainer = make_trainer(
        [Scripted("loss", [5, 4, 4.1, 4.2, 3]), EarlyStopping("loss", patience=2)], schedule=schedule
    )
    trainer.train()
    assert trainer.progress.step == 4
    assert trainer.stop_reason == "loss did not improve in 2 validations (best 4.00)"


@pytest.mark.parametrize(
    ("metric", "scores", "patience", "end"),
    [
        ("bleu", [1, 2, 1.9, 1.8, 3], 2, 4),
        ("loss", [1, 2, 1.9, 1.8, 3], 2, 3),
        ("loss", [5, 4, 4.1, 3.9, 4.1, 4.2, 9], 2, 6),
        ("loss", [5, 5, 5], 2, 3),
        ("bleu", [5, 5, 5], 2, 3),
        ("loss", [math.nan, math.nan, 1], 2, 2),
        ("loss", [4, math.nan, 5, 1], 2, 3),
        ("bleu", [math.inf, 1, 2, 1, 1], 2, 5),
        ("loss", [1, 2], 1, 2),
        ("loss", [1, 2, 3, 4, 5, 6], None, 20),
    ],
)
def test_when_it_stops(
    make_trainer: MakeTrainer, metric: Metric, scores: list[float], patience: int | None, end: int
) -> None:
    trainer = make_trainer([Scripted(metric, scores), EarlyStopping(metric, patience)])
    trainer.train()
    assert trainer.progress.step == end


def stopping(folder: Path, scores: Sequence[float], patience: int = 2, metric: Metric = "loss") -> list[Listening]:
    return [
        Scripted(metric, scores),
        EarlyStopping(metric, patience),
        CheckpointKeeper(folder, CheckpointSettings(), metric),
    ]


@pytest.mark.parametrize("pause", [1, 2, 3])
def test_patience_counts_on_across_a_resume(make_trainer: MakeTrainer, folder: Path, pause: int) -> None:
    scores = [5, 4, 4.1, 4.2, 3]
    make_trainer(stopping(folder, scores), steps=pause).train()
    trainer = resumed(make_trainer, folder, stopping(folder, scores), 20)
    assert trainer.progress.step == 4


def test_a_run_that_had_stopped_stays_stopped_unless_it_may_wait_longer(
    make_trainer: MakeTrainer, folder: Path
) -> None:
    scores = [5, 4, 4.1, 4.2, 4.3, 4.4]
    make_trainer(stopping(folder, scores)).train()
    again = resumed(make_trainer, folder, stopping(folder, scores), 20)
    assert (again.progress.step, again.stop_reason) == (4, "loss did not improve in 2 validations (best 4.00)")
    patient = resumed(make_trainer, folder, stopping(folder, scores, patience=3), 20)
    assert patient.progress.step == 5


def test_patience_begins_anew_with_another_metric(make_trainer: MakeTrainer, folder: Path) -> None:
    make_trainer(stopping(folder, [5, 4, 4.1]), steps=3).train()
    trainer = resumed(make_trainer, folder, stopping(folder, [0, 0, 0, 2, 1, 0], metric="bleu"), 20)
    assert trainer.progress.step == 6


@pytest.mark.parametrize("metric", ["bleu", "chrf", "loss"])
def test_better(metric: Metric) -> None:
    up, down = (1.0, 2.0) if metric != "loss" else (2.0, 1.0)
    assert better(metric, down, up)
    assert not better(metric, up, down)
    assert not better(metric, up, up)
    assert better(metric, up, None)
    for bad in (math.nan, math.inf, -math.inf):
        assert not better(metric, bad, None)
        assert not better(metric, bad, up)


def test_of_equal_scores_the_later_checkpoint_counts(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(tmp_path, CheckpointSettings(keep_best=2), "bleu")
    keeper.scores = {10: 99.0, 20: 100.0, 30: 100.0}
    assert keeper.best() == [30, 20]
