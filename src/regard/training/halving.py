"""Batches that a device cannot hold, taken in halves: the same sums, in less memory at a time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from regard.data.feed import AnyBatch
from regard.errors import JobError

log = logging.getLogger("regard")

T = TypeVar("T")


def in_parts_that_fit(
    window: Sequence[AnyBatch], begin: Callable[[], None], work: Callable[[AnyBatch], T]
) -> tuple[list[AnyBatch], list[T]]:
    """Do `work` on each batch of `window`, in halves where the memory of the device does not suffice for one.

    Work that fails may have left gradients of some weights and not of others. Therefore all of it is done anew after
    each failure, from `begin`, which takes back what was done. Returns the parts and what came of each.

    Raises:
        JobError: a single row does not fit.
    """
    parts = list(window)
    while True:
        begin()
        results: list[T] = []
        try:
            for part in parts:
                results.append(work(part))
            return parts, results
        except torch.OutOfMemoryError:
            failed = len(results)
        # Out of the handler: its traceback holds all tensors of the work that failed.
        _make_room()
        parts[failed : failed + 1] = _halves(parts[failed])


def _halves(batch: AnyBatch) -> list[AnyBatch]:
    if len(batch) > 1:
        return batch.parts(2)
    indices = getattr(batch, "indices", None)
    which = "a single row" if indices is None else f"example {indices[0] + 1} of the training data alone"
    size = max(batch.source_tokens, batch.target_tokens)
    raise JobError(
        f"{which}, of {size:,} tokens, does not fit into the memory of the device; lower data.max_length (of language "
        "models packing.context or masking.context), or take a smaller model"
    )


def _make_room() -> None:
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
