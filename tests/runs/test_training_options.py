"""Whole runs with R-Drop, a moving average of the weights and Muon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.training.checkpoint import checkpoints, load_checkpoint
from runs.small_runs import Killed, Recipe, carry_out, recipe

OPTIONS = {"r_drop": 3.0, "ema": 0.7, "optimizer": {"kind": "muon"}}


def killed_and_resumed(folder: Path, values: Recipe) -> list[str]:
    """Carry out a recipe at once, and in two sittings; returns what was said in the second."""
    carry_out(folder / "unbroken", values)
    with pytest.raises(Killed):
        carry_out(folder / "run", values, kill=6)
    said = carry_out(folder / "run", values)
    assert any("going on from step 4" in line for line in said)
    for name in ("model/model.safetensors", "result.json"):
        assert (folder / "unbroken" / name).read_bytes() == (folder / "run" / name).read_bytes(), name
    return said


@pytest.mark.parametrize("task", ["translation", "masked-language-model", "text-classification"])
def test_killed_and_resumed_a_run_ends_with_the_same_bytes(tmp_path: Path, task: str) -> None:
    values = recipe(tmp_path, task)
    values["training"] |= OPTIONS
    killed_and_resumed(tmp_path, values)


def test_the_final_model_is_the_average_that_was_validated(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model") | {"checkpoints": {"keep_last": 1}}
    values["training"] |= OPTIONS
    said = killed_and_resumed(tmp_path, values)
    assert "the model: step 12, the moving average of the weights, the best by validation" in said
    [path] = checkpoints(tmp_path / "run" / "checkpoints").values()
    checkpoint, found = load_checkpoint(path), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert found.keys() == checkpoint.averages.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in checkpoint.averages.items())
    assert not any(torch.equal(found[name], tensor) for name, tensor in checkpoint.model.items())
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    records = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [record for record in map(json.loads, records) if record["kind"] == "validation"]
    assert validations[-1]["step"] == 12
    assert validations[-1]["loss"] == pytest.approx(result["validation"]["loss"], abs=1e-9)


def test_adapters_too(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    carry_out(tmp_path / "pretrained", recipe(tmp_path / "first", "language-model"))
    values = recipe(tmp_path, "language-model") | {
        "initial": str(tmp_path / "pretrained"),
        "adapters": {"rank": 2, "dropout": 0.1},
        "checkpoints": {"keep_last": 1},
    }
    del values["tokenizer"], values["model"]
    values["training"] |= OPTIONS
    killed_and_resumed(tmp_path, values)
    [path] = checkpoints(tmp_path / "run" / "checkpoints").values()
    averages = load_checkpoint(path).averages
    assert len(averages) == 4
    saved = load_file(tmp_path / "run" / "adapters" / "adapters.safetensors")
    assert {name.rpartition(".")[2] for name in averages} == {"a", "b"}
    for part in ("query", "value"):
        [average] = [tensor for name, tensor in averages.items() if name.endswith(f".{part}.b")]
        assert torch.equal(saved[f"decoder.0.self_attention.{part}.b"], average)
        assert average.any()
