"""Drawing the next token: what is drawn from, and the draw.

The first five are pure functions of scores (logits or log-probabilities: a number added to a row changes nothing) that
keep all scores or put -inf in place of some. They compose; `Sampling` applies them in this order.
Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.search.processors import NEVER
from regard.search.ranking import largest
from regard.search.settings import SamplingSettings


def temperature(scores_RV: Float[Tensor, "R V"], value: float) -> Float[Tensor, "R V"]:
    """Scores divided by `value`, above 0: below 1 the probable becomes more probable, above 1 less.

    The largest score becomes 0 first, so that no `value` makes a score too large for a float.
    """
    return (scores_RV - scores_RV.amax(dim=1, keepdim=True)) / value


def top_k(scores_RV: Float[Tensor, "R V"], count: int) -> Float[Tensor, "R V"]:
    """Only the `count` most probable tokens, and what is as probable as the last of them (Fan et al. 2018)."""
    if not 0 < count < scores_RV.shape[1]:
        return scores_RV
    least_R1 = scores_RV.topk(count, dim=1).values[:, -1:]
    return scores_RV.masked_fill(scores_RV < least_R1, NEVER)


def top_p(scores_RV: Float[Tensor, "R V"], share: float) -> Float[Tensor, "R V"]:
    """Only the fewest most probable tokens that have probability `share` together (Holtzman et al. 2020); one stays."""
    if share >= 1:
        return scores_RV
    probabilities_RV = scores_RV.softmax(dim=1)
    vocabulary, count = scores_RV.shape[1], 256
    top_RC, tokens_RC = largest(probabilities_RV, min(count, vocabulary))
    while count < vocabulary and bool((top_RC.sum(dim=1) < share).any()):  # few are mostly enough; sorting all is slow
        count *= 16
        top_RC, tokens_RC = largest(probabilities_RV, min(count, vocabulary))
    beyond_RC = top_RC.cumsum(dim=1) - top_RC >= share
    beyond_RC[:, 0] = False
    beyond_RV = torch.ones_like(scores_RV, dtype=torch.bool).scatter_(1, tokens_RC, beyond_RC)
    return scores_RV.masked_fill(beyond_RV, NEVER)


def min_p(scores_RV: Float[Tensor, "R V"], share: float) -> Float[Tensor, "R V"]:
    """Only tokens with at least `share` of the most probable one's probability (Nguyen et al. 2024)."""
    if share <= 0:
        return scores_RV
    relative_RV = (scores_RV - scores_RV.amax(dim=1, keepdim=True)).exp()
    return scores_RV.masked_fill(relative_RV < share, NEVER)


def epsilon(scores_RV: Float[Tensor, "R V"], least: float) -> Float[Tensor, "R V"]:
    """Only tokens that have at least this probability, or the most probable one (Hewitt et al. 2022)."""
    if least <= 0:
        return scores_RV
    probabilities_RV = scores_RV.softmax(dim=1)
    floor_R1 = probabilities_RV.amax(dim=1, keepdim=True).clamp(max=least)
    return scores_RV.masked_fill(probabilities_RV < floor_R1, NEVER)


def draw(scores_RV: Float[Tensor, "R V"], chance_R: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """One token for each row, by its probability; `chance_R` are numbers from [0, 1), each deciding its row alone."""
    cumulative_RV = scores_RV.double().softmax(dim=1).cumsum(dim=1)
    total_R1 = cumulative_RV[:, -1:]
    below_R1 = torch.nextafter(total_R1, torch.zeros_like(total_R1))  # the product may be rounded up to the total
    wanted_R1 = torch.minimum(chance_R.double()[:, None] * total_R1, below_R1)
    return torch.searchsorted(cumulative_RV, wanted_R1, right=True)[:, 0]


class Sampling:
    """The choice of a token by `temperature`, `top_k`, `top_p`, `min_p` and `epsilon` of the settings."""

    def __init__(self, settings: SamplingSettings) -> None:
        self._settings = settings

    def __call__(self, scores_RV: Float[Tensor, "R V"], chances: Sequence[float]) -> Int[Tensor, " R"]:
        """The token of each row; `chances` as for `draw`. With temperature 0 the first of the most probable."""
        settings = self._settings
        if settings.temperature == 0:
            return scores_RV.argmax(dim=1)
        scores_RV = temperature(scores_RV.double(), settings.temperature)
        scores_RV = top_k(scores_RV, settings.top_k)
        scores_RV = top_p(scores_RV, settings.top_p)
        scores_RV = min_p(scores_RV, settings.min_p)
        scores_RV = epsilon(scores_RV, settings.epsilon)
        return draw(scores_RV, torch.tensor(chances, dtype=torch.float64, device=scores_RV.device))
