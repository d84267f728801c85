"""What is said of a run before it is begun, and which runs are refused."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.cli import main
from regard.errors import UserError
from regard.inspection.costs import parameters_by_part
from regard.model.store import unwrap
from regard.recipes import merge
from regard.runs import fitting, footprint, memory
from regard.runs.child import OutOfMemoryError, Tell, in_child
from regard.runs.footprint import Footprint, Kept, Shape, count, kept_bytes, shape
from regard.runs.overview import overview, prepare
from regard.runs.plan import occasions, plan
from regard.runs.rehearsal import rehearse
from regard.runs.run import build_model, build_trainer
from regard.runs.task import Run, Task
from regard.runs.tasks import TASKS, resolve
from regard.text.lines import write_lines
from regard.training.terminal import TerminalView
from regard.training.trainer import Trainer
from runs.small_runs import carry_out, recipe

TEXT_TASKS = [name for name in TASKS if name != "image-classification"]


def prepared(folder: Path, values: dict[str, Any], **changes: Any) -> Task:
    settings = resolve(merge(values, changes), "recipe")
    directory = folder / "run"
    directory.mkdir(exist_ok=True)
    return prepare(Run(directory, settings, TASKS[settings.task].corpus(settings.data), lambda text: None))


def trainer_of(task: Task) -> Trainer:
    return build_trainer(task, build_model(task), TerminalView(Console(quiet=True)))


@pytest.mark.parametrize(
    "model",
    [{}, {"positions": "t5"}, {"feed_forward": "swiglu", "norm": "rms"}, {"attention_dropout": 0.1, "tie": "none"}],
)
def test_what_a_batch_keeps_is_foretold_from_two_of_its_rows(tmp_path: Path, model: dict[str, Any]) -> None:
    trainer = trainer_of(prepared(tmp_path, recipe(tmp_path, "translation"), model=model, batches={"tokens": 2000}))
    kept = count(trainer)
    largest = max(trainer.batches.epoch(0), key=lambda batch: kept.of(shape(batch)))
    assert shape(largest).rows > 20
    assert kept.of(shape(largest)) == pytest.approx(kept_bytes(trainer, largest), rel=0.1)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_memory_grows_with_the_positions_of_a_batch(tmp_path: Path, task: str) -> None:
    kept = count(trainer_of(prepared(tmp_path, recipe(tmp_path, task))))
    rows = [kept.of(Shape(rows, 20)) for rows in (1, 2, 3)]
    assert rows[2] - rows[1] == pytest.approx(rows[1] - rows[0])
    assert rows[1] - rows[0] == pytest.approx(kept.linear * 20 + kept.square * 400)
    assert kept.linear > 16 * 4  # at least the input of one layer, d_model numbers a position


def test_counting_changes_neither_weights_nor_chance(tmp_path: Path) -> None:
    trainer = trainer_of(prepared(tmp_path, recipe(tmp_path, "translation")))
    before = [weight.clone() for weight in trainer.model.parameters()]
    state = torch.get_rng_state()
    count(trainer)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_a_footprint_is_the_most_of_all_stages() -> None:
    small = Footprint(held=100, weights=40, moments=80, gradients=40, batch=10)
    assert small.peak == 100 + 2 * 80 + 40 + 4 * 40  # averaging checkpoints at the end
    assert small.least == 100 + 2 * 80 + 40 + 40  # writing one
    large = Footprint(held=100, weights=40, moments=80, gradients=40, batch=1000, spread=2.0, workspace=5)
    assert large.peak == 100 + 80 + 2000 + 5
    assert replace(large, copies=7.0).peak == large.peak + 7 * 40
    accumulated = Footprint(held=100, weights=40, moments=80, gradients=40, batch=1000, accumulates=True)
    assert accumulated.peak == 100 + 80 + 1000 + 40
    assert large.without_batch == small.peak + 5
    resumed = Footprint(held=180, weights=40, moments=80, gradients=40, batch=10, goes_on=True)
    assert (resumed.peak, resumed.least) == (small.peak, small.least)


def test_a_moving_average_and_muon_are_counted(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    plain, more = (
        footprint.footprint(trainer_of(prepared(tmp_path, values, training=training)), Kept(0, 0, 0), [Shape(1, 1)])
        for training in ({}, {"ema": 0.9, "optimizer": {"kind": "muon"}})
    )
    assert more.weights == 2 * plain.weights
    assert plain.gradients < more.moments < plain.moments == 2 * plain.gradients


def test_batches_that_cannot_fit_are_refused_with_a_size_that_does(tmp_path: Path) -> None:
    run = prepared(tmp_path, recipe(tmp_path, "translation")).run
    kept, sizes = Kept(0, 1000, 0), [Shape(10, 25.0), Shape(12, 20.0)]
    needed = Footprint(held=300_000, weights=0, moments=0, gradients=0, batch=250_000, spread=2.0)
    said = fitting.reason(run, needed, kept, sizes, limit=550_000)
    assert said.startswith("training needs about 1 MiB, and 1 MiB of memory are available")
    assert "lower batches.tokens from 256 to about 128, or take a smaller model" in said
    assert "choose a smaller model: model.d_model (16)" in fitting.reason(run, needed, kept, sizes, limit=300_000)


@pytest.mark.parametrize(("available", "fits"), [(1.01, True), (0.99, True), (0.8, False)])
def test_an_estimate_refuses_only_what_is_beyond_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: float, fits: bool
) -> None:
    task = prepared(tmp_path, recipe(tmp_path, "translation"))
    trainer = trainer_of(task)
    needed = Footprint(held=10**6, weights=0, moments=0, gradients=0, batch=10**9, spread=2.0)
    monkeypatch.setattr(fitting, "footprint", lambda *given: needed)
    monkeypatch.setattr(memory, "available", lambda device: int(available * needed.peak))
    if fits:
        assert fitting.expect(task, trainer) is needed
    else:
        with pytest.raises(UserError, match=r"lower batches\.tokens from 256"):
            fitting.expect(task, trainer)


def test_long_rows_are_named_where_they_are_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = recipe(tmp_path, "translation")
    rows = [f"a red dog {index}\tein roter Hund {index}" for index in range(60)]
    rows[41] = "dog " * 110 + "\t" + "Hund " * 90
    write_lines(tmp_path / "train.txt", rows)
    changes = {"data": {"max_length": 500}, "batches": {"tokens": 600}, "model": {"max_length": 600}}
    task = prepared(tmp_path, values, **changes)
    assert overview(task).longest[0].origin == f"{tmp_path / 'train.txt'}, line 42"
    kept = Kept(constant=0, linear=0, square=1000)
    sizes = [Shape(1, 600), *[Shape(12, 50)] * 9]
    needed = Footprint(held=0, weights=0, moments=0, gradients=0, batch=kept.of(sizes[0]))
    said = fitting.reason(task.run, needed, kept, sizes, limit=100_000_000)
    assert "lower data.max_length, or shorten the longest lines" in said
    assert f"{tmp_path / 'train.txt'}, line 42: " in said


def test_lines_that_no_batch_can_hold_are_named(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    rows = [f"a red dog {index}\teinroter Hund {index}" for index in range(60)]
    rows[41] = numbers(20) + "\tkurz genug"
    rows[50] = numbers(90) + "\t" + numbers(90)  # left out by its length
    write_lines(tmp_path / "train.txt", rows)
    changes = {
        "data": {"max_length": 120, "cleaning": {"max_ratio": 100}},
        "batches": {"tokens": 60},
        "model": {"max_length": 200},
    }
    with pytest.raises(UserError, match=r"1 of 59 pairs exceed .* longest lines: \S+train.txt, line 42: \d\d+ tokens;"):
        prepared(tmp_path, values, **changes)


def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = recipe(tmp_path, "language-model")
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    with pytest.raises(UserError, match=r"for its weights, gradients and optimizer alone.*model.decoder_layers \(1\)"):
        carry_out(tmp_path / "run", values)
    assert not (tmp_path / "run" / "checkpoints").exists()
    monkeypatch.setattr(memory, "available", lambda device: memory.held().now)
    with pytest.raises(UserError, match="training needs about"):
        carry_out(tmp_path / "run", values)
    monkeypatch.undo()
    assert any(line.startswith("memory: about") for line in carry_out(tmp_path / "run", values))


def numbers(count: int) -> str:
    return " ".join(str(index * 7919 % 100_003) for index in range(1, count))


def test_an_overview_counts_tokens_and_tells_what_was_left_out(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    rows = [f"word {index}\tWort {index}" for index in range(40)]
    rows[7], rows[19] = "\tnothing", numbers(20) + "\t" + numbers(18)
    write_lines(tmp_path / "train.txt", rows)
    task = prepared(tmp_path, values, data={"max_length": 30})
    seen = overview(prepared(tmp_path, values, data={"max_length": 30}))  # the second time nothing is prepared
    assert seen.amount == "38 pairs"
    lengths = task.lengths["source"]
    side = seen.sides["source"]
    assert (side.tokens, side.longest) == (lengths.sum(), lengths.max())
    assert side.mean == pytest.approx(lengths.mean())
    assert "left out of training: 1 pairs, empty side (first in line 8)" in seen.notes
    assert any("longer than 30 tokens (first in line" in note for note in seen.notes)
    assert [line.origin for line in seen.longest[:2]] == [f"{tmp_path / 'train.txt'}, line 20"] * 2
    assert seen.longest[0].tokens > 30


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_every_stage_of_a_run_is_rehearsed(tmp_path: Path, task: str) -> None:
    values = recipe(tmp_path, task)
    run = prepared(tmp_path, values).run
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    stages: list[str] = []
    found = rehearse(run, scratch, 0.05, stages.append, time.time())
    assert stages == ["start", "training", "validation", "checkpoints", "final model", "test"] == list(found.peaks)
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before
    assert 2 <= found.tried <= 12
    assert min(found.step, found.validation, found.checkpoint, found.final, found.test, found.target_rate) > 0
    assert found.early > 12  # so few updates teach nobody to end
    assert found.final > 2 * found.early_validation  # two candidates are validated
    assert (found.early_validation != found.validation) == (task == "translation")  # what is said is not yet as long
    assert found.validation_at(found.early) == found.validation


def test_a_run_that_goes_on_is_rehearsed_from_its_checkpoint(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    carry_out(tmp_path / "run", values)
    run = prepared(tmp_path, values, training={"steps": 20}).run
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = sorted(path for path in run.directory.rglob("*"))
    found = rehearse(run, scratch, 0.05, lambda stage: None, time.time())
    assert found.first_step == 12
    assert sorted(path for path in run.directory.rglob("*")) == before


def test_validations_and_checkpoints_are_counted(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")  # 12 steps, validated every 4
    assert occasions(resolve(values, "recipe"), 0) == ([4, 8, 12], [4, 8, 12])
    more = merge(values, {"checkpoints": {"every": 5}, "training": {"steps": 13}})
    assert occasions(resolve(more, "recipe"), 0) == ([4, 8, 12, 13], [4, 5, 8, 10, 12, 13])
    assert occasions(resolve(more, "recipe"), 8) == ([12, 13], [10, 12, 13])


def test_a_plan_leaves_the_text_for_the_run_and_nothing_else(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    directory = tmp_path / "run"
    said: list[str] = []
    made = plan(directory, resolve(values, "recipe"), parameters_by_part, said.append, seconds=0.05)
    assert {path.name for path in directory.iterdir()} == {"settings.yaml", "tokenizer.json", "data"}
    trainer = trainer_of(prepared(tmp_path, values))
    parameters = sum(weight.numel() for weight in unwrap(trainer.model).parameters())
    lines = made.lines()
    assert f"model: {parameters:,} parameters" in lines
    assert f"the prepared text stays in {directory}" in lines
    assert made.seconds["steps"] == pytest.approx(12 * made.rehearsal.step)
    assert made.seconds["validations"] == pytest.approx(3 * made.rehearsal.early_validation)
    assert "preparation" not in made.peaks
    assert 100 * 2**20 < made.peak == max(made.rehearsal.peaks.values())
    assert not any("vocabulary" in line for line in carry_out(directory, values))  # it was prepared


def test_a_plan_that_is_refused_ends_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = recipe(tmp_path, "translation")
    files = [f"--data.{part}.source={values['data'][part]['source']}" for part in ("train", "dev")]
    large = ["--model.d-model=65536", "--model.d-ff=1000000", "--model.heads=8", "--tokenizer.size=290"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--plan", *files, *large])
    assert stop.value.code == 2
    assert "choose a smaller model: model.d_model (65536)" in capsys.readouterr().err.splitlines()[-1]


def refuse(tell: Tell) -> None:
    raise UserError("no")


def die(tell: Tell) -> None:
    tell("stage", "training")
    os.kill(os.getpid(), signal.SIGKILL)


def wait(tell: Tell) -> None:
    tell("say", str(os.getpid()))
    time.sleep(600)


def test_an_interruption_ends_the_child() -> None:
    processes: list[int] = []

    def interrupted(text: str) -> None:
        processes.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_child(interrupted, wait)
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)


def test_a_child_hands_over_what_it_raised_and_a_killed_one_ran_out_of_memory() -> None:
    with pytest.raises(UserError, match="no"):
        in_child(print, refuse)
    with pytest.raises(OutOfMemoryError, match="training"):
        in_child(print, die)


@pytest.mark.parametrize(
    ("entry", "place", "names", "prefix"),
    [
        ("0::/a/b", "a/b", ("memory.max", "memory.current"), ""),
        ("4:memory:/a", "memory/a", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
    ],
)
def test_the_limit_of_a_control_group_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, place: str, names: tuple[str, str], prefix: str
) -> None:
    group = tmp_path / place
    group.mkdir(parents=True)
    for name, value in zip(names, ("1000000", "400000"), strict=True):
        (group / name).write_text(value, encoding="ascii")
    (group / "memory.stat").write_text(
        f"rss 5\n{prefix}inactive_file 70000\n{prefix}active_file 30000\n", encoding="ascii"
    )
    (group.parent / names[0]).write_text("max", encoding="ascii")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    assert memory.rooms([entry, "1:cpu:/a"]) == [700_000]


def test_sizes_are_written_for_people() -> None:
    assert memory.size(735 * 2**20) == "735 MiB"
    assert memory.size(2.25 * 2**30) == "2.2 GiB"
