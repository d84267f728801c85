"""The guard of training: what has diverged is stopped at once, and the place where it began is named.

Numbers that are not finite are looked for by computing the step once more, with a watch on every module. A loss that
stays finite and still explodes is told from the noise of training by `LossWatch`. `Recovery` is what a run changes
when it goes back and tries again.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.data.feed import AnyBatch
from regard.errors import JobError
from regard.settings import Settings
from regard.training.loss import LossSums

OnDivergence = Literal["stop", "lower-rate", "full-precision"]


class GuardSettings(Settings):
    """When a loss that stays finite has exploded, and how often to go back."""

    rise: float | None = Field(1.0, gt=0, allow_inf_nan=False)
    """A median loss this many nats a target above the lowest one, and half of the way back to the first one, has
    exploded; so have five losses in a row above four times the first. Unset: only what is not finite has diverged."""
    window: int = Field(100, gt=0, le=2**16)
    """Steps that each median is of."""
    attempts: int = Field(5, gt=0)
    """A run goes back so many times, and then stops."""


class DivergenceError(JobError):
    """Training has diverged."""

    def __init__(self, step: int, place: str, what: str, since: int | None = None) -> None:
        super().__init__(
            f"step {step}: {what}. Go on from the last checkpoint with --on-divergence lower-rate, or begin anew with "
            "a lower training.schedule.peak_rate or more warmup_steps"
        )
        self.step = step
        """Where it was noticed."""
        self.place = place
        """The first value that was wrong."""
        self.what = what
        """What happened, in words."""
        self.since = step if since is None else since
        """Weights may have been harmed from this step on: checkpoints of earlier ones are good."""

    @classmethod
    def not_finite(cls, step: int, loss: float, norm: float, place: str | None) -> DivergenceError:
        """A step whose loss or gradients are not finite. It was not taken."""
        found = f"the first value that is not finite is {place}" if place else "computed once more, all was finite"
        what = f"the loss is {loss} and the gradient's norm {norm}; {found}; the weights were left as they were"
        return cls(step, place or ("the gradients" if math.isfinite(loss) else "the loss"), what)


@dataclass(frozen=True)
class Recovery:
    """What going back has changed for the rest of a run; part of its checkpoints."""

    attempts: int = 0
    """How often the run has gone back."""
    rate: float = 1.0
    """Learning rates are multiplied by it."""
    full_precision: bool = False
    """The run computes in float32, whatever its settings say."""
    step: int = 0
    """Where it went back to the last time; it has been as it is from there on."""

    def next(self, step: int, what: OnDivergence, half_precision: bool) -> Recovery:
        """What to try from `step` on after a divergence: full precision where it was not full, else half the rate."""
        again = replace(self, attempts=self.attempts + 1, step=step)
        if what == "full-precision" and half_precision and not self.full_precision:
            return replace(again, full_precision=True)
        return replace(again, rate=self.rate / 2)

    def __str__(self) -> str:
        changes = ["in float32"] * self.full_precision + [f"at {self.rate:g} of the rate"] * (self.rate != 1)
        return " and ".join(changes)


class LossWatch:
    """Tells a loss that has exploded from one that is only noisy.

    It watches the median of the last so many losses. Half of them must be high to raise it: neither a noisy start nor a
    spike that passes does that. It has exploded when it is above its lowest value by `rise` (one nat: the right tokens
    have lost a factor of e of their probability) and by half of what had been learned since the first median. The
    second condition makes the rule one for all scales: a translation that falls from 8 nats to 3 may rise to 5.5.

    No median is needed where some losses in a row are several times that of the first step, which had learned nothing
    (or 10 nats, an even guess among 22,000 tokens, where that is more).
    """

    BEYOND, IN_A_ROW, GUESS = 4, 5, 10.0

    def __init__(self, settings: GuardSettings) -> None:
        self._rise = settings.rise
        self._begin: float | None = None
        """The loss of the first step."""
        self._beyond = 0
        """How many of the last losses, in a row, were so many times that."""
        self._sane = 1
        """The last step whose loss was none that a guess would better."""
        self._recent: deque[float] = deque(maxlen=settings.window)
        self._first: float | None = None
        self._lowest: float | None = None
        self._calm = 0
        """The last step at which the median was in the lower half of what it may be."""

    def see(self, step: int, loss: float) -> None:
        """Take in the loss of a step, in nats a target. Raises `DivergenceError` when the losses have exploded."""
        self._recent.append(loss)
        self._begin = loss if self._begin is None else self._begin
        if self._rise is None:
            return
        guess = max(self._begin, self.GUESS)
        self._sane = step if loss <= guess else self._sane
        self._beyond = self._beyond + 1 if loss > self.BEYOND * guess else 0
        if self._beyond == self.IN_A_ROW:
            how = f"it is {loss:.4g} nats a target, and was {self._begin:.3f} in the beginning"
            raise self._exploded(step, how, since=self._sane)
        if len(self._recent) != self._recent.maxlen:
            return
        median = statistics.median(self._recent)
        if self._first is None or self._lowest is None:
            self._first = self._lowest = median
        self._lowest = min(self._lowest, median)
        allowed = max(self._rise, (self._first - self._lowest) / 2)
        if median <= self._lowest + allowed / 2:
            self._calm = step
        if median > self._lowest + allowed:
            half = f"half of the last {len(self._recent)} steps had more than {median:.3f} nats a target"
            # When the median begins to rise, half of the window is high already.
            since = max(self._calm - len(self._recent) // 2, 1)
            raise self._exploded(step, f"{half}, where it had been {self._lowest:.3f}", since)

    def _exploded(self, step: int, how: str, since: int) -> DivergenceError:
        what = f"the loss has exploded: {how}; the weights were left as they were"
        return DivergenceError(step, "the loss", what, since)

    def state(self) -> dict[str, Any]:
        medians = {"first": self._first, "lowest": self._lowest, "calm": self._calm}
        single = {"begin": self._begin, "beyond": self._beyond, "sane": self._sane}
        return {"recent": [*self._recent], **single, **medians}

    def load_state(self, state: dict[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._begin, self._beyond, self._sane = state["begin"], state["beyond"], state["sane"]
        self._first, self._lowest, self._calm = state["first"], state["lowest"], state["calm"]


class RandomState:
    """The state of the random numbers, to compute something once more with the same ones."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


