"""Steps done again must give what the run gave; what differs is found and named, and nothing is written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.errors import JobError, UserError
from regard.runs.run import load_settings
from regard.runs.verify import verify
from regard.training import trainer as trainer_module
from regard.training.checkpoint import Checkpoint, load_checkpoint, restore, save_checkpoint
from runs.small_runs import carry_out, recipe

TASKS = ("translation", "language-model", "masked-language-model", "text-classification", "token-classification")


def checked(directory: Path, steps: int, **overrides: Any) -> list[str]:
    said: list[str] = []
    verify(directory, load_settings(directory, overrides), steps, said.append)
    return said


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with checkpoints after 4, 8 and 12, every kind of dropout in it."""
    folder = tmp_path_factory.mktemp("finished")
    values = recipe(folder, "language-model")
    values["model"] |= {"attention_dropout": 0.1, "activation_dropout": 0.1, "layer_dropout": 0.3}
    carry_out(folder / "run", values, validation={"patience": 50})
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    directory = tmp_path / "run"
    for name, (_, data) in contents(finished).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if not (finished / name).is_dir():
            (directory / name).write_bytes(data)
    return directory


@pytest.mark.parametrize(("task", "precision"), [*((task, "float32") for task in TASKS), (TASKS[1], "bfloat16")])
def test_a_run_of_any_task_is_met_again(tmp_path: Path, task: str, precision: str) -> None:
    """Killed in the middle of an epoch, with two batches a step."""
    values = recipe(tmp_path, task)
    values["model"] |= {"attention_dropout": 0.1, "layer_dropout": 0.2}
    if task == "translation":
        values["search"] = {"beam": 1, "extra_tokens": 2}
    directory = tmp_path / "run"
    with pytest.raises(BaseException, match=r"^$"):
        carry_out(directory, values, kill=10, training={"precision": precision}, checkpoints={"every": 3})
    before = contents(directory)
    past = checked(directory, 7)
    assert contents(directory) == before
    assert past[-1] == "identical: steps 4 to 9 again gave what the run wrote"
    assert [line.partition(" · ")[0] for line in past[1:-1]] == [f"step {step}" for step in range(4, 10)]
    assert [line.rpartition("/")[2] for line in past if "identical to" in line] == [
        "step-4",
        "step-6",
        "step-8",
        "step-9",
    ]


def test_the_next_steps_are_done_twice_where_no_checkpoint_is_near(run: Path) -> None:
    said = checked(run, 3)
    assert "step-8" in said[0]
    once, again = said[1:4], said[5:8]
    assert [line + " · identical" for line in once] == again
    assert len({line.rpartition(" ")[2] for line in once}) == 3
    assert "stopped after step 9" in said[4]
    assert said[8] == "identical: steps 9 to 11 gave the same twice"


def test_the_same_step_has_the_same_hash_either_way(run: Path) -> None:
    ahead, past = ({line for line in checked(run, steps) if line.startswith("step 9 ·")} for steps in (1, 4))
    assert {line.removesuffix(" · identical") for line in ahead} == past


def test_a_run_that_may_go_on_is_verified_ahead_but_not_beyond_its_end(run: Path) -> None:
    said = checked(run, 3, training={"steps": 14})
    assert [line.split(" · ")[0] for line in said if line.startswith("step ")] == ["step 13", "step 14"] * 2


