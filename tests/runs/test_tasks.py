"""Every task is a run like any other: learned, killed, resumed, exported, measured, used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.errors import UserError
from regard.model import adapters, store
from regard.recipes import merge, parse_yaml
from regard.runs import run
from regard.runs.masked_language_model import MaskedLanguageModel
from regard.runs.run import load_settings
from regard.runs.settings import TaskName
from regard.runs.tasks import TASKS, resolve, written
from regard.text.lines import read_lines, write_lines
from regard.training.validation import DIRECTIONS
from runs.small_runs import Killed, Killer, Recipe, carry_out, recipe

TEXT_TASKS = [name for name in TASKS if name != "image-classification"]  # which has a file of tests of its own


def test_every_task_has_metrics_and_is_judged_by_the_first() -> None:
    assert set(TASKS) == set(get_args(TaskName))
    for name, task in TASKS.items():
        assert "loss" in task.metrics
        assert set(task.metrics) <= set(DIRECTIONS)
        settings = resolve({"task": name, "data": {"train": {"source": "text"}}}, "recipe")
        assert settings.validation.metric == task.metrics[0]


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_killed_and_resumed_a_run_ends_with_the_same_bytes(tmp_path: Path, task: str) -> None:
    values = recipe(tmp_path, task)
    carry_out(tmp_path / "unbroken", values)
    for step in (6, 11):  # checkpoints are at 4, 8 and 12
        with pytest.raises(Killed):
            carry_out(tmp_path / "run", values, kill=step)
    said = carry_out(tmp_path / "run", values)
    assert any("going on from step 8" in line for line in said)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        paths = [tmp_path / directory / "model" / name for directory in ("unbroken", "run")]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name
    results = [(tmp_path / directory / "result.json").read_bytes() for directory in ("unbroken", "run")]
    assert results[0] == results[1]


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_settings_as_written_are_a_recipe_of_the_same_run(tmp_path: Path, task: str) -> None:
    settings = resolve(recipe(tmp_path, task), "recipe")
    text = written(settings)
    again = resolve(parse_yaml(text, "again"), "again")
    assert again == settings
    assert written(again) == text


def test_a_language_model_learns_and_writes(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    said = carry_out(tmp_path / "run", values, training={"steps": 60}, validation={"every": 30})
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert {*result["validation"]} == {"loss", "perplexity"}
    assert result["test"]["perplexity"] < 20  # of 290 pieces; 290 before anything is learned
    assert sum(" → " in line for line in said) == 2  # a sample at each validation
    model = regard.load(tmp_path / "run", device="cpu")
    assert isinstance(model.generate("the red", seed=1, max_tokens=5)[0], str)


def test_a_masked_language_model_fills(tmp_path: Path) -> None:
    values = recipe(tmp_path, "masked-language-model")
    carry_out(tmp_path / "run", values, training={"steps": 80}, validation={"every": 80})
    [filled] = regard.load(tmp_path / "run", device="cpu").fill("the red [MASK] is in the garden 0", best=10)
    assert len(filled.masks[0]) == 10
    assert sum(each.probability for each in filled.masks[0]) <= 1
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["test"]["perplexity"] < 40


def test_text_classification_learns_its_labels(tmp_path: Path) -> None:
    values = recipe(tmp_path, "text-classification")
    carry_out(tmp_path / "run", values, training={"steps": 100}, validation={"every": 50})
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["test"] == {"accuracy": 100.0, "macro F1": 100.0}
    assert list(read_lines(tmp_path / "run" / "test.txt"))[:2] == ["red", "green"]
    [found] = regard.load(tmp_path / "run", device="cpu").classify("the blue dog is in the house 1")
    assert found.best.name == "blue"
    assert sum(label.probability for label in found.labels) == pytest.approx(1)


def test_token_classification_learns_its_labels(tmp_path: Path) -> None:
    values = recipe(tmp_path, "token-classification")
    carry_out(tmp_path / "run", values, training={"steps": 60}, validation={"every": 30})
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["test"]["macro F1"] > 95
    [words] = regard.load(tmp_path / "run", device="cpu").label_words("the blue dog is in the house 1")
    assert [word.label.name for word in words[:3]] == ["other", "colour", "thing"]


def pretrained(tmp_path: Path, task: str = "masked-language-model") -> Path:
    (tmp_path / "first").mkdir()
    carry_out(tmp_path / "pretrained", recipe(tmp_path / "first", task), validation={"every": 12})
    return tmp_path / "pretrained"


def tuning(tmp_path: Path, task: str, initial: Path) -> Recipe:
    values = recipe(tmp_path, task)
    del values["tokenizer"], values["model"]
    return values | {"initial": str(initial)}


def test_a_classifier_begins_with_a_pretrained_encoder(tmp_path: Path) -> None:
    initial = pretrained(tmp_path)
    values = tuning(tmp_path, "text-classification", initial)
    carry_out(tmp_path / "run", values, training={"schedule": {"peak_rate": 1e-9}})
    before = load_file(initial / "model" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    same = {name for name in after if not name.startswith("head.")}
    assert same == {name for name in before if not name.startswith("head.")}
    assert all(torch.allclose(after[name], before[name], atol=1e-6) for name in same)
    fingerprints = [store.read_config(store.find(path)).tokenizers for path in (initial, tmp_path / "run")]
    assert fingerprints[0] == fingerprints[1]
    settings = load_settings(tmp_path / "run", {})
    assert (settings.model.d_model, settings.model.encoder_layers) == (16, 1)


@pytest.mark.parametrize("task", ["language-model", "masked-language-model", "translation"])
def test_a_model_goes_on_learning(tmp_path: Path, task: str) -> None:
    initial = pretrained(tmp_path, task)
    carry_out(tmp_path / "run", tuning(tmp_path, task, initial), training={"schedule": {"peak_rate": 1e-9}})
    before = load_file(initial / "model" / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.allclose(after[name], before[name], atol=1e-6) for name in after)


@pytest.mark.parametrize("task", ["text-classification", "language-model"])
def test_adapters_learn_and_nothing_else(tmp_path: Path, task: str) -> None:
    initial = pretrained(tmp_path, "language-model" if task == "language-model" else "masked-language-model")
    values = tuning(tmp_path, task, initial) | {"adapters": {"rank": 2, "dropout": 0.1}}
    carry_out(tmp_path / "unbroken", values)
    with pytest.raises(Killed):
        carry_out(tmp_path / "run", values, kill=6)
    said = carry_out(tmp_path / "run", values)
    assert any("M learn" in line for line in said)
    paths = [tmp_path / directory / "model" / "model.safetensors" for directory in ("unbroken", "run")]
    assert paths[0].read_bytes() == paths[1].read_bytes()

    before, after = load_file(initial / "model" / "model.safetensors"), load_file(paths[1])
    changed = {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}
    stack = "decoder" if task == "language-model" else "encoder"
    assert {name for name in changed if not name.startswith("head.")} == {
        f"{stack}.0.self_attention.in_projection.weight"
    }
    given = adapters.load(tmp_path / "run" / "adapters")
    base = store.build(store.read_config(tmp_path / "run" / "model"))
    store.assign(base, {name: before.get(name, after[name]) for name in after} | {
        name: after[name] for name in after if name.startswith("head.")
    }, "test")  # fmt: skip
    adapters.attach(base, given)
    adapters.merge(base)
    assert all(torch.equal(tensor, after[name]) for name, tensor in store.parameters(base).items())


def test_a_run_that_goes_on_needs_its_initial_model_no_more(tmp_path: Path) -> None:
    initial = pretrained(tmp_path)
    values = tuning(tmp_path, "text-classification", initial)
    with pytest.raises(Killed):
        carry_out(tmp_path / "run", values, kill=6)
    initial.rename(tmp_path / "elsewhere")
    settings = load_settings(tmp_path / "run", {})
    assert settings.model.d_model == 16
    assert run.train(tmp_path / "run", settings, Killer(None), lambda _: None) is not None


def test_text_held_out_of_one_long_text_is_its_end(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    values["data"] = {"train": values["data"]["train"], "documents": "file"}
    carry_out(tmp_path / "run", values)
    train, dev = (list(read_lines(tmp_path / "run" / "data" / f"{part}.txt")) for part in ("train", "dev"))
    assert train + dev == list(read_lines(tmp_path / "train.txt"))
    assert len(dev) == 12


def test_examples_held_out_are_not_trained_on(tmp_path: Path) -> None:
    values = recipe(tmp_path, "text-classification")
    write_lines(tmp_path / "train.txt", [f"number {index} of many\t{index % 2}" for index in range(400)])
    values["data"] = {"train": values["data"]["train"], "max_length": 40}
    said = carry_out(tmp_path / "run", values, training={"steps": 4})
    counts = [int(line.split()[1]) for line in said if " examples, " in line and line.startswith(("train:", "dev:"))]
    assert sum(counts) == 400
    assert 5 <= counts[1] <= 50


FOREIGN = [
    ("language-model", {"search": {"beam": 2}}, "search means nothing to the task language-model; .* translation"),
    ("language-model", {"model": {"encoder_layers": 2}}, "model.encoder_layers means nothing to the task language-m"),
    ("translation", {"packing": {"rows": 2}}, "packing means nothing to the task translation; .* language-model"),
    ("text-classification", {"data": {"documents": "file"}}, "data.documents means nothing"),
    ("masked-language-model", {"metrics": {"lowercase": True}}, "metrics means nothing"),
    ("text-classification", {"validation": {"metric": "bleu"}}, "metric: bleu is none of accuracy, macro_f1, loss"),
    ("language-model", {"packing": {"context": 65}}, "packing.context = 65 needs a model.max_length"),
    ("masked-language-model", {"masking": {"context": 65}}, "masking.context = 65 needs a model.max_length"),
    ("masked-language-model", {"tokenizer": {"mask": False}}, "tokenizer.mask: a masked language model needs it"),
    ("language-model", {"preset": "paper-base"}, "paper-base is no causal-decoder; choose one of nanogpt-cpu"),
    ("language-model", {"data": {"train": {"target": "b"}}}, "learns from one text; leave it out"),
    ("token-classification", {"data": {"test": {"source": "a", "target": "b"}}}, "data.test.target: words and labels"),
    ("language-model", {"adapters": {}}, "adapters change a model that has learned already: name it by initial"),
]


@pytest.mark.parametrize(("task", "changes", "message"), FOREIGN)
def test_mistakes_are_explained(tmp_path: Path, task: str, changes: Recipe, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        resolve(merge(recipe(tmp_path, task), changes), "recipe.yaml")
    assert str(error.value).startswith("recipe.yaml: ")


@pytest.mark.parametrize("task", TASKS)
def test_what_was_chosen_is_said(task: str) -> None:
    values = {"task": task, "data": {"train": {"source": "text"}}, "training": {"accumulate": 3}}
    settings = resolve(merge(TASKS[task].choices(1234), values), "recipe")
    said = TASKS[task].describe(settings, 1234)
    assert said.startswith(f"chosen for 1,234 {TASKS[task].counted}: preset {settings.preset} (")
    amounts = {"language-model": f"{3 * 128 * 16:,} tokens", "image-classification": "96 images"}
    tokens = settings.masking.tokens if task == "masked-language-model" else settings.batches.tokens
    assert f", {amounts.get(task, f'{3 * tokens:,} tokens')}" in said
    assert f"{settings.training.steps:,} steps" in said


def test_a_masked_language_model_that_goes_on_says_from_what(tmp_path: Path) -> None:
    values = tuning(tmp_path, "masked-language-model", pretrained(tmp_path))
    assert ": the initial model (" in MaskedLanguageModel.describe(resolve(values, "recipe"), 10)


def test_another_model_than_the_initial_one_is_refused(tmp_path: Path) -> None:
    initial = pretrained(tmp_path)
    values = tuning(tmp_path, "text-classification", initial)
    assert resolve(merge(values, {"model": {"dropout": 0.3, "d_model": 16}}), "recipe").model.dropout == 0.3
    with pytest.raises(UserError, match=r"model\.d_model = 32 is not that of the initial model, 16"):
        resolve(merge(values, {"model": {"d_model": 32}}), "recipe")
    with pytest.raises(UserError, match="tokenizer: the initial model brings its own"):
        resolve(merge(values, {"tokenizer": {"size": 300}}), "recipe")
    with pytest.raises(UserError, match=r"of the family encoder, .* needs one of the family causal-decoder"):
        carry_out(tmp_path / "run", tuning(tmp_path, "language-model", initial))
    with pytest.raises(UserError, match="nowhere: does not exist"):
        resolve(values | {"initial": str(tmp_path / "nowhere")}, "recipe")
