"""The directory of a run: whose it is, and what is known before anything is begun."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.errors import UserError
from regard.runs import run
from regard.runs.settings import RunSettings
from regard.runs.tasks import resolve
from regard.text.lines import write_lines
from regard.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.training.terminal import TerminalView


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    for part in ("train", "dev", "test"):
        write_lines(tmp_path / f"{part}.a", (f"{part} number {index}" for index in range(30)))
        write_lines(tmp_path / f"{part}.b", (f"{part} Nummer {index}" for index in range(30)))
    files = {part: {"source": str(tmp_path / f"{part}.a"), "target": str(tmp_path / f"{part}.b")} for part in
             ("train", "dev", "test")}  # fmt: skip
    return {
        "data": files,
        "tokenizer": {"size": 280},
        "model": {"d_model": 8, "d_ff": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "training": {"steps": 2, "threads": 1},
        "validation": {"every": 2, "sentences": 2, "samples": 0},
        "search": {"beam": 1, "extra_tokens": 2},
    }


def settings(values: dict[str, Any], **changes: dict[str, Any]) -> RunSettings:
    return resolve(values | {name: values[name] | change for name, change in changes.items()}, "recipe")


def train(directory: Path, chosen: RunSettings) -> list[str]:
    said: list[str] = []
    run.train(directory, chosen, TerminalView(Console(quiet=True)), said.append)
    return said


def test_a_file_in_place_of_the_directory(tmp_path: Path, values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"train\.a: cannot be made: File exists; choose another --out"):
        train(tmp_path / "train.a", settings(values))


@pytest.mark.parametrize("mistake", ["missing", "unequal", "empty"])
def test_a_mistake_in_the_test_text_is_known_before_anything_is_begun(
    tmp_path: Path, values: dict[str, Any], mistake: str
) -> None:
    if mistake == "missing":
        (tmp_path / "test.b").unlink()
    else:
        write_lines(tmp_path / "test.b", [])
    if mistake == "empty":
        write_lines(tmp_path / "test.a", [])
    with pytest.raises(UserError, match=r"test\.[ab]"):
        train(tmp_path / "run", settings(values))
    assert not (tmp_path / "run").exists()


def test_a_run_that_failed_before_its_first_checkpoint_may_begin_with_other_settings(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    directory = tmp_path / "run"
    with pytest.raises(UserError, match="exceed the budget"):
        train(directory, settings(values | {"batches": {"tokens": 2}}))
    assert any("vocabulary: 270" in line for line in train(directory, settings(values, tokenizer={"size": 270})))
    with pytest.raises(UserError, match="holds a run with other settings of tokenizer"):
        train(directory, settings(values))


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path, values: dict[str, Any]) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    first = os.open(directory, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="run: another process is training here"):
        train(directory, settings(values))
    assert not list(directory.iterdir())
    os.close(first)
    assert train(directory, settings(values))


def test_a_checkpoint_of_something_else_is_named(tmp_path: Path, values: dict[str, Any]) -> None:
    directory = tmp_path / "run"
    train(directory, settings(values))
    path = directory / "checkpoints" / "step-2"
    checkpoint = load_checkpoint(path)
    strange = Checkpoint(checkpoint.model, checkpoint.optimizer, checkpoint.state | {"listeners": []})
    save_checkpoint(path.parent, 2, strange)
    with pytest.raises(UserError, match="step-2: does not hold the state of this run"):
        train(directory, settings(values))


@pytest.mark.parametrize("metrics", [{"chrf_word_order": 2}, {"metrics": ["ter", "chrf", "chrf"]}])
def test_validation_finds_its_metric_whatever_the_score_calls_itself(
    tmp_path: Path, values: dict[str, Any], metrics: dict[str, Any]
) -> None:
    train(tmp_path / "run", settings(values | {"metrics": metrics}, validation={"metric": "chrf"}))
    scores = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["validation"]
    assert {*scores} == {"loss", "perplexity", *metrics.get("metrics", ("bleu", "chrf"))}


def test_a_score_that_cannot_be_computed_is_known_before_training(
    tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(UserError, match="tokenize ja-mecab needs a further package"):
        train(tmp_path / "run", settings(values | {"metrics": {"tokenize": "ja-mecab"}}))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
