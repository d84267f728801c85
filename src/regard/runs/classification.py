"""Classification: a label for each text, or for each word. Judged by how often the labels are right."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.data.examples import LabelledBatch, LabelledBatches
from regard.data.labelled import (
    Example,
    LabelledDataset,
    LabelledReport,
    Tagged,
    binarise_labelled,
    binarise_tagged,
    label_set,
    read_labelled,
    read_tagged,
)
from regard.data.learn import learn_tokenizer
from regard.data.named import get
from regard.errors import UserError
from regard.evaluation.classification import predictions
from regard.evaluation.metrics import Score
from regard.model import store
from regard.model.settings import HeadSettings
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.classifier import Classifier
from regard.runs.initial import initial_tokenizers
from regard.runs.prepare import credited, described, held_out, once, shown
from regard.runs.settings import DataSettings, Files, RunSettings
from regard.runs.task import Corpus, Line, Run, Task
from regard.text.lines import write_lines
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.training.loss import LossSums, classification_loss, token_classification_loss

ExampleT = TypeVar("ExampleT", Example, Tagged)


class Classification(Task, Generic[ExampleT]):
    """What the two kinds of classification of text have in common."""

    family = "encoder"
    counted = "examples"
    options = frozenset({"data.max_length", "tokenizer", "model.encoder_layers", "batches"})
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 128},
        "training": {"label_smoothing": 0.0},
        "model": {"tie": "decoder"},
    }
    head: ClassVar[Literal["text", "tokens"]]
    unit: ClassVar[str]
    """What has a label."""

    @classmethod
    @abstractmethod
    def read(cls, files: Files) -> Iterator[ExampleT]:
        """The examples of some files."""

    @classmethod
    @abstractmethod
    def text(cls, example: ExampleT) -> str:
        """The text of an example."""

    @abstractmethod
    def binarise(self, examples: Iterable[ExampleT], tokenizer: Tokenizer, part: str) -> LabelledReport:
        """Write the Arrow file of a part of the corpus."""

    @classmethod
    def corpus(cls, data: DataSettings) -> Corpus:
        found = cls._files(data)
        if found.test is not None and not any(True for _ in cls.read(found.test)):
            raise UserError(f"{found.test.source}: holds nothing to test on")
        return found

    @classmethod
    def _files(cls, data: DataSettings) -> Corpus:
        if data.train is not None:
            return Corpus(data.train, data.dev, data.test, described(data.train))
        assert data.corpus is not None
        named = get(data.corpus, "label")
        parts = (named.train, named.dev, named.test)
        train, dev, test = (Files(source=source, target=target) for source, target in parts)
        return Corpus(train, dev, test, credited(named))

    @classmethod
    def size(cls, corpus: Corpus) -> int:
        """All examples are read, so that a bad line is known before anything is begun."""
        return sum(1 for _ in cls.read(corpus.train))

    @classmethod
    def choices(cls, size: int) -> dict[str, Any]:
        steps = min(max(size // 10, 300), 10_000)
        return {
            "preset": "tiny-encoder",
            "batches": {"tokens": 2_048},
            "training": {
                "schedule": {"kind": "linear", "peak_rate": 0.0005, "warmup_steps": max(steps // 10, 1)},
                "optimizer": {"weight_decay": 0.01},
                "steps": steps,
                "clip_norm": 1.0,
            },
            "validation": {"every": max(steps // 10, 1)},
        }

    @classmethod
    def update(cls, settings: RunSettings) -> str:
        return f"{settings.batches.tokens * settings.training.accumulate:,} tokens"

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        longest, reach = settings.data.max_length, settings.model.max_length
        if longest + AROUND > reach:
            return f"data.max_length = {longest} needs a model.max_length of at least {longest + AROUND}, not {reach}"
        return super().mistake(settings)

    labels: tuple[str, ...]
    """Those of the training examples, sorted."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = run.settings
        once(run, self._prepare)
        self.tokenizers = TokenizerPair.load(run.directory)
        self.examples, self.dev_examples = self._open("train"), self._open("dev")
        self.labels = self.examples.labels
        self.train = LabelledBatches(self.examples, settings.batches, settings.training.seed)
        self.dev = self._dev = LabelledBatches(self.dev_examples, settings.batches)

    def _prepare(self) -> None:
        """Learn the tokenizer, find the labels and binarise."""
        run: Run = self.run
        settings = run.settings
        tokenizers = initial_tokenizers(settings)
        if tokenizers is None:
            tokenizer = learn_tokenizer(lambda: map(self.text, self._part("train")), settings.tokenizer)
            tokenizers = TokenizerPair(tokenizer, tokenizer)
        tokenizers.save(run.directory)
        self.labels = label_set(self._part("train"))
        if not any(True for _ in self._part("dev")):
            raise UserError(f"{run.corpus.train.source}: has no example for validation; give more, or dev files")
        run.say(f"vocabulary: {tokenizers.source.size:,} pieces; {len(self.labels)} labels: {_some(self.labels)}")
        for part in ("train", "dev", *(["test"] if run.corpus.test is not None else [])):
            run.say(f"{part}: {self.binarise(self._part(part), tokenizers.source, part)}")
        if run.corpus.dev is None:
            run.say("no dev files given: a part of the training examples is held out for validation")

    def _part(self, part: str) -> Iterator[ExampleT]:
        """The examples of a part; without dev files, a fixed choice of those to train on is kept for validation."""
        corpus = self.run.corpus
        files: Files | None = getattr(corpus, part)
        if corpus.dev is not None or part == "test":
            assert files is not None
            return self.read(files)
        return (each for each in self.read(corpus.train) if self._held_out(self.text(each)) == (part == "dev"))

    @cached_property
    def _held_out(self) -> Callable[[str], bool]:
        """Whether a text to train on is for validation, where there are no dev files."""
        return held_out(self.size(self.run.corpus))

    def _open(self, part: str) -> LabelledDataset:
        return LabelledDataset.open(self.run.data / f"{part}.arrow", self.tokenizers.source)

    @property
    def amount(self) -> str:
        return f"{len(self.examples):,} examples"

    @property
    def lengths(self) -> Mapping[str, NDArray[np.int32]]:
        return {"source": self.examples.lengths}

    @classmethod
    def lines(cls, corpus: Corpus) -> Iterator[Line]:
        return (Line(each.labels[0][1], cls.text(each), "source") for each in cls.read(corpus.train))

    def model(self) -> store.ModelConfig:
        return store.ModelConfig(
            family="encoder",
            vocabulary=store.Vocabulary(source=self.tokenizers.source.size),
            head=HeadSettings(kind=self.head, labels=self.labels),
            model=self.run.settings.model,
        )

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """How many of the labels of validation are right, and F1, the mean over the labels."""
        inner = encoder(model)
        if show:
            self._show(inner)
        return predictions(inner, self._dev.in_order()).by_name()

    def _show(self, model: BidirectionalEncoder) -> None:
        """Some examples of validation with the labels that the model gives them."""
        samples = shown(len(self.dev_examples), self.run.settings.validation.samples)
        if not samples:
            return
        tokens = [self.dev_examples.example(index)[0].tolist() for index in samples]
        texts = [" ".join(text.split()) for text in self.tokenizers.source.decode(tokens)]
        for text, said in zip(texts, self.say_labels(self.pipeline(model), texts), strict=True):
            self.run.say(f"  {text}\n  → {said}\n")

    @abstractmethod
    def say_labels(self, classifier: Classifier, texts: list[str]) -> list[str]:
        """What the classifier makes of some texts, to be shown."""

    def test(self, model: nn.Module) -> list[Score]:
        """How many of the labels of the test text are right; those that the model gives are in `test.txt`."""
        if self.run.corpus.test is None:
            return []
        inner = encoder(model)
        batches = LabelledBatches(self._open("test"), self.run.settings.batches)
        texts = [self.text(example) for example in self._part("test")]
        write_lines(self.run.directory / "test.txt", self.say_labels(self.pipeline(inner), texts))
        return predictions(inner, batches.in_order()).scores(self.unit)

    def pipeline(self, model: nn.Module) -> Classifier:
        return Classifier(encoder(model), self.tokenizers.source)

    @property
    def title(self) -> str:
        return f"Transformer, labels of {self.unit}s"


