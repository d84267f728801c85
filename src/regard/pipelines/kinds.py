"""Which pipeline is for which kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard import pipelines
from regard.errors import UserError
from regard.pipelines.directory import Pipeline, read_directory

PIPELINES = {
    "encoder-decoder": "Translator",
    "causal-decoder": "TextGenerator",
    "masked-lm": "MaskFiller",
    "text": "Classifier",
    "tokens": "Classifier",
    "images": "ImageClassifier",
    "speech": "Transcriber",
}
"""By name, so that only the one that is used is imported."""


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
    if directory.kind not in PIPELINES:
        raise UserError(f"{path}: holds a model of the kind {directory.kind}, which has no answer to a text")
    kind: type[Pipeline] = getattr(pipelines, PIPELINES[directory.kind])
    pipeline = kind.of(directory)
    pipeline.workers = workers
    return pipeline
