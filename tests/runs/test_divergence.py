"""Runs that diverge: they stop, or go back and on from there, and remember that they did."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.errors import JobError
from regard.model import store
from regard.recipes import merge
from regard.runs import run
from regard.runs.tasks import resolve
from regard.training.checkpoint import checkpoints, load_checkpoint, load_latest
from regard.training.guard import DivergenceError
from regard.training.terminal import TerminalView
from regard.training.trainer import StepReport, Trainer
from runs.small_runs import Killed, Recipe, recipe

WEIGHT = "decoder.0.feed_forward.expand.weight"


class Spoiler(TerminalView):
    """Makes a run diverge: after a step a weight is infinite, as long as the run has not gone back so often."""

    def __init__(self, after: int, times: int = 1, kill: int | None = None, weight: str = WEIGHT) -> None:
        super().__init__(Console(quiet=True))
        self.after, self.times, self.kill, self.weight = after, times, kill, weight
        self.rates: dict[int, float] = {}

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step == self.kill and trainer.recovery.attempts == self.times:
            raise Killed
        self.rates[report.step] = report.rate
        if report.step == self.after and trainer.recovery.attempts < self.times:
            with torch.no_grad():
                trainer.model.get_parameter(self.weight)[0, 0] = math.inf


@pytest.fixture
def values(tmp_path: Path) -> Recipe:
    """Twelve steps with a checkpoint at every fourth, and nothing translated."""
    made = recipe(tmp_path, "translation")
    del made["data"]["test"]
    return merge(made, {"validation": {"metric": "loss", "sentences": 0, "samples": 0}})


def carry_out(directory: Path, values: Recipe, view: TerminalView, **training: Any) -> list[str]:
    said: list[str] = []
    run.train(directory, resolve(merge(values, {"training": training}), "recipe"), view, said.append)
    return said


def records(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def last_state(directory: Path) -> dict[str, Any]:
    found = load_latest(directory / "checkpoints")
    assert found is not None
    return found[1].state


def test_without_a_word_it_stops_and_says_where(tmp_path: Path, values: Recipe) -> None:
    with pytest.raises(DivergenceError, match=rf"^step 6: .*the weight {WEIGHT} \(layer 1 of the decoder\) \(inf\)"):
        carry_out(tmp_path / "run", values, Spoiler(5))
    assert list(checkpoints(tmp_path / "run" / "checkpoints")) == [4]
    assert not (tmp_path / "run" / "model").exists()


def test_it_goes_back_and_on_at_half_the_rate(tmp_path: Path, values: Recipe) -> None:
    directory = tmp_path / "run"
    view, plain = Spoiler(5), Spoiler(99)
    carry_out(tmp_path / "plain", values, plain)
    said = carry_out(directory, values, view, on_divergence="lower-rate")
    (line,) = [line for line in said if "back to" in line]
    assert line.startswith("step 6: the loss is nan")
    assert line.endswith("; back to step 4, and on from there at 0.5 of the rate (1 of at most 5)")
    assert view.rates == {step: rate / (1 if step <= 4 else 2) for step, rate in plain.rates.items()}
    (record,) = records(directory, "divergence")
    assert {key: record[key] for key in ("step", "diverged_at", "attempt", "rate_factor", "full_precision")} == {
        "step": 4,
        "diverged_at": 6,
        "attempt": 1,
        "rate_factor": 0.5,
        "full_precision": False,
    }
    assert record["place"].startswith(f"the weight {WEIGHT}")
    state = last_state(directory)
    assert state["recovery"] == {"attempts": 1, "rate": 0.5, "full_precision": False, "step": 4}
    assert state["progress"]["step"] == 12
    weights = store.parameters(store.read(directory / "model"))
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())
    # The data is that of the checkpoint: the same batches, in their order.
    assert state["progress"]["source_tokens"] == last_state(tmp_path / "plain")["progress"]["source_tokens"]


def test_the_rate_is_lowered_each_time_and_the_attempts_are_counted(tmp_path: Path, values: Recipe) -> None:
    directory = tmp_path / "run"
    view = Spoiler(6, times=3)
    said = carry_out(directory, values, view, on_divergence="lower-rate")
    assert [line.rpartition(" there ")[2] for line in said if "back to" in line] == [
        f"at {rate} of the rate ({attempt} of at most 5)" for attempt, rate in enumerate((0.5, 0.25, 0.125), 1)
    ]
    assert last_state(directory)["recovery"]["rate"] == 0.125
    assert [record["attempt"] for record in records(directory, "divergence")] == [1, 2, 3]
    with pytest.raises(JobError, match=r"^step 7: .*has gone back 2 times, as often as training\.guard\.attempts"):
        carry_out(tmp_path / "few", values, Spoiler(6, times=9), on_divergence="lower-rate", guard={"attempts": 2})


def test_where_there_is_no_checkpoint_it_begins_anew(tmp_path: Path, values: Recipe) -> None:
    """As a run does that has half the rate from the beginning."""
    directory = tmp_path / "run"
    said = carry_out(directory, values, Spoiler(2), on_divergence="lower-rate")
    assert any("the run begins anew, and on from there at 0.5 of the rate" in line for line in said)
    schedule = values["training"]["schedule"]
    half = merge(values, {"training": {"schedule": schedule | {"peak_rate": schedule["peak_rate"] / 2}}})
    carry_out(tmp_path / "half", half, Spoiler(99))
    one, other = (load_checkpoint(tmp_path / name / "checkpoints" / "step-12") for name in ("run", "half"))
    assert all(torch.equal(one.model[name], tensor) for name, tensor in other.model.items())
    assert last_state(directory)["recovery"] == {"attempts": 1, "rate": 0.5, "full_precision": False, "step": 0}


@pytest.mark.parametrize(("spoil", "kill"), [(5, 5), (5, 7), (5, 9), (9, 9), (9, 10), (2, 5)])
def test_a_run_that_went_back_and_was_killed_goes_on_bit_for_bit(
    tmp_path: Path, values: Recipe, spoil: int, kill: int
) -> None:
    """Also where the kill comes before any checkpoint of the time after."""
    values = merge(values, {"model": {"dropout": 0.2}, "training": {"on_divergence": "lower-rate"}})
    carry_out(tmp_path / "straight", values, Spoiler(spoil))
    directory = tmp_path / "run"
    with pytest.raises(Killed):
        carry_out(directory, values, Spoiler(spoil, kill=kill))
    said = carry_out(directory, values, Spoiler(spoil))
    step = (kill - 1) // 4 * 4
    path = directory / "checkpoints" / f"step-{step}"
    if step:
        assert f"going on from step {step} ({path}), at 0.5 of the rate as it has diverged before" in said
    one, other = (load_checkpoint(tmp_path / name / "checkpoints" / "step-12") for name in ("run", "straight"))
    assert one.model.keys() == other.model.keys()
    for name, tensor in (other.model | other.optimizer).items():
        assert torch.equal((one.model | one.optimizer)[name], tensor), name
    assert one.state["recovery"] == other.state["recovery"]
    assert [record["diverged_at"] for record in records(directory, "divergence")] == [spoil + 1]


def test_full_precision_first_and_a_lower_rate_if_that_does_not_help(tmp_path: Path, values: Recipe) -> None:
    directory = tmp_path / "run"
    said = carry_out(directory, values, Spoiler(5, times=2), on_divergence="full-precision", precision="bfloat16")
    assert [line.rpartition(" there ")[2] for line in said if "back to" in line] == [
        "in float32 (1 of at most 5)",
        "in float32 and at 0.5 of the rate (2 of at most 5)",
    ]
    assert last_state(directory)["recovery"] == {"attempts": 2, "rate": 0.5, "full_precision": True, "step": 4}


def test_a_model_that_diverges_by_its_rate_is_saved_by_a_lower_one(tmp_path: Path, values: Recipe) -> None:
    """Not injected: at this rate variances are beyond float32 after a step, at a lower one they are not.

    It learns nothing at any of these rates, so that a rise of the loss is no reason to go back. Without checkpoints on
    the way it begins anew each time: weights that are near the end of what is finite do not shrink at a lower rate.
    """
    values = merge(values, {"validation": {"every": 12}})
    schedule = {"kind": "constant", "peak_rate": 1e6, "warmup_steps": 1}
    with pytest.raises(DivergenceError, match=r"^step \d+: the loss is (nan|inf)"):
        carry_out(tmp_path / "stop", values, Spoiler(99), schedule=schedule)
    directory = tmp_path / "lower"
    settings = {"schedule": schedule, "on_divergence": "lower-rate", "guard": {"rise": None, "attempts": 8}}
    said = carry_out(directory, values, Spoiler(99), **settings)
    assert 1 <= sum("on from there at" in line for line in said) <= 8
    assert last_state(directory)["progress"]["step"] == 12
    assert last_state(directory)["recovery"]["rate"] < 1
    assert all(bool(torch.isfinite(weight).all()) for weight in store.read(directory / "model").parameters())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_ends_in_finite_numbers(tmp_path: Path, values: Recipe, precision: str) -> None:
    directory = tmp_path / "run"
    carry_out(directory, values, Spoiler(99), precision=precision)
    weights = store.parameters(store.read(directory / "model"))
    assert all(weight.dtype == torch.float32 and bool(torch.isfinite(weight).all()) for weight in weights.values())
    assert bool(last_state(directory)["scaler"]) == (precision == "float16")
    losses = [record["loss"] for record in records(directory, "training")]
    assert all(map(math.isfinite, losses))


def test_an_explosion_leads_back_to_before_it_began(tmp_path: Path, values: Recipe) -> None:
    """Checkpoints of the time between, whose numbers are finite, are not gone back to."""

    class Exploder(Spoiler):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 17 and not trainer.recovery.attempts:
                with torch.no_grad():
                    trainer.model.get_parameter("decoder.0.feed_forward_residual.norm.weight").mul_(100)

    directory = tmp_path / "run"
    said = carry_out(
        directory,
        merge(values, {"checkpoints": {"every": 1, "keep_last": 30}}),
        Exploder(99),
        on_divergence="lower-rate",
        steps=40,
        guard={"window": 8, "rise": 0.5},
    )
    (line,) = [line for line in said if "back to" in line]
    assert "the loss has exploded: half of the last 8 steps had more than" in line
    (record,) = records(directory, "divergence")
    assert 20 <= record["diverged_at"] <= 24
    assert 13 <= record["step"] <= 16
    assert last_state(directory)["recovery"]["step"] == record["step"]
    assert last_state(directory)["progress"]["step"] == 40


def test_a_model_that_is_not_finite_is_not_exported(
    tmp_path: Path, values: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose checkpoints an older release wrote; where others are left, one of them is the best."""
    directory = tmp_path / "run"
    alone = merge(values, {"checkpoints": {"keep_last": 1, "keep_best": 0}})
    monkeypatch.setattr("regard.training.checkpoint.refuse_not_finite", lambda tensors, step: None)
    with pytest.raises(JobError, match=r"^step 12: .*expand\.weight holds inf after this step; nothing was saved"):
        carry_out(directory, alone, Spoiler(12, times=9))
    assert not (directory / "model").exists()


def test_where_no_good_checkpoint_is_left_that_is_said(tmp_path: Path, values: Recipe) -> None:
    class Exploder(Spoiler):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 17:
                with torch.no_grad():
                    trainer.model.get_parameter("decoder.0.feed_forward_residual.norm.weight").mul_(100)

    few = merge(values, {"checkpoints": {"every": 1, "keep_last": 1, "keep_best": 0}})
    with pytest.raises(JobError, match=r"no checkpoint from before is left"):
        carry_out(
            tmp_path / "run",
            few,
            Exploder(99),
            on_divergence="lower-rate",
            steps=40,
            guard={"window": 8, "rise": 0.5},
        )
    assert len(checkpoints(tmp_path / "run" / "checkpoints")) == 1, "for the user to decide"
