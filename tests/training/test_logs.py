"""What a run leaves to read, and what it shows."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.data.batches import Batches
from regard.errors import JobError
from regard.training.checkpoint import load_latest
from regard.training.keeping import CheckpointKeeper, CheckpointSettings
from regard.training.logs import Averages, MetricsLog
from regard.training.terminal import TerminalView, duration
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import Validation, ValidationSettings

MakeTrainer = Callable[..., Trainer]


def report(step: int, loss: float, tokens: int, seconds: float = 1.0) -> StepReport:
    return StepReport(step, loss, loss / 2, 3.0, 0.1 * step, 7, tokens, seconds)


def records(folder: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (folder / "metrics.jsonl").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_averages_weigh_by_tokens() -> None:
    averages = Averages()
    averages.add(report(1, loss=2.0, tokens=10))
    averages.add(report(2, loss=4.0, tokens=30, seconds=3.0))
    found = averages.take()
    assert found["loss"] == pytest.approx(3.5)
    assert found["perplexity"] == pytest.approx(math.exp(1.75))
    assert found["target_tokens_per_second"] == pytest.approx(10.0)
    assert (found["rate"], found["gradient_norm"]) == (pytest.approx(0.2), 3.0)
    averages.add(report(3, loss=1.0, tokens=5))
    assert averages.take()["loss"] == 1.0


def test_training_and_validation_are_logged(make_trainer: MakeTrainer, batches: Batches, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, every=3)
    make_trainer([log, Validation(ValidationSettings(every=5), batches)], steps=8).train()
    found = records(tmp_path)
    assert [(record["kind"], record["step"]) for record in found] == [
        ("training", 3),
        ("validation", 5),
        ("training", 6),
        ("training", 8),
        ("validation", 8),
    ]
    assert set(found[0]) == {
        "kind", "step", "epoch", "seconds", "loss", "perplexity", "gradient_norm", "rate", "target_tokens_per_second",
    }  # fmt: skip
    assert set(found[1]) == {"kind", "step", "epoch", "seconds", "loss", "perplexity"}
    assert list((tmp_path / "tensorboard").iterdir())


def test_values_that_are_no_numbers_are_null(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    class Undefined(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            trainer.announce({"loss": math.nan, "bleu": math.inf, "chrf": 1.5})

    make_trainer([MetricsLog(tmp_path, every=9), Undefined()], steps=1).train()
    (validation,) = (record for record in records(tmp_path) if record["kind"] == "validation")
    assert (validation["loss"], validation["bleu"], validation["chrf"]) == (None, None, 1.5)


def test_a_resumed_run_takes_back_what_was_written_beyond_its_step(
    make_trainer: MakeTrainer, tmp_path: Path, folder: Path
) -> None:
    """A run saved at step 4 and killed at step 7, in the middle of a line."""

    def listeners() -> list[Listening]:
        return [MetricsLog(tmp_path, every=1), CheckpointKeeper(folder, CheckpointSettings(every=4), "loss")]

    class Kill(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer([*listeners(), Kill()], steps=9).train()
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'[]\n{"other": 1}\n{"kind": "train\0\xff')
    trainer = make_trainer([*listeners(), Listening()], steps=9)
    found = load_latest(folder)
    assert found
    trainer.resume(found[1], str(found[0]))
    trainer.train()
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_full_disk_is_a_failed_job(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_path = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(JobError, match=r"metrics\.jsonl: cannot be written: No space left"):
        make_trainer([MetricsLog(tmp_path, every=1)], steps=1).train()


def test_without_a_terminal_there_are_plain_lines(make_trainer: MakeTrainer, batches: Batches) -> None:
    text = io.StringIO()
    view = TerminalView(Console(file=text, force_terminal=False, width=40))
    make_trainer([view, Validation(ValidationSettings(every=2), batches)], steps=3).train()
    lines = text.getvalue().split("\n")
    assert [line.split(" · ")[:2] for line in lines[:-1]] == [
        ["step 2", "validation"],
        ["step 3/3", "epoch 1"],
        ["step 3", "validation"],
    ]
    assert "\x1b" not in text.getvalue()
    assert lines[1].endswith("0:00 left")


def test_in_a_terminal_the_line_is_live_and_goes_away(make_trainer: MakeTrainer) -> None:
    text = io.StringIO()
    make_trainer([TerminalView(Console(file=text, force_terminal=True, width=200))], steps=2).train()
    assert "step 2/2" in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "25:01:01")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
