"""Texts through an encoder: batches of like length, results in the order of the texts.

Shapes: B texts of a batch, S positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.rows import padded
from regard.model.transformer import BidirectionalEncoder
from regard.search.windows import batches, side_by_side
from regard.text.tokenizer import Tokenizer

R = TypeVar("R")

WINDOW = 1024
"""So many texts are sorted by length at a time."""

BUDGET = 8192
"""Positions of a batch, padding counted."""


def room(model: BidirectionalEncoder, tokenizer: Tokenizer) -> int:
    """How many tokens a text may have beside those that stand around it."""
    return model.settings.max_length - len(tokenizer.frames.begin) - len(tokenizer.frames.end)


def read(
    model: BidirectionalEncoder,
    tokenizer: Tokenizer,
    texts: Sequence[list[int]],
    answer: Callable[[Float[Tensor, "B S D"], list[int]], list[R]],
    workers: int = 1,
) -> list[R]:
    """What `answer` makes of the states of each text.

    Args:
        texts: token ids without what stands around a text.
        answer: from the states of a batch and the places of its texts in `texts` to a result for each.
        workers: so many threads work on batches at once.
    """
    frames = tokenizer.frames
    around = len(frames.begin) + len(frames.end)

    def work(batch: list[int]) -> list[R]:
        lines = [np.array(texts[index], dtype=np.uint32) for index in batch]
        ids_BS, real_BS = padded(lines, frames.begin, frames.end, tokenizer.pad)
        device = next(model.parameters()).device
        with torch.inference_mode():
            return answer(model.encode(ids_BS.to(device), real_BS.to(device)), batch)

    planned = list(batches([len(text) + around for text in texts], BUDGET))
    found: dict[int, R] = {}
    for batch, results in zip(planned, side_by_side(work, planned, workers), strict=True):
        found |= dict(zip(batch, results, strict=True))
    return [found[index] for index in range(len(texts))]