def test_a_run_that_was_stopped_early_goes_on_for_this(tmp_path: Path) -> None:
    carry_out(tmp_path / "run", recipe(tmp_path, "language-model"), validation={"patience": 1, "every": 2},
              training={"schedule": {"peak_rate": 1e-12}, "steps": 30})  # fmt: skip
    steps = max(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert steps < 30
    assert f"step {steps + 1}" in checked(tmp_path / "run", 1)[1]


def put(run: Path, step: int, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Another checkpoint in place of one, whole by its checksums."""
    checkpoint = change(load_checkpoint(run / "checkpoints" / f"step-{step}"))
    state = {name: value for name, value in checkpoint.state.items() if name != "version"}
    save_checkpoint(run / "checkpoints", step, replace(checkpoint, state=state))


BIAS = "decoder.0.feed_forward.contract.bias"


def in_bias(by: float) -> Callable[[Checkpoint], Checkpoint]:
    return lambda saved: replace(saved, model=saved.model | {BIAS: saved.model[BIAS] + by})


def in_optimizer(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Checkpoint], Checkpoint]:
    return lambda saved: replace(saved, optimizer=saved.optimizer | {name: change(saved.optimizer[name])})


def in_progress(**changes: int) -> Callable[[Checkpoint], Checkpoint]:
    return lambda saved: replace(saved, state=saved.state | {"progress": saved.state["progress"] | changes})


@pytest.mark.parametrize(
    ("step", "change", "message"),
    [
        (12, in_bias(0.25), rf"step 12: {BIAS} is not.* is 0.25, in {BIAS}"),
        (8, in_bias(0.25), rf"step 8: {BIAS} is not what the run wrote in .*8"),
        (12, in_optimizer(f"exp_avg_sq.{BIAS}", lambda old: old + 2.0), rf"12: exp_avg_sq.{BIAS} is not.* is 2, in"),
        (12, in_optimizer("random.cpu", lambda old: old.flip(0)), r"step 12: random.cpu is not"),
        (12, in_progress(batch=77), r"step 12: progress.batch is not"),
        (4, in_optimizer("random.cpu", lambda _: torch.get_rng_state()), r"step 8: .* is not .*largest difference is"),
        (4, in_progress(epoch=7), r"step 8: .* is not .*largest difference is"),
    ],
)  # fmt: skip
def test_whatever_differs_is_named(
    run: Path, step: int, change: Callable[[Checkpoint], Checkpoint], message: str
) -> None:
    put(run, step, change)
    with pytest.raises(JobError, match=message):
        checked(run, 8)


def test_the_time_that_steps_took_is_no_difference(run: Path) -> None:
    put(run, 12, in_progress(seconds=10**6))
    assert checked(run, 8)[-1].startswith("identical")


def forgetful(*forgotten: str) -> Callable[..., None]:
    """A resume that forgets a part of the optimizer's file."""

    def resume(checkpoint: Checkpoint, *rest: Any) -> None:
        kept = {
            name: torch.get_rng_state() if name == "random.cpu" and name in forgotten else tensor
            for name, tensor in checkpoint.optimizer.items()
            if name == "random.cpu" or not name.startswith(forgotten)
        }
        restore(replace(checkpoint, optimizer=kept), *rest)

    return resume


@pytest.mark.parametrize(
    "forgotten", [("random.cpu",), ("exp_avg.", "exp_avg_sq.", "step.")], ids=["random", "moments"]
)
@pytest.mark.parametrize("steps", [3, 8])
def test_a_resume_that_forgets_something_is_found_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, forgotten: tuple[str, ...], steps: int
) -> None:
    """Also by the steps done twice, as one of them is stopped in the middle."""
    monkeypatch.setattr(trainer_module, "restore", forgetful(*forgotten))
    with pytest.raises(JobError, match=r"step \d+: .* (differs|is not).*largest difference.* is \d"):
        checked(run, steps)


def test_steps_that_chance_decides_are_found_out_after_the_first(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    step = trainer_module.Trainer.step

    def noisy(self: trainer_module.Trainer, window: Any) -> Any:
        report = step(self, window)
        if report.step >= 10:
            with torch.no_grad():
                next(self.model.parameters()).add_(1e-3 * torch.rand((), generator=chance))
        return report

    monkeypatch.setattr(trainer_module.Trainer, "step", noisy)
    with pytest.raises(JobError, match=r"^step 10: .* differs \(losses .*\); the largest difference after step 11 is"):
        checked(run, 3)


def test_several_threads_are_named_as_a_cause(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(run, 12, in_bias(0.25))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(
        JobError, match=r"2 threads may add sums in another order each time: a run with --training\.threads 1"
    ):
        checked(run, 8)


def test_what_cannot_be_verified(run: Path, tmp_path: Path) -> None:
    first = os.open(run, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="run: another process is training here"):
        checked(run, 3)
    os.close(first)
    for step in (4, 8):
        (run / "checkpoints" / f"step-{step}").rename(tmp_path / f"step-{step}")
    with pytest.raises(UserError, match=r"run: has ended with one checkpoint.*a higher --training.steps"):
        checked(run, 3)
    (run / "checkpoints" / "step-12").rename(tmp_path / "step-12")
    with pytest.raises(UserError, match="run: has no checkpoint yet"):
        checked(run, 3)


def status(*arguments: str | Path) -> Any:
    with pytest.raises(SystemExit) as stop:
        main(["train", *map(str, arguments)])
    return stop.value.code


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--resume", run, "--verify-resume", "4") == 0
    assert capsys.readouterr().out.endswith("identical: steps 9 to 12 again gave what the run wrote\n")
    put(run, 12, in_bias(0.25))
    assert status("--verify-resume", "4", "--resume", run) == 1
    assert f"regard: step 12: {BIAS} is not" in capsys.readouterr().err
    for wrong in (("--resume", run, "--verify-resume", "0"), ("--verify-resume", "4", "--source", "a", "--out", "b")):
        assert status(*wrong) == 2
        assert "--resume RUN --verify-resume 20" in capsys.readouterr().err
