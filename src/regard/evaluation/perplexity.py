"""How well a causal language model predicts a text.

Shapes: B windows, T positions, N scored tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.errors import JobError, UserError
from regard.model.transformer import CausalDecoder
from regard.search.windows import windows
from regard.text.tokenizer import Tokenizer
from regard.training import loss


@dataclass(frozen=True)
class Perplexity:
    """The negative log-likelihood of a text, per unit of choice."""

    nll: float
    """In nats, of all scored tokens together."""
    tokens: int
    """Scored tokens."""
    characters: int
    """Characters of the text."""
    bytes: int
    """Bytes of the text in UTF-8."""

    @property
    def per_token(self) -> float:
        """exp(nll / tokens): compares models of one vocabulary."""
        return loss.perplexity(self.nll, self.tokens)

    @property
    def per_character(self) -> float:
        """exp(nll / characters): compares models of any vocabulary."""
        return loss.perplexity(self.nll, self.characters)

    @property
    def bits_per_byte(self) -> float:
        """The same for scripts of any kind: bits that the model would need to store a byte of the text."""
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan


class _Window(NamedTuple):
    """The tokens from `begin` to `end` are read, those from `first` on are scored."""

    begin: int
    first: int
    end: int


def perplexity(
    model: CausalDecoder,
    tokenizer: Tokenizer,
    text: str,
    *,
    context: int | None = None,
    stride: int | None = None,
    rows: int = 8,
) -> Perplexity:
    """Score a text of any length by a window that slides over it, as Hugging Face's guide to perplexity defines it.

    Each token is scored once, with all tokens before it in the window; from the second window on those are at least
    `context - stride`. What the tokenizer puts before a text is read and not scored; without such a token the first
    one of the text is not. The model must be in evaluation mode.

    Args:
        context: tokens of a window; by default as many as the model can read.
        stride: tokens between the beginnings of two windows; by default half of `context`.
        rows: windows that are read at a time.

    Raises:
        UserError: the context is more than the model can read, or the stride does not fit into it.
        JobError: the model gives NaN or infinite scores.
    """
    reach = model.settings.max_length
    context = reach if context is None else context
    stride = max(context // 2, 1) if stride is None else stride
    if not 2 <= context <= reach:
        raise UserError(f"context: {context} is not between 2 and {reach}, the most that the model can read")
    if not 1 <= stride < context:
        raise UserError(f"stride: {stride} is not between 1 and {context - 1}, one less than context")
    ids = [*tokenizer.frames.begin, *tokenizer.encode([text])[0]]
    unscored = max(len(tokenizer.frames.begin), 1)
    nll = 0.0
    for chunk in windows(_slide(len(ids), unscored, context, stride), rows):
        nll += _score(model, ids, chunk)
    if not math.isfinite(nll):
        raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
    return Perplexity(nll, max(len(ids) - unscored, 0), len(text), len(text.encode()))


def _slide(length: int, unscored: int, context: int, stride: int) -> Iterator[_Window]:
    begin, first = 0, unscored
    while first < length:
        end = min(begin + context, length)
        if end > first:
            yield _Window(begin, first, end)
            first = end
        begin += stride


@torch.inference_mode()
def _score(model: CausalDecoder, ids: Sequence[int], chunk: Sequence[_Window]) -> float:
    """The negative log-likelihood of the scored tokens of some windows."""
    device = model.output.device
    longest = max(window.end - window.begin for window in chunk)
    tokens_BT = torch.zeros(len(chunk), longest, dtype=torch.long)
    scored_BT = torch.zeros(len(chunk), longest, dtype=torch.bool)
    for row, (begin, first, end) in enumerate(chunk):
        tokens_BT[row, : end - begin] = torch.tensor(ids[begin:end])  # what follows is hidden by causality
        scored_BT[row, first - begin : end - begin] = True
    tokens_BT, scored_BT = tokens_BT.to(device), scored_BT.to(device)
    hidden_ND = model.decode(tokens_BT)[:, :-1][scored_BT[:, 1:]]
    _, nll = loss.vocabulary_loss(model, hidden_ND, tokens_BT[scored_BT], smoothing=0.0)
    return float(nll)
