"""The position-wise feed-forward layer (section 3.3) and its activations.

Shapes: B batch, T positions, D d_model, F d_ff.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.model.dropout import dropout
from regard.model.linear import linear
from regard.model.precision import finite
from regard.model.settings import ModelSettings


class Activation(NamedTuple):
    """What stands between the two maps of a feed-forward layer."""

    function: Callable[[Tensor], Tensor]
    gated: bool = False
    """The function's value of one map is multiplied with another map of the same input (Shazeer 2020)."""


gelu_tanh = partial(functional.gelu, approximate="tanh")

FEED_FORWARD: dict[str, Activation] = {
    "relu": Activation(torch.relu),  # the paper
    "gelu": Activation(functional.gelu),  # Hendrycks and Gimpel 2016, arXiv 1606.08415
    "gelu-tanh": Activation(gelu_tanh),  # its approximation there
    "silu": Activation(functional.silu),  # the same publication; as "swish" Ramachandran et al. 2017, arXiv 1710.05941
    "glu": Activation(torch.sigmoid, gated=True),  # Dauphin et al. 2017, arXiv 1612.08083
    "reglu": Activation(torch.relu, gated=True),  # this and the following: Shazeer 2020, arXiv 2002.05202
    "geglu": Activation(functional.gelu, gated=True),
    "geglu-tanh": Activation(gelu_tanh, gated=True),
    "swiglu": Activation(functional.silu, gated=True),
}


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2), or with another activation in place of max(0, .).

    Gated: (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2. W_g stands above W_1 in one parameter.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.activation, self.gated = FEED_FORWARD[settings.feed_forward]
        self.expand = linear(settings.d_model, [settings.d_ff] * (1 + self.gated), settings.feed_forward_bias)
        self.contract = linear(settings.d_ff, settings.d_model, settings.feed_forward_bias)
        self.drop = settings.activation_dropout

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden_BTF = finite(self.expand(x_BTD))
        if self.gated:
            gate_BTF, linear_BTF = hidden_BTF.chunk(2, dim=-1)
            hidden_BTF = finite(self.activation(gate_BTF) * linear_BTF)
        else:
            hidden_BTF = self.activation(hidden_BTF)
        contracted: Tensor = self.contract(dropout(hidden_BTF, self.drop, self.training))
        return contracted
