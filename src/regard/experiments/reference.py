"""What the reference models have in common: embeddings, attention over the source, and the cache of decoding.

They are the kinds of model that the paper's Table 2 compares the Transformer with, kept small, and answer to
`regard.model.interface.SequenceToSequence`: the same trainer, loss and search work on them.

Shapes: B batch (sources), R rows of a search (k side by side for each source; R = B in training), S source positions,
T target positions, D d_model, E width of keys, F width of what a cache holds, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.model.attention import attention
from regard.model.dropout import dropout
from regard.model.masks import Mask
from regard.settings import Settings


class ReferenceSettings(Settings):
    """What every reference model is told."""

    d_model: int = Field(512, gt=0, le=2**16)
    """Width of embeddings and of the output."""
    hidden: int = Field(512, gt=0, le=2**16)
    """Width inside: units of each LSTM (and direction), or channels of each convolution."""
    encoder_layers: int = Field(2, gt=0, le=1000)
    decoder_layers: int = Field(2, gt=0, le=1000)
    max_length: int = Field(1024, gt=0, le=2**20)
    """The most positions a sequence may have."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On embeddings, between layers and on the output."""
    tie: Literal["all", "inputs", "decoder", "none"] = "all"
    """Which embeddings share one matrix: source, target and output; source and target; target and output; none."""

    @property
    def source_reach(self) -> int:
        """The most positions a source may have: the same."""
        return self.max_length

    @property
    def output_softcap(self) -> None:
        """Logits stay as they are; the loss asks."""


@dataclass(frozen=True, eq=False)
class AttentionMemory:
    """What the encoder hands to the decoder's attention."""

    keys_BSE: Float[Tensor, "B S E"]
    values_BSF: Float[Tensor, "B S F"]
    mask: Mask | None
    """Hides the padding; None when there is none."""

    def select(self, rows: Int[Tensor, " M"]) -> AttentionMemory:
        """The memory of some of the sources only."""
        mask = None if self.mask is None else self.mask.select(rows)
        return AttentionMemory(self.keys_BSE.index_select(0, rows), self.values_BSF.index_select(0, rows), mask)

    def attend(self, query_RTE: Float[Tensor, "R T E"]) -> Float[Tensor, "R T F"]:
        """softmax(Q K^T) V with one head, not scaled: what both models' papers call the context.

        The k rows of a source are folded into its query positions, so that the memory is never copied.
        """
        sources, _, width = self.keys_BSE.shape
        folded_B1UE = query_RTE.reshape(sources, 1, -1, width)
        context_B1UF = attention(folded_B1UE, self.keys_BSE[:, None], self.values_BSF[:, None], self.mask, scale=1.0)
        return context_B1UF.reshape(*query_RTE.shape[:2], -1)


class History:
    """The cache: one tensor a layer of what was computed for the target positions so far."""

    def __init__(self, layers: int) -> None:
        self._layers: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """How many positions are held."""
        first_RTF = self._layers[0]
        return 0 if first_RTF is None else first_RTF.shape[1]

    def append(self, layer: int, new_RTF: Float[Tensor, "R T F"]) -> Float[Tensor, "R S F"]:
        """Add new positions; return all so far."""
        before_RTF = self._layers[layer]
        all_RSF = new_RTF if before_RTF is None else torch.cat((before_RTF, new_RTF), dim=1)
        self._layers[layer] = all_RSF
        return all_RSF

    def last(self, layer: int) -> Float[Tensor, "R F"] | None:
        """The newest position, or None where there is none."""
        states_RTF = self._layers[layer]
        return states_RTF[:, -1] if states_RTF is not None and states_RTF.shape[1] else None

    def reorder(self, rows_R: Int[Tensor, " R"], memory_rows: Int[Tensor, " M"] | None = None) -> None:
        """Let row `rows_R[i]` become row i. Nothing of the memory is kept here, so `memory_rows` changes nothing."""
        self._layers = [None if each is None else each.index_select(0, rows_R) for each in self._layers]

    def trim(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self._layers = [None if each is None else each[:, :length] for each in self._layers]


class ReferenceModel(nn.Module, ABC):
    """Embeddings and output of a reference model; its two halves are the subclass's."""

    def __init__(self, settings: ReferenceSettings, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        one = settings.tie in ("all", "inputs")
        if one and source_vocabulary != target_vocabulary:
            raise ValueError(f'tie = "{settings.tie}" needs one vocabulary for both sides')
        target_VD = matrix(target_vocabulary, settings.d_model)
        self.source_embedding = target_VD if one else matrix(source_vocabulary, settings.d_model)
        self.target_embedding = target_VD
        tied = settings.tie in ("all", "decoder")
        self.output = target_VD if tied else matrix(target_vocabulary, settings.d_model)
        self.output_bias = None
        self.drop = settings.dropout

    def encode(self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"] | None = None) -> AttentionMemory:
        """Read the source; `keys_BS` is True at real tokens (None: all are), and padding stands at the end of a row."""
        return self.read(source_BS, torch.ones_like(source_BS, dtype=torch.bool) if keys_BS is None else keys_BS)

    @abstractmethod
    def read(self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"]) -> AttentionMemory:
        """What `encode` does, told which tokens are real."""

    @abstractmethod
    def decode(
        self, target_RT: Int[Tensor, "R T"], memory: AttentionMemory, cache: History | None = None
    ) -> Float[Tensor, "R T D"]:
        """Hidden states of target positions: a whole sequence, or what follows the positions in `cache`."""

    @abstractmethod
    def new_cache(self) -> History:
        """An empty cache."""

    def forward(
        self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"] | None, target_BT: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of a whole target (beginning with the begin token), each position seeing those up to itself."""
        return self.decode(target_BT, self.encode(source_BS, keys_BS))

    def logits(self, hidden_RTD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """The scores of every target token."""
        return functional.linear(hidden_RTD, self.output)

    def dropped(self, x: Tensor) -> Tensor:
        """With dropout, when the model is learning."""
        return dropout(x, self.drop, self.training)


def matrix(rows: int, width: int) -> nn.Parameter:
    """Normal with variance 1 / width."""
    return nn.Parameter(torch.randn(rows, width) * width**-0.5)
