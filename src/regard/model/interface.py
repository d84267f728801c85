"""What training and search ask of a model that turns one sequence into another, whatever it is made of.

`EncoderDecoder` answers to it, and so do the models that the paper compares itself with (`regard.experiments`).

Shapes: B batch (sources), R rows of a search (k side by side for each source; R = B in training), S source positions,
T target positions, D d_model, M sources that stay, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@runtime_checkable
class Reach(Protocol):
    """Settings of a model, of which these are read."""

    @property
    def max_length(self) -> int:
        """The most positions a sequence may have."""
        ...

    @property
    def source_reach(self) -> int:
        """The most positions a source may have."""
        ...


@runtime_checkable
class DecodingCache(Protocol):
    """What decoding keeps of earlier target positions."""

    @property
    def length(self) -> int:
        """How many positions are held."""
        ...

    def reorder(self, rows_R: Int[Tensor, " R"], memory_rows: Int[Tensor, " M"] | None = None) -> None:
        """Let row `rows_R[i]` become row i; `memory_rows` names the sources that stay, when some leave."""
        ...

    def trim(self, length: int) -> None:
        """Forget all positions from `length` on."""
        ...


@runtime_checkable
class SequenceToSequence(Protocol):
    """A model that reads a source once and says a target token by token.

    `encode` reads ids [B, S] or what else the model reads; `keys_BS` is True at real positions, None when all are. The
    memory that it gives is the model's own: it goes into `decode`, and has `select(rows)` for when sources leave.
    Decoding a whole target, chunks of it and single steps with a cache are the same computation.
    """

    training: bool

    @property
    def settings(self) -> Reach: ...
    def encode(self, source_BS: Tensor, keys_BS: Bool[Tensor, "B S"] | None = None) -> Any: ...
    def decode(self, target_RT: Int[Tensor, "R T"], memory: Any, cache: Any = None) -> Float[Tensor, "R T D"]: ...
    def logits(self, hidden_RTD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]: ...
    def new_cache(self) -> DecodingCache: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
