"""What a task is to a run: everything that depends on what the model is for.

`TASKS` in `tasks.py` has a row for each; `run.py`, `export.py` and `card.py` know this interface only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.data.feed import AnyBatch, Feed
from regard.evaluation.metrics import Score
from regard.model import store
from regard.model.presets import PRESETS, preset
from regard.pipelines import Pipeline
from regard.runs.settings import DataSettings, Files, Mixed, RunSettings
from regard.search.settings import SearchSettings
from regard.training.loss import LossSums
from regard.training.validation import Metric

Say = Callable[[str], None]
"""Tells the user what is going on."""


@dataclass(frozen=True)
class Corpus:
    """The text of a run."""

    train: Files
    dev: Files | None
    test: Files | None
    description: str
    """What the model card says of it: name, origin, licence, attribution."""
    mix: tuple[Mixed, ...] = ()
    """Further text to train on."""

    @property
    def sources(self) -> tuple[Mixed, ...]:
        """All text to train on, with the weight of each part."""
        return (Mixed(source=self.train.source, target=self.train.target), *self.mix)


@dataclass(frozen=True)
class Run:
    """A run: what all that happen in it needs to know."""

    directory: Path
    settings: RunSettings
    corpus: Corpus
    say: Say

    @property
    def data(self) -> Path:
        """Where what training reads is kept."""
        return self.directory / "data"


class Line(NamedTuple):
    """A text to learn from, where it came from."""

    origin: str
    """File and line."""
    text: str
    side: Literal["source", "target"]


@dataclass(frozen=True)
class Search:
    """What a validation or the test translates."""

    sources: list[str]
    references: list[str]
    settings: SearchSettings
    score: Callable[[list[str]], object]
    """Compares translations with the references."""


class Task(ABC):
    """What a run is to learn, with its text prepared for it.

    Class attributes and class methods say what is known before there is a run.
    """

    family: ClassVar[Literal["encoder-decoder", "causal-decoder", "encoder"]]
    """Of its models."""
    metrics: ClassVar[tuple[Metric, ...]]
    """What its models can be judged by; the first unless told otherwise."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings where they differ from those of the classes of settings."""
    lone_source: ClassVar[str | None] = None
    """Why files have no `target` beside their `source`, if so."""
    counted: ClassVar[str]
    """What the size of a corpus is counted in."""
    options: ClassVar[frozenset[str]]
    """Dotted names of the settings, or sections, that mean something to it but not to every task."""

    python: ClassVar[str]
    """How to use its models in Python, after `regard.load("...").`."""
    command: ClassVar[str]
    """How to use them on the command line; `MODEL` stands for the directory."""

    @classmethod
    @abstractmethod
    def corpus(cls, data: DataSettings) -> Corpus:
        """The files of a run, all there and readable; a named corpus is fetched if it is not there yet.

        What is needed only at the end is read now, so that a mistake in it is known before anything is begun.
        """

    @classmethod
    @abstractmethod
    def size(cls, corpus: Corpus) -> int:
        """How much there is to learn from, in what `counted` says."""

    @classmethod
    @abstractmethod
    def choices(cls, size: int) -> dict[str, Any]:
        """Sensible settings for a corpus of this size, where no recipe says otherwise."""

    @classmethod
    @abstractmethod
    def update(cls, settings: RunSettings) -> str:
        """How much is read for an update, such as "4,096 tokens"."""

    @classmethod
    def describe(cls, settings: RunSettings, size: int) -> str:
        """What was chosen for a corpus of this size, in a line."""
        model, training = settings.model, settings.training
        begin = "the initial model" if settings.initial is not None else f"preset {settings.preset}"
        sides = {"encoder": (model.encoder_layers,), "causal-decoder": (model.decoder_layers,)}
        layers = "+".join(map(str, sides.get(cls.family, (model.encoder_layers, model.decoder_layers))))
        rate = "" if training.schedule.peak_rate is None else f" with peak rate {training.schedule.peak_rate:g}"
        return (
            f"chosen for {size:,} {cls.counted}: {begin} ({layers} layers, d_model {model.d_model}, d_ff {model.d_ff}, "
            f"{model.norm_placement}-norm, dropout {model.dropout:g}), {cls.update(settings)} an update, "
            f"{training.steps:,} steps, schedule {training.schedule.kind}{rate}; --show prints all, each can be given "
            "as an option"
        )

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        """Why these settings cannot work, if they cannot."""
        for part in ("train", "dev", "test"):
            files: Files | None = getattr(settings.data, part)
            if cls.lone_source is not None and files is not None and files.target is not None:
                return f"data.{part}.target: {cls.lone_source}; leave it out"
        train = settings.data.train
        if train is not None and train.alignments is not None and settings.training.alignment is None:
            return "data.train.alignments: is what training.alignment learns from; set that too, or leave this out"
        if settings.preset is not None and preset(settings.preset).family != cls.family:
            fitting = ", ".join(name for name, each in PRESETS.items() if each.family == cls.family)
            return f"preset: {settings.preset} is no {cls.family}; choose one of {fitting}"
        if settings.validation.metric not in cls.metrics:
            return f"validation.metric: {settings.validation.metric} is none of {', '.join(cls.metrics)}"
        return None

    def __init__(self, run: Run) -> None:
        """Prepare the text of a run in its directory, unless an earlier sitting did."""
        self.run = run

    run: Run
    train: Feed[AnyBatch]
    """What is learned from."""
    dev: Feed[AnyBatch]
    """What is validated on."""

    @property
    @abstractmethod
    def amount(self) -> str:
        """How much is learned from, such as "29,000 pairs"."""

    @property
    def lengths(self) -> Mapping[str, NDArray[np.int32]]:
        """Tokens of each text that is learned from, by side; none where no text is."""
        return {}

    @classmethod
    def lines(cls, corpus: Corpus) -> Iterator[Line]:
        """The text of `corpus.train` as it stands in its files; none where no text is."""
        del corpus
        return iter(())

    def searches(self, part: Literal["dev", "test"]) -> Search | None:
        """What a validation, or the test at the end, translates, if it does."""
        return None

    @abstractmethod
    def model(self) -> store.ModelConfig:
        """What the model is made of."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> LossSums:
        """What training minimises, summed over a batch of `train` or `dev`."""

    @abstractmethod
    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """Scores on the validation text beside the loss; with `show`, some of what the model says is shown."""

    @abstractmethod
    def test(self, model: nn.Module) -> Sequence[Score]:
        """Scores on the test text, if there is one, with all that is worth keeping written beside them."""

    @abstractmethod
    def pipeline(self, model: nn.Module) -> Pipeline:
        """The model as an object that can be used, and written to a directory."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Of the model card, such as "Transformer, en → de"."""
