"""What a recipe may say, and what is chosen where it says nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.model.presets import PRESETS
from regard.model.store import ModelConfig, Vocabulary, build, write
from regard.recipes import merge, parse_yaml, read_yaml
from regard.runs.settings import RunSettings
from regard.runs.tasks import TASKS, resolve, written
from regard.runs.translation import Translation

FILES: dict[str, Any] = {"data": {"train": {"source": "a", "target": "b"}}}
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_valid(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = read_yaml(recipe)
    if "initial" in values:  # what another recipe learns
        monkeypatch.chdir(tmp_path)
        before = resolve(read_yaml(recipe.parent / f"{Path(values['initial']).name}.yaml"), "before")
        vocabulary = Vocabulary(source=before.tokenizer.size)
        model = build(ModelConfig(family="encoder", vocabulary=vocabulary, model=before.model))
        write(Path(values["initial"]), model)
    settings = resolve(values, str(recipe))
    # What settings.yaml of a run would hold means the same settings.
    again = resolve(parse_yaml(written(settings), "again"), "again")
    assert again == settings


def test_the_published_recipe_has_the_published_values() -> None:
    path = next(path for path in RECIPES if path.stem == "multi30k-tiny")
    settings = resolve(read_yaml(path), str(path))
    model = settings.model
    assert (model.d_model, model.d_ff, model.heads, model.encoder_layers, model.decoder_layers) == (128, 256, 4, 4, 4)
    assert (model.dropout, model.norm_placement, model.tie) == (0.3, "post", "all")
    assert settings.batches.tokens * settings.training.accumulate == 8192
    assert settings.training.schedule.peak_rate == 0.005
    assert settings.training.schedule.warmup_steps == 2000


def test_a_preset_lies_beneath_what_the_recipe_says() -> None:
    settings = resolve(FILES | {"preset": "paper-big", "model": {"dropout": 0.4}}, "recipe")
    assert (settings.model.d_model, settings.model.heads, settings.model.dropout) == (1024, 16, 0.4)
    assert resolve(FILES | {"preset": "paper-D4"}, "recipe").training.label_smoothing == 0.2
    with pytest.raises(UserError, match="no preset 'huge'; the presets are paper-base"):
        resolve(FILES | {"preset": "huge"}, "recipe")


@pytest.mark.parametrize("pairs", [1, 500, 29_000, 74_999, 75_000, 200_000, 999_999, 1_000_000, 40_000_000])
def test_choices_by_size_are_whole_recipes(pairs: int) -> None:
    settings = resolve(merge(Translation.choices(pairs), FILES), "choices")
    assert settings.preset in PRESETS
    assert settings.training.steps >= settings.validation.every


@pytest.mark.parametrize("task", [name for name in TASKS if name != "translation"])
@pytest.mark.parametrize("size", [1, 1_000, 200_000, 10_000_000, 10**10])
def test_choices_of_other_tasks_are_whole_recipes(task: str, size: int) -> None:
    values = {"task": task, "data": {"train": {"source": "a"}}}
    settings = resolve(merge(TASKS[task].choices(size), values), "choices")
    assert settings.training.steps >= settings.validation.every
    assert f"{size:,}" in TASKS[task].describe(settings, size)


def test_larger_corpora_get_larger_models() -> None:
    widths = [
        resolve(merge(Translation.choices(pairs), FILES), "choices").model.d_model
        for pairs in (10_000, 100_000, 10_000_000)
    ]
    assert widths == sorted(set(widths))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data: field required"),
        ({"data": {}}, "give either a corpus"),
        ({"data": {"corpus": "ui-strings"}}, "needs a target_language, such as de"),
        ({"data": FILES["data"] | {"corpus": "ui-strings"}}, "give either a corpus"),
        (FILES | {"model": {"max_length": 100}}, "data.max_length = 256 needs a model.max_length above it"),
        (
            FILES | {"model": {"source_max_length": 256}},
            "data.max_length = 256 needs a model.source_max_length above it",
        ),
        (FILES | {"tokenizer": {"joint": False}}, "model.tie: decoder or none"),
        (FILES | {"validation": {"sentences": 0}}, "needs validation.sentences above 0"),
        (FILES | {"metrics": {"metrics": ["chrf"]}}, "validation.metric: bleu needs that name in metrics.metrics"),
        (FILES | {"metrics": {"metrics": []}}, "metrics.metrics: .* at least 1 item"),
        (FILES | {"training": {"lable_smoothing": 0.1}}, "did you mean training.label_smoothing"),
        (FILES | {"training": {"schedule": {"kind": "linear"}}}, "needs a peak_rate"),
        (FILES | {"training": {"schedule": {"kind": "paper", "peak_rate": 1}}}, "has no peak_rate"),
        (FILES | {"training": {"steps": 0}}, "greater than 0"),
        (FILES | {"training": {"schedule": {"kind": "linear", "peak_rate": math.inf}}}, "peak_rate: .* finite number"),
        (FILES | {"training": {"schedule": {"warmup_steps": 10**400}}}, "warmup_steps: .* less than"),
        (FILES | {"tokenizer": {"size": 0}}, "tokenizer.size: .* greater than 0"),
        (FILES | {"tokenizer": {"size": 10**30}}, "tokenizer.size: .* less than"),
    ],
)
def test_mistakes_are_explained(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        resolve(values, "recipe.yaml")
    assert str(error.value).startswith("recipe.yaml: ")
    assert "\n" not in str(error.value)


def test_metrics_are_part_of_a_recipe() -> None:
    settings = resolve(FILES | {"metrics": {"tokenize": "none"}}, "recipe")
    assert isinstance(settings, RunSettings)
    assert settings.metrics.tokenization == "none"
