"""Several readers of one batch on a CPU: copies of the model that share its weights, each in a thread of its own.

A kernel that is spread over all cores ends when its slowest core ends, and most kernels of a small model are too short
for that. Here each core works through the whole step by itself, on its own part of the batch, and they meet once a step
(docs/decisions/009-replicas.md has the measurements).

Each part draws its dropout from a generator that is seeded from torch's at each step: what a step computes depends on
the number of replicas, not on which thread is faster, and a checkpoint needs no more than torch's own random state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import nn

from regard.data.feed import AnyBatch
from regard.model.dropout import drawing_from

BatchT = TypeVar("BatchT", bound=AnyBatch)
PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")

MOST = 4
"""With more cores than this, each replica has several of them: parts of a batch would become too small."""
FEWEST_TOKENS = 256
"""A part with fewer target tokens has products too small to be fast."""


class Replicas:
    """Does the work of (model, part) for all parts of a batch at the same time, and sums up the gradients."""

    def __init__(self, model: nn.Module, count: int, threads: int) -> None:
        """`threads`: those of torch that all `count` replicas share."""
        self.models = [model, *(_sharing(model) for _ in range(count - 1))]
        self._pool = ThreadPoolExecutor(
            count, "replica", initializer=torch.set_num_threads, initargs=(max(1, threads // count),)
        )

    def parts(self, batch: BatchT) -> list[BatchT]:
        """The batch in as many parts as there are replicas, or as have enough to do."""
        return batch.parts(max(1, min(len(self.models), len(batch), batch.target_tokens // FEWEST_TOKENS)))

    def work(self, work: Callable[[nn.Module, PartT], ResultT], parts: Sequence[PartT]) -> list[ResultT]:
        """Let replica i do `work`, a forward and a backward pass, on part i; add up the gradients in the model.

        An error of one of them is raised when all have ended.
        """
        for copied in self.models[1:]:
            copied.train(self.models[0].training)
        futures = [
            self._pool.submit(_draw_and_work, seed, work, model, part)
            for seed, model, part in zip(_seeds(parts), self.models, parts, strict=False)
        ]
        wait(futures)
        try:
            results = [future.result() for future in futures]
            self._sum_gradients()
        finally:
            for model in self.models[1:]:
                model.zero_grad()
        return results

    def in_turn(self, work: Callable[[nn.Module, PartT], ResultT], parts: Sequence[PartT]) -> list[ResultT]:
        """The same work with the same random numbers, all of it on the model itself, one part after the other."""
        model = self.models[0]
        return [_draw_and_work(seed, work, model, part) for seed, part in zip(_seeds(parts), parts, strict=True)]

    def _sum_gradients(self) -> None:
        for other in self.models[1:]:
            for parameter, copied in zip(self.models[0].parameters(), other.parameters(), strict=True):
                if parameter.grad is None:
                    parameter.grad = copied.grad
                elif copied.grad is not None:
                    parameter.grad += copied.grad


def replicas(model: nn.Module, count: int | None = None) -> Replicas | None:
    """So many replicas of the model, or as many as torch's threads; None where it does all of the work by itself."""
    threads = torch.get_num_threads()
    if count is None:
        count = max(count for count in range(1, MOST + 1) if threads % count == 0)
    return Replicas(model, count, threads) if count > 1 else None


def _sharing(model: nn.Module) -> nn.Module:
    """A copy of the model with gradients of its own, whose weights and tables are the model's."""
    shared: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, shared)


def _seeds(parts: Sequence[object]) -> list[int]:
    """The next ones, of as many generators."""
    seeds: list[int] = torch.randint(2**63 - 1, (len(parts),)).tolist()
    return seeds


def _draw_and_work(seed: int, work: Callable[[nn.Module, PartT], ResultT], model: nn.Module, part: PartT) -> ResultT:
    with drawing_from(torch.Generator().manual_seed(seed)):
        return work(model, part)
