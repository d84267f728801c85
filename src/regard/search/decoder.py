"""What a search needs of a model, and how the Transformer gives it.

Shapes: B sources, N sources that are left, S source positions, R rows (the same number for each source, side by side),
T tokens so far, C candidates of a row, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.model.cache import Bound
from regard.model.interface import SequenceToSequence
from regard.model.transformer import CausalDecoder
from regard.search.processors import NOTHING

CHUNK = 512
"""Tokens of a prompt that are read at once: attention needs memory for their scores with all before them."""


@runtime_checkable
class Decoder(Protocol):
    """Rows of tokens that grow by one token a step.

    It begins with one row for each source, which holds what the output begins with, but for the last token of that.
    """

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append a token to each row; return the logits of the token after it."""
        ...

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        """Let row `rows_R[i]` become row i. When sources leave, `sources_N` names those that stay.

        A source may be named several times: each is a source of its own from then on.
        """
        ...


@runtime_checkable
class Chooser(Decoder, Protocol):
    """A decoder that finds the most probable tokens without handing out the scores of all, and lets sources in.

    It works on the CPU.
    """

    vocabulary: int

    def join(self, sources: Sequence[Sequence[int]]) -> None:
        """Read sources, after those that it has; each gets as many rows as each of the others."""
        ...

    def advance(self, tokens_R: Int[np.ndarray, " R"], wanted_R: Bool[np.ndarray, " R"] | None = None) -> None:
        """Append a token to each row, or to those that are wanted."""
        ...

    def candidates(
        self, count: int, allowed_V: Float[np.ndarray, " V"]
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        """The most probable tokens after each row: log-probabilities and ids, the best first.

        Of equal ones the lower id comes first. `allowed_V` holds -inf for tokens that must not come, 0 for the others;
        rows that were not wanted get -inf.
        """
        ...


@runtime_checkable
class StatesDecoder(Decoder, Protocol):
    """A decoder that also shows the hidden states of all tokens of its rows."""

    @property
    def states_RTD(self) -> Float[Tensor, "R T D"]: ...


class CachedDecoder:
    """An encoder-decoder with its cache: each step computes the new position only.

    `forced` are tokens that every row begins with, before those of the search.
    """

    def __init__(
        self,
        model: SequenceToSequence,
        source_BS: Tensor,
        keys_BS: Bool[Tensor, "B S"] | None,
        forced: Sequence[int] = (),
    ) -> None:
        if model.training:
            raise ValueError("a search needs the model in evaluation mode: call model.eval() first")
        self._model = model
        self.memory = model.encode(source_BS, keys_BS)
        self.cache = model.new_cache()
        if forced:
            forced_T = torch.tensor(forced, device=source_BS.device)
            model.decode(forced_T.expand(len(source_BS), -1), self.memory, self.cache)

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        hidden_R1D = self._model.decode(tokens_R[:, None], self.memory, self.cache)
        return self._model.logits(hidden_R1D[:, 0])

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        self.cache.reorder(rows_R, sources_N)
        if sources_N is not None:
            self.memory = self.memory.select(sources_N)


class CachedText:
    """A decoder without encoder with its cache, begun with a prompt for each row."""

    def __init__(
        self,
        model: CausalDecoder,
        prompts_RT: Int[Tensor, "R T"],
        *,
        bound: Bound | None = None,
        keep_states: bool = False,
    ) -> None:
        """Read all but the last token of each prompt; shorter ones have `NOTHING` on the left.

        `bound` limits the cache, for endless text; `keep_states` gives `states_RTD`, which take memory.
        """
        if model.training:
            raise ValueError("a search needs the model in evaluation mode: call model.eval() first")
        self._model = model
        self._cache = model.new_cache(bound)
        width = model.settings.d_model
        self._states = model.output.new_empty(len(prompts_RT), 0, width) if keep_states else None
        last = prompts_RT.shape[1] - 1
        for start in range(0, last, CHUNK):
            self._read(prompts_RT[:, start : min(start + CHUNK, last)])

    @property
    def states_RTD(self) -> Float[Tensor, "R T D"]:
        if self._states is None:
            raise ValueError("this decoder was not told to keep its states")
        return self._states

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        return self._model.logits(self._read(tokens_R[:, None])[:, -1])

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        self._cache.reorder(rows_R)
        if self._states is not None:
            self._states = self._states[rows_R]

    def _read(self, tokens_RT: Tensor) -> Tensor:
        real_RT = tokens_RT != NOTHING
        hidden_RTD = self._model.decode(tokens_RT.clamp(min=0), None if bool(real_RT.all()) else real_RT, self._cache)
        if self._states is not None:
            self._states = torch.cat((self._states, hidden_RTD), dim=1)
        return hidden_RTD
