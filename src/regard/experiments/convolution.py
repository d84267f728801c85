"""A convolutional model: "Convolutional Sequence to Sequence Learning" (Gehring et al. 2017, arXiv 1705.03122).


Equations and initial weights are of its sections 3.1 to 3.5. Two parts are left out that plain gradient descent needs
and Adam does not: weight normalisation, and smaller gradients for the encoder.

Shapes: B batch (sources), R rows of a search, S source positions, T target positions, D d_model, C channels inside.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.experiments.reference import AttentionMemory, History, ReferenceModel, ReferenceSettings, matrix
from regard.model.dropout import dropout
from regard.model.masks import padding

HALF = math.sqrt(0.5)
"""The sum of two values times this keeps their variance (section 3.4)."""


class ConvolutionSettings(ReferenceSettings):
    """A convolutional encoder-decoder."""

    encoder_layers: int = Field(4, gt=0, le=1000)
    decoder_layers: int = Field(3, gt=0, le=1000)
    kernel: int = Field(3, gt=0, le=101)
    """Positions that one convolution sees; odd, so that the encoder's have a middle."""

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("a kernel without a middle: choose an odd number")
        return kernel


class GatedConvolution(nn.Module):
    """A * sigmoid(B), where [A B] is a convolution of the input (section 3.2; GLU: Dauphin et al. 2016)."""

    def __init__(self, settings: ConvolutionSettings) -> None:
        super().__init__()
        self.drop = settings.dropout
        self.convolution = nn.Conv1d(settings.hidden, 2 * settings.hidden, settings.kernel)
        inputs = settings.kernel * settings.hidden
        normal(self.convolution, std=math.sqrt(4 * (1 - settings.dropout) / inputs))

    def forward(self, x_BSC: Float[Tensor, "B S C"]) -> Float[Tensor, "B T C"]:
        """The positions around which the whole kernel has room: T = S - kernel + 1."""
        x_BSC = dropout(x_BSC, self.drop, self.training)
        both_BCT: Tensor = self.convolution(x_BSC.transpose(1, 2))
        return functional.glu(both_BCT, dim=1).transpose(1, 2)


class ConvolutionalDecoderLayer(nn.Module):
    """A causal convolution, then attention over the source, inside one residual connection."""

    def __init__(self, settings: ConvolutionSettings) -> None:
        super().__init__()
        self.convolution = GatedConvolution(settings)
        self.query_projection = linear(settings.hidden, settings.d_model)
        self.context_projection = linear(settings.d_model, settings.hidden)

    def forward(
        self,
        x_RTC: Float[Tensor, "R T C"],
        earlier_RPC: Float[Tensor, "R P C"],
        embedded_RTD: Float[Tensor, "R T D"],
        memory: AttentionMemory,
    ) -> Float[Tensor, "R T C"]:
        """`earlier_RPC` are the kernel - 1 positions before those of `x`."""
        h_RTC: Tensor = self.convolution(torch.cat((earlier_RPC, x_RTC), dim=1))
        query_RTD = (self.query_projection(h_RTC) + embedded_RTD) * HALF
        h_RTC = (h_RTC + self.context_projection(memory.attend(query_RTD))) * HALF
        return (x_RTC + h_RTC) * HALF


class ConvolutionalEncoderDecoder(ReferenceModel):
    """Stacks of gated convolutions over the source and, looking left only, over the target."""

    def __init__(self, settings: ConvolutionSettings, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__(settings, source_vocabulary, target_vocabulary)
        self.settings = settings
        d_model, hidden = settings.d_model, settings.hidden
        self.source_positions = matrix(settings.max_length, d_model)
        self.target_positions = matrix(settings.max_length, d_model)
        self.encoder_in = linear(d_model, hidden)
        self.encoder = nn.ModuleList(GatedConvolution(settings) for _ in range(settings.encoder_layers))
        self.encoder_out = linear(hidden, d_model)
        self.decoder_in = linear(d_model, hidden)
        self.decoder = nn.ModuleList(ConvolutionalDecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.decoder_out = linear(hidden, d_model)

    def read(self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"]) -> AttentionMemory:
        hidden_BS1 = ~keys_BS[:, :, None]
        embedded_BSD = self._embed_at(source_BS, self.source_embedding, self.source_positions, offset=0)
        x_BSC = self.encoder_in(embedded_BSD)
        side = self.settings.kernel // 2
        for convolution in self.encoder:
            padded_BPC = functional.pad(x_BSC.masked_fill(hidden_BS1, 0.0), (0, 0, side, side))
            x_BSC = (x_BSC + convolution(padded_BPC)) * HALF
        keys_BSD = self.encoder_out(x_BSC)
        # Section 3.4: a mean over m values has less variance than one; times sqrt(m) it has the same again.
        length_B11 = keys_BS.sum(dim=1)[:, None, None]
        values_BSD = (keys_BSD + embedded_BSD) * HALF * length_B11.sqrt()
        return AttentionMemory(keys_BSD, values_BSD, padding(keys_BS))

    def decode(
        self, target_RT: Int[Tensor, "R T"], memory: AttentionMemory, cache: History | None = None
    ) -> Float[Tensor, "R T D"]:
        offset = 0 if cache is None else cache.length
        embedded_RTD = self._embed_at(target_RT, self.target_embedding, self.target_positions, offset)
        x_RTC = self.decoder_in(embedded_RTD)
        for index, layer in enumerate(self.decoder):
            inputs_RSC = x_RTC if cache is None else cache.append(index, x_RTC)
            x_RTC = layer(x_RTC, self._earlier(inputs_RSC, x_RTC.shape[1]), embedded_RTD, memory)
        return self.dropped(self.decoder_out(x_RTC))

    def new_cache(self) -> History:
        return History(len(self.decoder))

    def _embed_at(self, ids_BT: Tensor, weight_VD: Tensor, positions_TD: Tensor, offset: int) -> Tensor:
        """Token vectors plus position vectors, with dropout (section 3.1)."""
        end = offset + ids_BT.shape[1]
        if end > len(positions_TD):
            raise ValueError(f"{end} positions are more than the model's max_length of {len(positions_TD)}")
        return self.dropped(functional.embedding(ids_BT, weight_VD) + positions_TD[offset:end])

    def _earlier(self, inputs_RSC: Tensor, new: int) -> Tensor:
        """The kernel - 1 positions before the newest ones; zeros stand before the first."""
        wanted = self.settings.kernel - 1
        earlier_RPC = inputs_RSC[:, max(inputs_RSC.shape[1] - new - wanted, 0) : inputs_RSC.shape[1] - new]
        return functional.pad(earlier_RPC, (0, 0, wanted - earlier_RPC.shape[1], 0))


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that keeps the variance of its input."""
    return normal(nn.Linear(inputs, outputs), std=math.sqrt(1 / inputs))


L = TypeVar("L", nn.Linear, nn.Conv1d)


def normal(layer: L, std: float) -> L:
    """The initial weights of section 3.5."""
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
