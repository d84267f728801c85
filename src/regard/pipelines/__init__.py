"""A model directory as a Python object: the pipeline for what the model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.pipelines.classifier import Classifier
from regard.pipelines.directory import Pipeline, choose_device, read_directory, write_directory
from regard.pipelines.filler import MaskFiller
from regard.pipelines.generator import TextGenerator
from regard.pipelines.images import ImageClassifier
from regard.pipelines.transcriber import Transcriber
from regard.pipelines.translator import Translator
from regard.search.requests import Request
from regard.search.settings import SamplingSettings

__all__ = [
    "Classifier",
    "ImageClassifier",
    "MaskFiller",
    "Pipeline",
    "Request",
    "SamplingSettings",
    "TextGenerator",
    "Transcriber",
    "Translator",
    "choose_device",
    "load",
    "write_directory",
]

PIPELINES: tuple[type[Pipeline], ...] = (
    Translator,
    TextGenerator,
    MaskFiller,
    Classifier,
    ImageClassifier,
    Transcriber,
)


def load(path: str | Path, device: str | torch.device | None = None, workers: int = 1) -> Any:
    """Read a model directory, or that of a training run, as the pipeline for its kind of model.

    That is a `Translator` for an encoder-decoder and a `TextGenerator` for a decoder. `Translator.load(path)` does the
    same for that kind only, which type checkers understand. Without `device`, the model goes to a GPU if there is one.

    `workers` batches are worked on at once. On a CPU, as many as there are cores beside `torch.set_num_threads(1)` is
    the fastest choice for many texts.

    Raises:
        UserError: the directory does not exist, or something in it is missing or damaged.
    """
    directory = read_directory(Path(path), device)
    by_kind = {kind: pipeline for pipeline in PIPELINES for kind in pipeline.kinds}
    if directory.kind not in by_kind:
        raise UserError(f"{path}: holds a model of the kind {directory.kind}, which has no answer to a text")
    pipeline = by_kind[directory.kind].of(directory)
    pipeline.workers = workers
    return pipeline