def refuse_not_finite(tensors: Iterable[tuple[str, Tensor]], step: int) -> None:
    """Raise `DivergenceError` where a tensor has a value that is not finite: none is ever saved."""
    for name, tensor in tensors:
        kind = _not_finite(tensor)
        if kind:
            raise DivergenceError(step, name, f"{name} holds {kind} after this step; nothing was saved")


def first_not_finite(
    model: nn.Module,
    repeat: Callable[[Callable[[nn.Module, AnyBatch], None]], object],
    forward: Callable[[nn.Module, AnyBatch], LossSums],
    backward: Callable[[Tensor], None],
) -> str | None:
    """Compute a step once more and say which value was the first that is not finite; None where all are.

    Looked at in this order: weights, then of each batch its input, what each module reads and gives, the loss, and the
    gradients on their way back. Gradients are added to those that are there.

    Args:
        repeat: calls what it is given for each batch of the step, one after the other.
        forward: the sums of loss over a batch.
        backward: the backward pass from a loss.
    """
    watch = _Watch()
    for name, weight in model.named_parameters():
        watch.look(f"the weight {_spoken(name)}", weight)

    def look(model: nn.Module, batch: AnyBatch) -> None:
        for name, value in vars(batch).items():
            watch.look(f"the input {name} of the batch", value)
        if watch.found is None:
            loss = forward(model, batch).loss
            watch.look("the loss", loss)
            if watch.found is None:
                backward(loss)

    with watch.on(model):
        repeat(look)
    for name, weight in model.named_parameters():
        watch.look(f"the gradient of the weight {_spoken(name)}, summed over the step", weight.grad)
    return watch.found


class _Watch:
    """Keeps the first value that is not finite."""

    def __init__(self) -> None:
        self.found: str | None = None

    def look(self, what: str, value: object) -> None:
        """Look at the tensors in a value, if there are any."""
        if self.found is None:
            kind = next(filter(None, map(_not_finite, _tensors(value))), None)
            self.found = kind and f"{what} ({kind})"

    def on(self, model: nn.Module) -> _Hooks:
        """Look at everything that the modules of a model compute."""
        return _Hooks(self, model)


class _Hooks:
    """A context in which all modules of a model are watched."""

    def __init__(self, watch: _Watch, model: nn.Module) -> None:
        self._watch, self._model = watch, model
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> None:
        for name, module in self._model.named_modules():
            spoken = _spoken(name)
            self._handles += [
                module.register_forward_pre_hook(self._before(spoken)),
                module.register_forward_hook(self._after(spoken)),
            ]
        for name, weight in self._model.named_parameters():
            if weight.requires_grad:
                self._handles.append(self._watch_gradient(weight, f"the weight {_spoken(name)}"))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            self._watch.look(f"the input of {name}", inputs)
            return tuple(self._view(each, f"the input of {name}") for each in inputs)

        return hook

    def _view(self, value: Any, what: str) -> Any:
        """A tensor of its own for each reader, which has that reader's gradient only."""
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        view = value.view_as(value)
        self._watch_gradient(view, what)
        return view

    def _after(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._watch.look(f"the output of {name}", output)
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    self._watch_gradient(tensor, f"the output of {name}")

        return hook

    def _watch_gradient(self, tensor: Tensor, what: str) -> RemovableHandle:
        def hook(gradient: Tensor) -> None:
            self._watch.look(f"the gradient of {what}", gradient)

        handle: RemovableHandle = tensor.register_hook(hook)
        return handle


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _not_finite(tensor: Tensor) -> str | None:
    """What a tensor holds that is no number, if it does."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
        return None
    return "nan" if bool(torch.isnan(tensor).any()) else "inf"


_LAYER = re.compile(r"(encoder|decoder)\.(\d+)\.")


def _spoken(name: str) -> str:
    """A module or weight by its dotted name, its layer counted as the paper does: from one."""
    layer = _LAYER.match(f"{name}.")
    return f"{name} (layer {int(layer[2]) + 1} of the {layer[1]})" if layer else name or "the model"
