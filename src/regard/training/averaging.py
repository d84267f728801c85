"""A moving average of the weights, which is often better than the weights of any step.

Polyak and Juditsky 1992; for networks like these Morales-Brotons et al. 2024, arXiv 2411.18704. The average of the last
checkpoints (section 6.1) is a coarse form of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.errors import UserError
from regard.model import store


def decay_at(step: int, decay: float) -> float:
    """What the average keeps of itself at a step: less in the beginning, so that it forgets the initial weights."""
    return min(decay, (1 + step) / (10 + step))


class MovingAverage:
    """The average of the weights of a model that learn, in float32: after each step a = d a + (1 - d) w.

    The weights themselves are not changed by it. With a decay of d it is over about the last 1 / (1 - d) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = {
            name: weight for name, weight in store.unwrap(model).named_parameters() if weight.requires_grad
        }
        self._averages = {name: weight.detach().float().clone() for name, weight in self._weights.items()}

    def update(self, step: int) -> None:
        """Take in the weights after a step."""
        move = get_ema_multi_avg_fn(decay_at(step, self._decay))
        move(list(self._averages.values()), list(self._weights.values()), None)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average in place of its weights, and then its weights again."""
        kept = [weight.detach().clone() for weight in self._weights.values()]
        try:
            _copy(self._averages.values(), self._weights.values())
            yield
        finally:
            _copy(kept, self._weights.values())

    def state(self) -> dict[str, Tensor]:
        """The averages by the names of their weights, not copied."""
        return dict(self._averages)

    def load_state(self, state: Mapping[str, Tensor], origin: str) -> None:
        """Take over averages of the same weights; where there are none, it begins anew from the weights.

        Raises:
            UserError: they are of other weights.
        """
        found = state or {name: weight.detach() for name, weight in self._weights.items()}
        shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (found, self._averages)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{origin}: its moving average is of other weights than those that learn")
        _copy((found[name] for name in self._averages), self._averages.values())


@torch.no_grad()
def _copy(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
