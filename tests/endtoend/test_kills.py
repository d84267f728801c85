"""SIGKILL at every kind of moment: the resumed run leaves what one leaves that was never killed.

A forked process carries out the run and kills itself at a named deed on the disk, so each moment is always the same.
benchmarks/kills.py does this to the real command, at random moments and on full disks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from runs.small_runs import carry_out, recipe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")

MOMENTS = {
    "settings are written": ("open", r"run/\.[0-9a-f]{16}\.tmp"),
    "settings get their name": ("os.rename", r"settings\.yaml"),
    "text is prepared": ("os.rename", r"data/train\.arrow"),
    "what was said of it is written": ("os.rename", r"prepared\.txt"),
    "preparation is over": ("os.rename", r"checksums\.json"),
    "the log is written": ("open", r"metrics\.jsonl"),
    "the first checkpoint is written": ("open", r"\.step-3\.partial/optimizer\.safetensors"),
    "a checkpoint gets its name": ("os.rename", r"step-6"),
    "an old checkpoint goes": ("os.rename", r"\.step-3\.removed"),
    "the last checkpoint is whole, and not pruned": ("os.rename", r"\.step-9\.removed"),
    "the model is written": ("open", r"\.model\.partial/\.[0-9a-f]{16}\.tmp"),
    "the model gets its name": ("os.rename", r"run/model"),
    "the result is written": ("os.rename", r"result\.json"),
}
TIMES = ("seconds", "target_tokens_per_second")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def values(folder: Path) -> dict[str, Any]:
    values = recipe(folder, "language-model")
    values["model"] |= {"attention_dropout": 0.1, "activation_dropout": 0.1, "layer_dropout": 0.2, "decoder_layers": 2}
    return values | {"checkpoints": {"every": 3, "keep_last": 1}}


@pytest.fixture(scope="module")
def unbroken(folder: Path, values: dict[str, Any]) -> dict[str, object]:
    carry_out(folder / "run", values)
    return left(folder / "run")


def killed(directory: Path, values: dict[str, Any], event: str, pattern: str) -> bool:
    """Carry out a run in a process that kills itself when it opens a file or gives a name like that."""
    child = os.fork()
    if child == 0:

        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            if name == event:
                path = arguments[1] if name == "os.rename" else arguments[0]
                writes = name == "os.rename" or arguments[2] & (os.O_WRONLY | os.O_RDWR)
                if writes and re.search(pattern + "$", os.fspath(path) if not isinstance(path, int) else ""):
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            carry_out(directory, values)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def left(directory: Path) -> dict[str, object]:
    """What stands in a run's directory by name, times aside; of TensorBoard's files only that there are some."""
    found: dict[str, object] = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.name == "state.json":
            found[name] = timeless(json.loads(path.read_bytes()))
        elif path.name == "metrics.jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.name == "README.md":
            found[name] = re.sub(r"[\d:]+ of training", "", path.read_text(encoding="utf-8"))
        elif path.parent.name != "tensorboard" and path.name != "SHA256SUMS":
            found[name] = path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_no_trace_in_what_the_resumed_run_leaves(
    tmp_path: Path, values: dict[str, Any], unbroken: dict[str, object], moment: str
) -> None:
    directory = tmp_path / "run"
    assert killed(directory, values, *MOMENTS[moment])
    carry_out(directory, values)
    found = left(directory)
    assert found.keys() == unbroken.keys()
    assert [name for name, content in unbroken.items() if found[name] != content] == []
