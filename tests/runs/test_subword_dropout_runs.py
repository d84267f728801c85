"""Runs whose text is segmented anew in each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.recipes import merge
from regard.runs.run import load_settings
from regard.runs.tasks import resolve
from runs.small_runs import Killed, Recipe, carry_out, recipe


def regularised(folder: Path, **data: Any) -> Recipe:
    """An epoch has 4 batches or so: the run goes through several of them."""
    changes = {"data": {"subword_dropout": 0.2} | data, "batches": {"tokens": 500}, "tokenizer": {"size": 330}}
    return merge(recipe(folder, "translation"), changes)


def model(directory: Path) -> bytes:
    return (directory / "model" / "model.safetensors").read_bytes()


def test_killed_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    values = regularised(tmp_path, mix=[{"source": str(tmp_path / "dev.txt"), "weight": 1.5, "tag": "bt"}])
    (described,) = (line for line in carry_out(tmp_path / "unbroken", values) if line.startswith("model: "))
    assert 3 < float(described.split()[-2]) < 12, "epochs"
    for step in (6, 11):  # checkpoints are at 4, 8 and 12
        with pytest.raises(Killed):
            carry_out(tmp_path / "run", values, kill=step)
    carry_out(tmp_path / "run", values)
    assert model(tmp_path / "unbroken") == model(tmp_path / "run")
    results = [(tmp_path / name / "result.json").read_bytes() for name in ("unbroken", "run")]
    assert results[0] == results[1]


def test_it_is_something_else_than_without_but_not_in_validation(tmp_path: Path) -> None:
    plain = regularised(tmp_path, subword_dropout=0)
    carry_out(tmp_path / "plain", plain)
    carry_out(tmp_path / "run", regularised(tmp_path))
    assert model(tmp_path / "plain") != model(tmp_path / "run")
    for name in ("data/train.arrow", "data/dev.arrow", "tokenizer.json", "model/tokenizer.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name


def test_a_rate_of_0_is_no_setting_at_all(tmp_path: Path) -> None:
    values = regularised(tmp_path, subword_dropout={"source": 0, "target": 0})
    assert resolve(values, "recipe") == resolve(merge(values, {"data": {"subword_dropout": 0}}), "recipe")
    del values["data"]["subword_dropout"]
    assert resolve(values, "recipe").data.subword_dropout.any is False


def test_the_settings_of_a_run_say_both_rates(tmp_path: Path) -> None:
    carry_out(tmp_path / "run", regularised(tmp_path, subword_dropout={"source": 0.3}))
    dropout = load_settings(tmp_path / "run", {}).data.subword_dropout
    assert (dropout.source, dropout.target) == (0.3, 0.0)
    with pytest.raises(UserError, match="holds a run with other settings of data"):
        carry_out(tmp_path / "run", regularised(tmp_path))


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("translation", {"tokenizer": {"kind": "unigram"}}, r"needs tokenizer\.kind: bpe, not unigram"),
        ("language-model", {}, r"data\.subword_dropout means nothing to the task language-model"),
        ("text-classification", {}, r"data\.subword_dropout means nothing to the task text-classification"),
    ],
)
def test_where_it_cannot_be_it_is_refused(tmp_path: Path, task: str, changes: Recipe, message: str) -> None:
    values = merge(recipe(tmp_path, task), {"data": {"subword_dropout": 0.1}})
    with pytest.raises(UserError, match=message):
        resolve(merge(values, changes), "recipe")
