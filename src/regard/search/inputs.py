"""Texts to ids, so that a bad one costs that text only.

Shapes: R rows, T tokens of the longest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import UserError
from regard.search.processors import NOTHING
from regard.text.tokenizer import Tokenizer

log = logging.getLogger("regard")

NO_CHARACTER = "holds half of a surrogate pair, which is no character; read as U+FFFD"


def encode_or_replace(tokenizer: Tokenizer, texts: list[str], names: list[str]) -> list[list[int]]:
    """The ids of each text; half of a surrogate pair becomes U+FFFD, with a warning that names the text."""
    try:
        return tokenizer.encode(texts)
    except UserError:  # half of a surrogate pair somewhere, which no file holds but a Python string may
        whole = list(map(whole_characters, texts))
        for name, text, before in zip(names, whole, texts, strict=True):
            if text != before:
                log.warning("%s: %s", name, NO_CHARACTER)
        return tokenizer.encode(whole)


def whole_characters(text: str) -> str:
    """A text with U+FFFD for each half of a surrogate pair; a whole pair in two halves is one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def fill_left(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Int[Tensor, "R T"]:
    """Rows of ids that end side by side, with `NOTHING` before the shorter ones."""
    length = max(map(len, rows))
    return torch.tensor([[*[NOTHING] * (length - len(row)), *row] for row in rows], device=device)
