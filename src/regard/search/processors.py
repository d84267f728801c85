"""What may come next: functions between the model's log-probabilities and the search, shared by all searches.

Shapes: R rows of a search, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Processor(Protocol):
    """Changes the log-probabilities of the next token; -inf forbids a token.

    The result is not normalised again, so a hypothesis keeps the probability that the model gives it.
    """

    def __call__(
        self,
        log_probabilities_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        """`tokens_RT` are each row's tokens so far, `sources_R` the source it belongs to. May work in place."""
        ...


class Ban:
    """Forbids tokens everywhere."""

    def __init__(self, ids: Sequence[int], device: torch.device | str = "cpu") -> None:
        self._ids = torch.tensor(ids, dtype=torch.int64, device=device)

    def __call__(
        self,
        log_probabilities_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        return log_probabilities_RV.index_fill_(1, self._ids, float("-inf"))
