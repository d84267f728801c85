"""The tasks of a run, and recipes as settings: resolved from what is written, and written in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.errors import UserError
from regard.model.presets import preset
from regard.recipes import dump_yaml, merge
from regard.runs.classification import TextClassification, TokenClassification
from regard.runs.image_classification import ImageClassification
from regard.runs.initial import initial_model, with_initial
from regard.runs.language_model import LanguageModel
from regard.runs.masked_language_model import MaskedLanguageModel
from regard.runs.settings import RunSettings
from regard.runs.task import Task
from regard.runs.translation import Translation

TASKS: dict[str, type[Task]] = {
    "translation": Translation,
    "language-model": LanguageModel,
    "masked-language-model": MaskedLanguageModel,
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "image-classification": ImageClassification,
}
"""A task by the name that `task` of a recipe gives it."""

OPTIONS = frozenset(option for task in TASKS.values() for option in task.options)
"""Settings that mean nothing to some of the tasks."""


def task_of(values: Mapping[str, Any]) -> type[Task]:
    """The task of a recipe; for an unknown name any, as the settings themselves refuse it."""
    return TASKS.get(str(values.get("task")), Translation)


def resolve(values: Mapping[str, Any], origin: str) -> RunSettings:
    """Settings from a recipe's values; beneath them lie those of the task, of the preset and of the initial model.

    Raises:
        UserError: naming `origin` and what cannot be.
    """
    task = task_of(values)
    _refuse_foreign(task, values, origin)
    beneath = merge({"validation": {"metric": task.metrics[0]}}, task.defaults)
    if isinstance(values.get("preset"), str):
        chosen = preset(values["preset"])
        beneath = merge(
            beneath,
            {
                "model": chosen.model.model_dump(exclude_unset=True),
                "training": {"label_smoothing": chosen.label_smoothing},
            },
        )
    return _parsed(task, merge(beneath, with_initial(values, task.family, origin)), origin)


def reread(values: Mapping[str, Any], origin: str) -> RunSettings:
    """Settings from values that were resolved before."""
    task = task_of(values)
    _refuse_foreign(task, values, origin)
    return _parsed(task, values, origin)


def _parsed(task: type[Task], values: Mapping[str, Any], origin: str) -> RunSettings:
    settings = RunSettings.parse(values, origin)
    mistake = task.mistake(settings)
    if mistake is not None:
        raise UserError(f"{origin}: {mistake}")
    return settings


def written(settings: RunSettings) -> str:
    """All settings as YAML that is a recipe of the same run; what means nothing to its task is left out."""
    values = settings.model_dump(mode="json")
    foreign = OPTIONS - TASKS[settings.task].options
    if settings.initial is not None:
        foreign |= {"tokenizer"}  # comes with the model
    for option in foreign:
        *sections, key = option.split(".")
        place: Any = values
        for section in sections:
            place = place.get(section, {})
        place.pop(key, None)
    return dump_yaml(values)


TUNING_RATE = 0.06
"""Divided by d_model, the peak rate of fine-tuning: 0.0005 for a model of width 128, 0.00008 for BERT's base model."""


def choices(values: Mapping[str, Any], size: int) -> dict[str, Any]:
    """What the task chooses for a corpus of this size. Where there is an initial model, that is chosen already."""
    chosen = task_of(values).choices(size)
    initial = initial_model(values)
    if initial is None:
        return chosen
    kept = {section: chosen[section] for section in chosen.keys() - {"preset", "model"}}
    tuning = {"schedule": {"peak_rate": TUNING_RATE / initial.model.d_model}, "optimizer": {"kind": "adamw"}}
    return merge(kept, {"training": tuning})


def _refuse_foreign(task: type[Task], values: Mapping[str, Any], origin: str) -> None:
    for option in _dotted(values):
        if option in OPTIONS and option not in task.options:
            name = next(name for name, each in TASKS.items() if each is task)
            others = ", ".join(name for name, each in TASKS.items() if option in each.options)
            raise UserError(f"{origin}: {option} means nothing to the task {name}; it is a setting of {others}")


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted name of each section and key."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
