"""The passes of a step through the model, forward and backward: batches in, sums of loss and gradients out.

In half precision or not, in parts where memory does not suffice, and once more where a value was not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.data.feed import AnyBatch
from regard.model import store
from regard.model.precision import faster_in_half, half_products
from regard.training.guard import RandomState, first_not_finite
from regard.training.halving import in_parts_that_fit
from regard.training.loss import LossSums, total
from regard.training.replicas import Replicas

Objective = Callable[[Any, Any], LossSums]
"""Sums of loss of a model over a batch: what the model must learn."""

Precision = Literal["float32", "bfloat16", "float16"]
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def fastest_precision(device: torch.device) -> Precision:
    """In what a model learns fastest: bfloat16 on a CPU that multiplies it faster, else float32.

    No GPU is asked: none was measured.
    """
    return "bfloat16" if device.type == "cpu" and faster_in_half() else "float32"


@dataclass(frozen=True, eq=False)
class StepSums:
    """What the passes of a step came to, beside gradients, and what is needed to repeat them."""

    loss: Tensor
    nll: Tensor
    tokens: int
    parts: list[AnyBatch]
    """The batches, or parts of them."""
    random: RandomState
    """Before the first pass."""


class Passes:
    """Computes gradients of an objective.

    float16 holds nothing below 6e-8: the loss is scaled up for the backward pass, and the gradients down again. When
    they are beyond float16 then, the scale is halved; it doubles after 2,000 steps without (Micikevicius et al. 2018).
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        device: torch.device,
        precision: Precision,
        replicas: Replicas | None = None,
    ) -> None:
        self.model, self.objective, self.device = model, objective, device
        self._replicas = replicas
        self.numbers: Precision = precision
        """What products are computed in."""
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
        self.scaler.scale(torch.zeros((), device=device))  # makes its state now, not in several threads at once

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the model computes."""
        if not self.half:
            return nullcontext()
        if self.numbers == "bfloat16" and self.device.type == "cpu":
            return half_products()
        return torch.autocast(self.device.type, dtype=HALF[self.numbers])

    @property
    def half(self) -> bool:
        """Whether some of it is computed in half precision."""
        return self.numbers in HALF

    def gradients(self, window: Sequence[AnyBatch], tokens: int) -> StepSums:
        """Set the model's gradients to those of the loss over all batches of `window`, divided by `tokens`.

        Raises:
            JobError: a single row of a batch does not fit into memory.
        """
        random = RandomState(self.device)
        parts, sums = in_parts_that_fit(window, partial(self._begin, random), partial(self._work, tokens))
        zero = torch.zeros((), device=self.device)
        loss, nll = sum((each.loss for each in sums), zero), sum((each.nll for each in sums), zero)
        return StepSums(loss, nll, tokens, parts, random)

    def unscale(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """The gradients as they are without a scale, ready to be clipped."""
        gradients = self._gradients()
        if gradients:
            self.scaler.unscale_(optimizer)
        return gradients

    def lower_scale(self) -> bool:
        """After gradients that are not finite: whether a lower scale can help, and it is lower from now on.

        It cannot where nothing was scaled, or by 1 and less.
        """
        before = self.scaler.get_scale()
        self.scaler.update()
        return 1 <= self.scaler.get_scale() < before

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer use the gradients, which are finite."""
        if self._gradients():
            self.scaler.step(optimizer)
            self.scaler.update()

    def first_not_finite(self, step: StepSums) -> str | None:
        """Which value of a step was the first that is not finite, by its passes once more; then no gradient is left.

        None where it does not come again. All modules are watched, so it is not the compiled form that is repeated.
        """
        self._begin(step.random)
        repeat, backward = partial(self._in_turn, step.parts), partial(self._backward, tokens=step.tokens)
        try:
            return first_not_finite(store.unwrap(self.model), repeat, self._forward, backward)
        except torch.OutOfMemoryError:
            return None
        finally:
            self._begin(step.random)

    def _begin(self, random: RandomState) -> None:
        """As before the first pass of a step."""
        random.restore()
        self.model.zero_grad()

    def _work(self, tokens: int, batch: AnyBatch) -> LossSums:
        if self._replicas is None:
            return self._pass(tokens, self.model, batch)
        return total(self._replicas.work(partial(self._pass, tokens), self._replicas.parts(batch)))

    def _in_turn(self, parts: Sequence[AnyBatch], work: Callable[[nn.Module, AnyBatch], None]) -> None:
        """Some other work on the same parts, with the same random numbers, by the model alone."""
        for part in parts:
            if self._replicas is None:
                work(store.unwrap(self.model), part)
            else:
                self._replicas.in_turn(work, self._replicas.parts(part))

    def _pass(self, tokens: int, model: nn.Module, batch: AnyBatch) -> LossSums:
        sums = self._forward(model, batch)
        self._backward(sums.loss, tokens)
        return replace(sums, loss=sums.loss.detach())

    def _forward(self, model: nn.Module, batch: AnyBatch) -> LossSums:
        with self.precision():
            return self.objective(model, batch.to(self.device))

    def _backward(self, loss: Tensor, tokens: int) -> None:
        if loss.requires_grad:  # all that learns may be in layers that this pass leaves out
            self.scaler.scale(loss / tokens).backward()

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.model.parameters() if weight.grad is not None]
