"""Stopped in any way, a run goes on and ends with the weights of one that was never stopped, byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from endtoend.commands import options, regard

STEPS, EVERY = 60, 6


def train(corpus: Path, directory: Path) -> list[str | Path]:
    return ["train", *options(corpus, STEPS, EVERY), "--training.accumulate", "2", "--out", directory]


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("unbroken") / "run"
    result = regard(*train(corpus, directory))
    assert result.returncode == 0, result.stderr.decode()
    return (directory / "model" / "model.safetensors").read_bytes()


def interrupt(command: list[str | Path], directory: Path, after_step: int, number: signal.Signals) -> bytes:
    """Start a command and send a signal once the checkpoint of `after_step` stands; return what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, command)],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not (directory / "checkpoints" / f"step-{after_step}").exists():
        assert process.poll() is None, "ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    return process.communicate(timeout=120)[1]


def test_killed_twice(corpus: Path, unbroken: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for step in (6, 24):
        interrupt(train(corpus, directory), directory, step, signal.SIGKILL)
    result = regard("train", "--resume", directory)
    assert result.returncode == 0, result.stderr.decode()
    assert (directory / "model" / "model.safetensors").read_bytes() == unbroken


def test_control_c_saves_and_says_how_to_go_on(corpus: Path, unbroken: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    said = interrupt(train(corpus, directory), directory, 6, signal.SIGINT).decode()
    assert f"regard train --resume {directory}" in said
    assert "Traceback" not in said
    saved = max(int(path.name.removeprefix("step-")) for path in (directory / "checkpoints").iterdir())
    assert f"saved at step {saved}" in said
    result = regard("train", "--resume", directory)
    assert result.returncode == 0, result.stderr.decode()
    assert (directory / "model" / "model.safetensors").read_bytes() == unbroken


def test_a_damaged_checkpoint_is_passed_over(corpus: Path, unbroken: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    interrupt(train(corpus, directory), directory, 18, signal.SIGKILL)
    newest = max((directory / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    result = regard("train", "--resume", directory)
    assert result.returncode == 0, result.stderr.decode()
    assert "going back to the checkpoint before it" in result.stderr.decode()
    assert (directory / "model" / "model.safetensors").read_bytes() == unbroken
    assert load_file(directory / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
