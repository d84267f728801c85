"""A model for the commands that put many lines through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

from regard.pipelines import Pipeline, Translator

P = TypeVar("P", bound=Pipeline)


def load_for_bulk(model: Path | Sequence[Path], device: str | None) -> Translator:
    """Read a model that translates, or an ensemble, so that batches are worked on side by side."""
    return side_by_side(Translator.load(model, device))


def side_by_side(pipeline: P) -> P:
    """Let the pipeline work on several batches at once, one to a core (`OMP_NUM_THREADS` bounds them)."""
    if pipeline.device.type == "cpu":
        pipeline.workers = torch.get_num_threads()
        torch.set_num_threads(1)
    return pipeline
