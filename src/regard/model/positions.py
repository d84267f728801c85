"""How a model knows the order of its tokens (section 3.5).

Shapes: B batch, T positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.model.settings import ModelSettings


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same) (section 3.5).

    Computed in float64, so that far positions keep their precision, and returned in float32.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    phase = position * frequency
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(1).float()


class SinusoidalPositions(nn.Module):
    """Adds the sinusoids to the embeddings. The table is computed, so it is in no file and has no length to change."""

    table_TD: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.register_buffer("table_TD", sinusoids(settings.max_length, settings.d_model), persistent=False)

    def forward(self, x_BTD: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        return x_BTD + _rows(self.table_TD, offset, x_BTD.shape[1])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SinusoidalPositions:
        """Follow the model's device and dtype, but from the exact table: never through a lower precision and back."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        length, d_model = self.table_TD.shape
        if not self.table_TD.is_meta:
            self.table_TD = sinusoids(length, d_model).to(self.table_TD)
        return self


class LearnedPositions(nn.Module):
    """Adds a learned vector per position: row (E) of the paper's Table 3 (Gehring et al. 2017)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(settings.max_length, settings.d_model))
        nn.init.normal_(self.weight, std=settings.d_model**-0.5)

    def forward(self, x_BTD: Float[Tensor, "B T D"], offset: int = 0) -> Float[Tensor, "B T D"]:
        return x_BTD + _rows(self.weight, offset, x_BTD.shape[1])


def _rows(table_TD: Tensor, offset: int, count: int) -> Tensor:
    """Rows of a table of positions; beyond its end, where slicing would quietly give fewer, `ValueError`."""
    if offset + count > len(table_TD):
        raise ValueError(f"{offset + count} positions are more than the model's max_length of {len(table_TD)}")
    return table_TD[offset : offset + count]


POSITIONS: dict[str, Callable[[ModelSettings], nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
}