class TextClassification(Classification[Example]):
    """A label for each text."""

    head = "text"
    unit = "text"
    metrics = ("accuracy", "macro_f1", "loss")
    python = 'classify(["..."])'
    command = "regard classify MODEL 'some text'"

    @classmethod
    def read(cls, files: Files) -> Iterator[Example]:
        return read_labelled(files.source, files.target)

    @classmethod
    def text(cls, example: Example) -> str:
        return example.text

    def binarise(self, examples: Iterable[Example], tokenizer: Tokenizer, part: str) -> LabelledReport:
        path, longest = self.run.data / f"{part}.arrow", self.run.settings.data.max_length
        return binarise_labelled(examples, tokenizer, path, self.labels, max_length=longest)

    def loss(self, model: BidirectionalEncoder, batch: LabelledBatch) -> LossSums:
        training = self.run.settings.training
        return classification_loss(model, batch, training.label_smoothing, training.r_drop)

    def say_labels(self, classifier: Classifier, texts: list[str]) -> list[str]:
        return [each.best.name if each.best else "" for each in classifier.classify(texts)]


class TokenClassification(Classification[Tagged]):
    """A label for each word."""

    head = "tokens"
    lone_source = "words and labels stand in one file, source"
    unit = "word"
    metrics = ("macro_f1", "accuracy", "loss")
    python = 'label_words(["..."])'
    command = "regard classify MODEL 'some text'"

    @classmethod
    def read(cls, files: Files) -> Iterator[Tagged]:
        return read_tagged(files.source)

    @classmethod
    def text(cls, example: Tagged) -> str:
        return " ".join(example.words)

    def binarise(self, examples: Iterable[Tagged], tokenizer: Tokenizer, part: str) -> LabelledReport:
        path, longest = self.run.data / f"{part}.arrow", self.run.settings.data.max_length
        return binarise_tagged(examples, tokenizer, path, self.labels, max_length=longest)

    def loss(self, model: BidirectionalEncoder, batch: LabelledBatch) -> LossSums:
        training = self.run.settings.training
        return token_classification_loss(model, batch, training.label_smoothing, training.r_drop)

    def say_labels(self, classifier: Classifier, texts: list[str]) -> list[str]:
        return [" ".join(f"{word.text}/{word.label.name}" for word in words) for words in classifier.label_words(texts)]


AROUND = 2
"""Positions that stand around a text: its begin and end."""


def encoder(model: nn.Module) -> BidirectionalEncoder:
    """The encoder that a run has trained."""
    inner = store.unwrap(model)
    assert isinstance(inner, BidirectionalEncoder)
    return inner


def _some(labels: Sequence[str], most: int = 10) -> str:
    return ", ".join(labels[:most]) + (", ..." if len(labels) > most else "")
