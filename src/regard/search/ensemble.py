"""Several models that search as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.search.decoder import Decoder
from regard.search.executors import Executor


@dataclass(frozen=True)
class _Reach:
    """What all models of an ensemble can read and write."""

    max_length: int
    source_reach: int


class Ensemble:
    """An executor of models with the same vocabularies: the probability of a token is the mean of theirs.

    That is the model which takes one of them by chance for each token. The other custom, the mean of log-probabilities,
    lets any model forbid what all others would say.
    """

    joins = False

    def __init__(self, executors: Sequence[Executor], alone: bool = False) -> None:
        """`alone` as of an executor: their mean is PyTorch's, which rounds a row by where it stands among others."""
        self.executors = list(executors)
        self.device = executors[0].device
        self.alone = alone or any(each.alone for each in executors)
        self.about = f"the mean of {len(executors)} models ({'; '.join(each.about for each in executors)})"
        self.settings = _Reach(
            min(each.settings.max_length for each in executors), min(each.settings.source_reach for each in executors)
        )

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> Decoder:
        return _Decoders([(each.begin(sources, padding, forced), each.device) for each in self.executors], self.device)


class _Decoders:
    def __init__(self, members: Sequence[tuple[Decoder, torch.device]], device: torch.device) -> None:
        self._members, self._device = members, device

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        each_ERV = torch.stack(
            [
                decoder.step(tokens_R.to(device)).float().log_softmax(dim=-1).to(self._device)
                for decoder, device in self._members
            ]
        )
        return each_ERV.logsumexp(dim=0) - math.log(len(each_ERV))

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        for decoder, device in self._members:
            decoder.reorder(rows_R.to(device), None if sources_N is None else sources_N.to(device))
