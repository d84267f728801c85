"""What a search needs of a model, and how the Transformer gives it.

Shapes: B sources, N sources that are left, S source positions, R rows (the same number for each source, side by side),
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.model.interface import SequenceToSequence


@runtime_checkable
class Decoder(Protocol):
    """Rows of tokens that grow by one token a step. It begins with one empty row for each source."""

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append a token to each row; return the logits of the token after it."""
        ...

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        """Let row `rows_R[i]` become row i. When sources leave, `sources_N` names those that stay."""
        ...


class CachedDecoder:
    """An encoder-decoder with its cache: each step computes the new position only.

    `forced` are tokens that every row begins with, before those of the search.
    """

    def __init__(
        self,
        model: SequenceToSequence,
        source_BS: Int[Tensor, "B S"],
        keys_BS: Bool[Tensor, "B S"],
        forced: Sequence[int] = (),
    ) -> None:
        if model.training:
            raise ValueError("a search needs the model in evaluation mode: call model.eval() first")
        self._model = model
        self._memory = model.encode(source_BS, keys_BS)
        self._cache = model.new_cache()
        if forced:
            forced_T = torch.tensor(forced, device=source_BS.device)
            model.decode(forced_T.expand(len(source_BS), -1), self._memory, self._cache)

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        hidden_R1D = self._model.decode(tokens_R[:, None], self._memory, self._cache)
        return self._model.logits(hidden_R1D[:, 0])

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        self._cache.reorder(rows_R, sources_N)
        if sources_N is not None:
            self._memory = self._memory.select(sources_N)
