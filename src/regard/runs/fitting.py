"""Whether a run fits into memory, and what to change where it does not."""

from __future__ import annotations

from operator import attrgetter

import numpy as np
import torch

from regard.errors import UserError
from regard.model import store
from regard.runs import memory
from regard.runs.footprint import Footprint, Kept, Shape, count, footprint, shapes
from regard.runs.memory import size
from regard.runs.overview import longest
from regard.runs.settings import RunSettings
from regard.runs.task import Run, Task
from regard.runs.tasks import TASKS
from regard.training.trainer import Trainer

DOUBT = 0.15
"""A run is refused by an estimate only where so much less would not fit either."""

OPTIONS = {
    "batches": ("batches.tokens", "data.max_length"),
    "packing": ("packing.rows", "packing.context"),
    "masking": ("masking.tokens", "masking.context"),
    "images": ("images", "model.patches"),
}
"""The settings of a task that decide how large its batches are, and how long their rows, by one that it has."""


def refuse_hopeless(task: Task, device: torch.device, spare: int = 0) -> None:
    """Raise `UserError` where the model alone does not fit, before it is built.

    `spare` bytes are held by other processes that will not be there beside the run.
    """
    settings = task.run.settings
    weights = sum(tensor.numel() * tensor.element_size() for tensor in store.blueprint(task.model()).parameters())
    copies = 1 if settings.adapters is not None else 4  # weights, gradients and the two moments of Adam
    limit = memory.available(device) + spare
    if copies * weights > limit:
        raise UserError(
            f"the model needs {size(copies * weights)} for its weights{', gradients and optimizer' * (copies > 1)} "
            f"alone, and {size(limit)} of memory are available; {_smaller_model(settings)}"
        )


def expect(task: Task, trainer: Trainer, spare: int = 0) -> Footprint:
    """What a run is expected to need, counted without a step of training.

    Raises:
        UserError: that cannot fit; what to change is named.
    """
    sizes, kept = shapes(trainer, trainer.progress.epoch), count(trainer)
    needed = footprint(trainer, kept, sizes)
    limit = memory.available(trainer.device) + spare
    if needed.least > limit or (1 - DOUBT) * needed.peak > limit:
        raise UserError(reason(task.run, needed, kept, sizes, limit))
    return needed


def reason(run: Run, needed: Footprint, kept: Kept, sizes: list[Shape], limit: int) -> str:
    """Why it does not fit, in a sentence that says what to change."""
    largest = max(sizes, key=kept.of)
    begin = f"training needs about {size(needed.peak)}, and {size(limit)} of memory are available"
    if needed.without_batch >= limit:
        return f"{begin}: {size(needed.without_batch)} of it for any batch; {_smaller_model(run.settings)}"
    batch = f"{size(needed.peak - needed.without_batch)} of it for a batch of {largest.rows:,} x {largest.width:,.0f}"
    width = float(np.median([each.width for each in sizes]))
    usual = kept.of(Shape(round(largest.positions / width) or 1, width))
    amount, length = options(run.settings)
    room = limit - needed.without_batch
    if largest.width > 2 * width and needed.spread * usual <= room:
        lines = "; ".join(map(str, longest(run, attrgetter(length)(run.settings))))
        return f"{begin}: {batch} positions, which are long rows; lower {length}, or shorten the longest lines: {lines}"
    now: int = attrgetter(amount)(run.settings)
    fitting = int(now * room / (needed.peak - needed.without_batch))
    return (
        f"{begin}: {batch} positions; lower {amount} from {now:,} to about {max(fitting, 1):,}, or take a smaller model"
    )


def options(settings: RunSettings) -> tuple[str, str]:
    """The settings that decide how large batches are, and how long their rows."""
    own = TASKS[settings.task].options
    return next(names for section, names in OPTIONS.items() if section in own)


def _smaller_model(settings: RunSettings) -> str:
    model = settings.model
    layers = " and ".join(
        f"model.{side}_layers ({getattr(model, f'{side}_layers')})"
        for side in ("encoder", "decoder")
        if f"model.{side}_layers" in TASKS[settings.task].options
    )
    return f"choose a smaller model: model.d_model ({model.d_model}), model.d_ff ({model.d_ff}), {layers}"
