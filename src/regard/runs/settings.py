"""The settings of a whole run: what a recipe may say, and the sensible choices where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from regard.data.batches import BatchSettings
from regard.data.corpus import CleaningSettings
from regard.evaluation.metrics import MetricSettings
from regard.model.presets import preset
from regard.model.settings import ModelSettings
from regard.search.settings import SearchSettings
from regard.settings import Settings, merge
from regard.text.vocabulary import TokenizerSettings
from regard.training.keeping import CheckpointSettings
from regard.training.trainer import TrainingSettings
from regard.training.validation import ValidationSettings

FilePath = Annotated[Path, AfterValidator(Path.absolute)]
"""Made absolute, so that a run can go on from any directory."""


class Files(Settings):
    """Two parallel files, or one file of two tab-separated columns; plain or gzip."""

    source: FilePath
    """Text to translate from, one sentence a line."""
    target: FilePath | None = None
    """Unset: `source` holds both columns."""


class DataSettings(Settings):
    """Which text."""

    corpus: str | None = None
    """A named corpus (`regard data get --help` lists them), in place of `train`, `dev` and `test`."""
    source_language: str | None = None
    """Language of the source, as in `en`; for the model card."""
    target_language: str | None = None
    """Language of the target, as in `de` or `zh-Hans`: chooses the part of a named corpus, and how BLEU cuts words."""
    train: Files | None = None
    dev: Files | None = None
    """Unset: some pairs of `train` are held out for validation."""
    test: Files | None = None
    """Translated and scored at the end, when given."""
    cleaning: CleaningSettings = CleaningSettings()
    max_length: int = Field(256, gt=0)
    """Pairs with more tokens than this on a side are not trained on (and reported)."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("give either a corpus (by name) or train (files)")
        if self.corpus is not None and self.target_language is None:
            raise ValueError(f"the corpus {self.corpus} needs a target_language, such as de")
        if self.corpus is not None and (self.dev or self.test):
            raise ValueError(f"the corpus {self.corpus} has its own dev and test files")
        return self


class RunSettings(Settings):
    """Everything about a run. The resolved settings of each run are written to its `settings.yaml`."""

    preset: str | None = None
    """A named model to start from (`regard inspect --help` lists them); `model` and `training` change it."""
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    batches: BatchSettings = BatchSettings()
    training: TrainingSettings = TrainingSettings()
    validation: ValidationSettings = ValidationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    search: SearchSettings = SearchSettings()
    metrics: MetricSettings = MetricSettings()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.data.max_length >= self.model.max_length:
            raise ValueError(
                f"data.max_length = {self.data.max_length} needs a model.max_length above it, "
                f"not {self.model.max_length}"
            )
        if self.model.tie == "all" and not self.tokenizer.joint:
            raise ValueError("separate vocabularies (tokenizer.joint: false) need model.tie: decoder or none")
        if self.validation.metric != "loss" and self.validation.sentences == 0:
            raise ValueError(f"validation.metric: {self.validation.metric} needs validation.sentences above 0")
        if self.validation.metric not in ("loss", *self.metrics.metrics):
            raise ValueError(f"validation.metric: {self.validation.metric} needs that name in metrics.metrics")
        return self


def resolve(values: Mapping[str, Any], origin: str) -> RunSettings:
    """Settings from a recipe's values, with the preset that it names filled in beneath them."""
    name = values.get("preset")
    if isinstance(name, str):
        chosen = preset(name)
        beneath = {
            "model": chosen.model.model_dump(exclude_unset=True),
            "training": {"label_smoothing": chosen.label_smoothing},
        }
        values = merge(beneath, values)
    return RunSettings.parse(values, origin)


def choices(pairs: int) -> dict[str, Any]:
    """Sensible settings for a corpus of so many pairs, where no recipe says otherwise.

    Small corpora get small pre-norm models, high rates and many small updates: on a CPU that wins
    (docs/decisions/004-defaults-by-size.md has the evidence).
    """
    if pairs < 75_000:
        steps = min(max(round(pairs * 0.2), 1_500), 6_000)
        return {
            "preset": "tiny",
            "model": {"dropout": 0.2},
            "batches": {"tokens": 2_000},
            "training": _schedule("linear", 0.005, 300) | {"steps": steps, "clip_norm": 1.0},
            "validation": {"every": max(steps // 8, 1)},
        }
    if pairs < 1_000_000:
        return {
            "preset": "small",
            "batches": {"tokens": 4_096},
            "training": _schedule("linear", 0.002, 1_000) | {"steps": 20_000, "clip_norm": 1.0},
            "validation": {"every": 1_000, "patience": 8},
        }
    return {
        "preset": "paper-base",
        "batches": {"tokens": 4_096},
        "training": {"schedule": {"kind": "paper", "warmup_steps": 4_000}, "accumulate": 6, "steps": 100_000},
        "validation": {"every": 1_000, "patience": 10},
    }


def describe(settings: RunSettings, pairs: int) -> str:
    """What was chosen for a corpus of so many pairs, in a line."""
    model, training = settings.model, settings.training
    rate = "" if training.schedule.peak_rate is None else f" with peak rate {training.schedule.peak_rate:g}"
    return (
        f"chosen for {pairs:,} pairs: preset {settings.preset} ({model.encoder_layers}+{model.decoder_layers} layers, "
        f"d_model {model.d_model}, d_ff {model.d_ff}, {model.norm_placement}-norm, dropout {model.dropout:g}), "
        f"{settings.batches.tokens * training.accumulate:,} tokens an update, {training.steps:,} steps, "
        f"schedule {training.schedule.kind}{rate}; --show prints all, each can be given as an option"
    )


def _schedule(kind: str, peak_rate: float, warmup_steps: int) -> dict[str, Any]:
    return {"schedule": {"kind": kind, "peak_rate": peak_rate, "warmup_steps": warmup_steps}}
