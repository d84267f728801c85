"""Classification of images: a label for each, by an encoder that reads patches (ViT)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from regard.data.examples import ImageBatches, ImageDataset, LabelledBatch
from regard.data.images import Images, digits, read_images
from regard.data.named import default_cache
from regard.errors import UserError
from regard.evaluation.classification import predictions
from regard.evaluation.metrics import Score
from regard.model import store
from regard.model.settings import HeadSettings
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.images import ImageClassifier
from regard.runs.classification import encoder
from regard.runs.prepare import described, once
from regard.runs.settings import DataSettings, Files, RunSettings
from regard.runs.task import Corpus, Run, Task
from regard.training.loss import LossSums, classification_loss


class ImageClassification(Task):
    """A label for each image."""

    family = "encoder"
    counted = "images"
    lone_source = "images and labels stand in one file, source"
    metrics = ("accuracy", "macro_f1", "loss")
    options = frozenset({"model.encoder_layers", "model.patches", "images"})
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": {"input": "patches", "tie": "none"},
        "training": {"label_smoothing": 0.0},
        "validation": {"samples": 0},
    }
    python = "classify(images)"
    command = "python -c \"import regard; model = regard.load('MODEL')\""

    @classmethod
    def corpus(cls, data: DataSettings) -> Corpus:
        if data.train is not None:
            found = Corpus(data.train, data.dev, data.test, described(data.train))
        elif data.corpus == "digits":
            paths = digits(default_cache() / "digits")
            train, dev, test = (Files(source=paths[part]) for part in ("train", "dev", "test"))
            about = "Handwritten digits of scikit-learn (Alpaydin and Kaynak 1998), 8 x 8 pixels."
            found = Corpus(train, dev, test, about)
        else:
            raise UserError(f"data.corpus: there are no images by the name {data.corpus!r}; known: digits")
        if found.dev is None:
            raise UserError("data.dev: images for validation are missing")
        for files in (found.train, found.dev, found.test):
            if files is not None:
                read_images(files.source)
        return found

    @classmethod
    def size(cls, corpus: Corpus) -> int:
        return len(read_images(corpus.train.source).names)

    @classmethod
    def choices(cls, size: int) -> dict[str, Any]:
        steps = min(max(size, 1_000), 50_000)
        return {
            "preset": "digits",
            "images": 32,
            "training": {
                "schedule": {"kind": "linear", "peak_rate": 0.002, "warmup_steps": 100},
                "optimizer": {"weight_decay": 0.01},
                "steps": steps,
                "clip_norm": 1.0,
            },
            "validation": {"every": max(steps // 10, 1)},
        }

    @classmethod
    def update(cls, settings: RunSettings) -> str:
        return f"{settings.images * settings.training.accumulate:,} images"

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        if settings.model.input != "patches":
            return f"model.input: {settings.model.input} reads no images; patches does"
        return super().mistake(settings)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        once(run, lambda: None)
        assert run.corpus.dev is not None
        train, dev = run.corpus.train.source, run.corpus.dev.source
        images = read_images(train)
        self.labels = tuple(sorted(set(images.names)))
        self.images = self._dataset(images, train)
        self.train = ImageBatches(self.images, run.settings.images, run.settings.training.seed)
        self.dev = self._dev = ImageBatches(self._dataset(read_images(dev), dev), run.settings.images)

    def _dataset(self, images: Images, path: Path) -> ImageDataset:
        """A part of the corpus; `UserError` unless its images have the size that the model reads."""
        patches = self.run.settings.model.patches
        size, wanted = images.images_NCHW.shape[1:], (patches.channels, patches.height, patches.width)
        if size != wanted:
            raise UserError(
                f"{path}: holds images of {size} where model.patches has {wanted} (channels, height, width)"
            )
        return images.dataset(self.labels, path)

    @property
    def amount(self) -> str:
        return f"{len(self.images):,} images"

    def model(self) -> store.ModelConfig:
        head = HeadSettings(kind="text", labels=self.labels)
        vocabulary = store.Vocabulary()
        return store.ModelConfig(family="encoder", vocabulary=vocabulary, head=head, model=self.run.settings.model)

    def loss(self, model: BidirectionalEncoder, batch: LabelledBatch) -> LossSums:
        training = self.run.settings.training
        return classification_loss(model, batch, training.label_smoothing, training.r_drop)

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """How many of the labels of validation are right, and F1, the mean over the labels."""
        return predictions(encoder(model), self._dev.in_order()).by_name()

    def test(self, model: nn.Module) -> list[Score]:
        """How many of the labels of the test images are right."""
        files = self.run.corpus.test
        if files is None:
            return []
        batches = ImageBatches(self._dataset(read_images(files.source), files.source), self.run.settings.images)
        return predictions(encoder(model), batches.in_order()).scores("image")

    def pipeline(self, model: nn.Module) -> ImageClassifier:
        return ImageClassifier(encoder(model))

    @property
    def title(self) -> str:
        return "Vision transformer, labels of images"
