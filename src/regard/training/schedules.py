"""Learning rates as functions of the step (section 5.3). Steps count from 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self

from pydantic import Field, model_validator

from regard.settings import Settings

FALLING = ("cosine", "linear")
"""Schedules that end at a chosen rate."""


class ScheduleSettings(Settings):
    """How the learning rate moves over the steps."""

    kind: Literal["paper", "inverse-sqrt", "cosine", "linear", "constant"] = "paper"
    """A row of the table in `schedules.py`."""
    peak_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The highest rate, reached at the end of the warm-up. The paper's schedule computes its own from d_model."""
    warmup_steps: int = Field(4000, gt=0, lt=2**31)
    """Steps over which the rate rises linearly from zero."""
    last: float = Field(0.0, ge=0, le=1)
    """What cosine and linear fall to by the end: this share of the peak rate."""

    @model_validator(mode="after")
    def _one_peak(self) -> Self:
        if self.kind == "paper" and self.peak_rate is not None:
            raise ValueError("the paper's schedule has no peak_rate; use kind: inverse-sqrt to choose one")
        if self.last and self.kind not in FALLING:
            raise ValueError(f"the schedule {self.kind} does not fall to a last rate; cosine and linear do")
        if self.kind != "paper" and self.peak_rate is None:
            raise ValueError(f"the schedule {self.kind} needs a peak_rate, such as 0.001")
        return self


def paper(step: int, warmup: int, d_model: int) -> float:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), equation (3)."""
    return min(1 / math.sqrt(step), step / math.sqrt(warmup**3)) / math.sqrt(d_model)


def inverse_sqrt(step: int, warmup: int, steps: int) -> float:
    """Equation (3) with its peak scaled to 1."""
    del steps
    return min(step / warmup, math.sqrt(warmup / step))


def cosine(step: int, warmup: int, steps: int) -> float:
    """Warm-up, then half a cosine wave (Loshchilov and Hutter 2017)."""
    return min(step / warmup, 0.5 * (1 + math.cos(math.pi * _progress(step, warmup, steps))))


def linear(step: int, warmup: int, steps: int) -> float:
    """Warm-up, then a straight line."""
    return min(step / warmup, 1 - _progress(step, warmup, steps))


def constant(step: int, warmup: int, steps: int) -> float:
    """Warm-up, then constant."""
    del steps
    return min(step / warmup, 1.0)


def _progress(step: int, warmup: int, steps: int) -> float:
    """From 0 at the end of the warm-up to 1 just after the last step, which still has a rate to learn with."""
    return min(1.0, max(0.0, (step - warmup) / max(1, steps + 1 - warmup)))


SHAPES: dict[str, Callable[[int, int, int], float]] = {
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}


def learning_rate(settings: ScheduleSettings, step: int, steps: int, d_model: int) -> float:
    """The rate of step `step` of `steps`."""
    if settings.peak_rate is None:
        return paper(step, settings.warmup_steps, d_model)
    share = SHAPES[settings.kind](step, settings.warmup_steps, steps)
    if step > settings.warmup_steps:
        share = settings.last + (1 - settings.last) * share
    return settings.peak_rate * share
