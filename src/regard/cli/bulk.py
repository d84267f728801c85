"""A model for the commands that put many lines through it."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.pipelines import Translator, load


def load_for_bulk(model: Path, device: str | None) -> Translator:
    """Read a model so that batches are worked on side by side, one to a core (`OMP_NUM_THREADS` bounds them)."""
    translator = load(model, device)
    if translator.model.output.device.type == "cpu":
        translator.workers = torch.get_num_threads()
        torch.set_num_threads(1)
    return translator
