"""Rotary positions (Su et al. 2021, arXiv 2104.09864): queries and keys are turned by angles that grow with position.

A pair of dimensions i turns by position * frequency_i, so that a query and a key meet at the angle of their distance.

Shapes: T positions, R pairs of dimensions (half the turned width), E width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.model.precision import finite
from regard.model.settings import RotaryScaling, RotarySettings


class Turn(NamedTuple):
    """Cosines and sines of the angles of some positions, in float32 at least."""

    cos: Float[Tensor, "B 1 T R"]
    sin: Float[Tensor, "B 1 T R"]


def rotate(x_BHTE: Float[Tensor, "B H T E"], turn: Turn, layout: str = "halves") -> Float[Tensor, "B H T E"]:
    """Turn each pair of dimensions (a, b) into (a cos - b sin, a sin + b cos); those beyond 2 R stay.

    Pairs are i and i + R (`halves`), or 2i and 2i + 1 (`interleaved`).
    """
    pairs = turn.cos.shape[-1]
    turned, rest = x_BHTE[..., : 2 * pairs], x_BHTE[..., 2 * pairs :]
    wide = turned.to(torch.promote_types(x_BHTE.dtype, turn.cos.dtype))
    # x * (cos, cos) + (b, a) * (-sin, sin): few whole-tensor operations, whose gradients are no more
    if layout == "interleaved":
        cos, sin = turn.cos.repeat_interleave(2, dim=-1), torch.stack((-turn.sin, turn.sin), dim=-1).flatten(-2)
        swapped = wide.unflatten(-1, (pairs, 2)).flip(-1).flatten(-2)
    else:
        cos, sin = torch.cat((turn.cos, turn.cos), dim=-1), torch.cat((-turn.sin, turn.sin), dim=-1)
        swapped = wide.roll(pairs, dims=-1)
    joined = finite(torch.addcmul(wide * cos, swapped, sin).to(x_BHTE.dtype))
    return torch.cat((joined, rest), dim=-1) if rest.shape[-1] else joined


def turn(frequencies_R: Float[Tensor, " R"], factor: float, position_BT: Int[Tensor, "B T"]) -> Turn:
    """The angles of positions, in float64 until cosine and sine are taken.

    A lower precision cannot tell far positions apart (bfloat16: 256 from 257).
    """
    frequencies_R = wide(frequencies_R, position_BT.device)
    phase = position_BT[:, None, :, None].to(frequencies_R.dtype) * frequencies_R
    return Turn((phase.cos() * factor).float(), (phase.sin() * factor).float())


def wide(frequencies_R: Float[Tensor, " R"], device: torch.device) -> Float[Tensor, " R"]:
    """On a device, in the most precision that it has."""
    return frequencies_R.to(device, torch.float32 if device.type == "mps" else torch.float64)


def frequencies(settings: RotarySettings, width: int) -> tuple[Float[Tensor, " R"], float]:
    """The angle a position of each pair of dimensions, and the factor on queries and keys that a scaling may have."""
    plain_R = _frequencies(settings.base, width)
    if settings.scaling is None:
        return plain_R, 1.0
    return SCALINGS[settings.scaling.kind](plain_R, settings.base, settings.scaling)


def _frequencies(base: float, width: int) -> Tensor:
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


Scaled = tuple[Tensor, float]


def linear(plain_R: Tensor, base: float, scaling: RotaryScaling) -> Scaled:
    """Positions are squeezed into the range of training (Chen et al. 2023, arXiv 2306.15595)."""
    return plain_R / scaling.factor, 1.0


def ntk(plain_R: Tensor, base: float, scaling: RotaryScaling) -> Scaled:
    """A larger base: the lowest frequency is scaled in full, the highest stays ("NTK-aware": Peng et al. 2023, 3.1)."""
    width = 2 * len(plain_R)
    return _frequencies(base * scaling.factor ** (width / max(width - 2, 1)), width), 1.0


def llama3(plain_R: Tensor, base: float, scaling: RotaryScaling) -> Scaled:
    """Long wavelengths are scaled, short ones stay, between them it passes over (Llama 3, arXiv 2407.21783, 3.2)."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns_R = (scaling.original_length or 0) * plain_R / (2 * math.pi)
    kept_R = ((turns_R - low) / (high - low)).clamp(0, 1)
    return plain_R * kept_R + plain_R / scaling.factor * (1 - kept_R), 1.0


def yarn(plain_R: Tensor, base: float, scaling: RotaryScaling) -> Scaled:
    """Much as llama3, and with sharper attention (YaRN: Peng et al. 2023, arXiv 2309.00071)."""
    width = 2 * len(plain_R)

    def dimension(turns: float) -> float:
        """The pair that makes so many turns over the length of training."""
        length = (scaling.original_length or 0) / (turns * 2 * math.pi)
        return width * math.log(length) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp_R = (torch.arange(len(plain_R), dtype=torch.float64, device="cpu") - low) / max(high - low, 0.001)
    scaled_share_R = ramp_R.clamp(0, 1)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0
    return plain_R / scaling.factor * scaled_share_R + plain_R * (1 - scaled_share_R), factor


SCALINGS: dict[str, Callable[[Tensor, float, RotaryScaling], Scaled]] = {
    "linear": linear,
    "ntk": ntk,
    "llama3": llama3,
    "yarn": yarn,
}
