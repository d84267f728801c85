"""The Transformer, assembled (section 3, Figure 1).

Shapes: B batch (sources), R rows of a search (R = B in training), S source positions, T target positions, D d_model,
V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.model.blocks import DecoderLayer, EncoderLayer
from regard.model.cache import Cache
from regard.model.dropout import dropout
from regard.model.masks import Mask, causal, padding
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings


@dataclass(frozen=True, eq=False)
class Memory:
    """What the encoder hands to the decoder: its output, and which of its positions are real."""

    states_BSD: Float[Tensor, "B S D"]
    mask: Mask | None

    def select(self, rows: Int[Tensor, " M"]) -> Memory:
        """The memory of some of the sources only."""
        mask = None if self.mask is None else Mask(self.mask.allowed_BHTS.index_select(0, rows))
        return Memory(self.states_BSD.index_select(0, rows), mask)


class Embedding(nn.Module):
    """Token vectors times sqrt(d_model), plus positions, with dropout (sections 3.4, 3.5, 5.4)."""

    def __init__(self, settings: ModelSettings, weight_VD: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight_VD
        self.positions = POSITIONS[settings.positions](settings)
        self.scale = math.sqrt(settings.d_model)
        self.drop = settings.dropout

    def forward(self, ids_BT: Int[Tensor, "B T"], offset: int = 0) -> Float[Tensor, "B T D"]:
        x_BTD = functional.embedding(ids_BT, self.weight) * self.scale
        return dropout(self.positions(x_BTD, offset), self.drop, self.training)


class EncoderDecoder(nn.Module):
    """The paper's model: an encoder over the source, a causal decoder over the target that attends to it."""

    family = "encoder-decoder"

    def __init__(self, settings: ModelSettings, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        target_VD = embedding_matrix(target_vocabulary, settings.d_model)
        source_VD = target_VD if settings.tie == "all" else embedding_matrix(source_vocabulary, settings.d_model)
        if settings.tie == "all" and source_vocabulary != target_vocabulary:
            raise ValueError('tie = "all" needs one vocabulary for both sides')
        self.source_embedding = Embedding(settings, source_VD)
        self.target_embedding = Embedding(settings, target_VD)
        self.output = embedding_matrix(target_vocabulary, settings.d_model) if settings.tie == "none" else target_VD
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.encoder_norm = final_norm(settings)
        self.decoder_norm = final_norm(settings)

    def encode(self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"]) -> Memory:
        """Read the source; `keys_BS` is True at real tokens."""
        mask = padding(keys_BS)
        x_BSD = self.source_embedding(source_BS)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask)
        return Memory(self.encoder_norm(x_BSD), mask)

    def decode(
        self, target_RT: Int[Tensor, "R T"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "R T D"]:
        """Hidden states of target positions: a whole sequence, or the chunk or step that follows what `cache` holds.

        Padding may only stand at the end of a row: causality keeps it from the real positions.
        """
        offset = cache.length if cache is not None else 0
        length = target_RT.shape[1]
        mask = causal(length, offset + length, target_RT.device)
        x_RTD = self.target_embedding(target_RT, offset)
        for index, layer in enumerate(self.decoder):
            layer_cache = cache.layers[index] if cache is not None else None
            x_RTD = layer(x_RTD, mask, memory.states_BSD, memory.mask, layer_cache)
        hidden_RTD: Tensor = self.decoder_norm(x_RTD)
        return hidden_RTD

    def logits(self, hidden_RTD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """The scores of every target token: the pre-softmax linear transformation (section 3.4)."""
        return functional.linear(hidden_RTD, self.output)

    def forward(
        self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"], target_BT: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of a whole target (beginning with the begin token), each position seeing those up to itself."""
        return self.decode(target_BT, self.encode(source_BS, keys_BS))

    def new_cache(self) -> Cache:
        return Cache(len(self.decoder))


def embedding_matrix(vocabulary: int, d_model: int) -> nn.Parameter:
    """Normal with variance 1 / d_model: unit variance after the factor sqrt(d_model), and as an output matrix too."""
    return nn.Parameter(torch.randn(vocabulary, d_model) * d_model**-0.5)


def final_norm(settings: ModelSettings) -> nn.Module:
    """Pre-norm stacks end in one more normalisation (Xiong et al. 2020); post-norm stacks are normalised already."""
    if settings.norm_placement == "post":
        return nn.Identity()
    return nn.LayerNorm(settings.d_model, eps=settings.norm_epsilon)
