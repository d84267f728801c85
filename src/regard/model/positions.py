"""How a model knows the order of its tokens (section 3.5): a table of schemes.

A scheme acts at one of three places: it is added to the embeddings, it turns queries and keys, or it adds a bias to
scores. One serves all layers of a stack, or all of like span.

Shapes: B batch, H heads, S key positions, T query positions, D d_model, E width of a head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.model import rotary
from regard.model.places import Places
from regard.model.settings import ModelSettings, SinusoidSettings, Span


class Positions(nn.Module):
    """No positions (Haviv et al. 2022, arXiv 2203.16634), and the base of all schemes, which do one thing more."""

    reach: int | None = None
    """How many positions there are; None where only distances are told, so that any number goes."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        """For a stack that is `causal` or not, with sequences of at most `length`, by default max_length."""
        super().__init__()

    def forward(self, x_BTD: Float[Tensor, "B T D"], places: Places) -> Float[Tensor, "B T D"]:
        """Put positions into the embeddings."""
        return x_BTD

    def of(self, span: Span) -> Positions:
        """The scheme in layers of a span."""
        return self

    def relate(self, queries: Places, keys: Places) -> Relation | None:
        """What positions do in attention; None when nothing."""
        return None


class Relation:
    """Positions of queries and keys as the attentions of one pass through a stack use them: computed once for all."""

    def __init__(self, bias: Bias | None = None) -> None:
        self.bias = bias
        """What is added to scores."""

    def turn_queries(self, x_BHTE: Float[Tensor, "B H T E"]) -> Float[Tensor, "B H T E"]:
        """Queries, or keys of the same places, turned."""
        return x_BHTE

    def turn_keys(self, x_BHSE: Float[Tensor, "B H S E"]) -> Float[Tensor, "B H S E"]:
        """All keys, those of earlier places too, turned."""
        return x_BHSE


class Bias:
    """What is added to scores."""

    def __init__(self, bias_BHTS: Float[Tensor, "B H T S"]) -> None:
        self._given_BHTS = bias_BHTS

    @property
    def dense_BHTS(self) -> Float[Tensor, "B H T S"]:
        """For each query and key."""
        return self._given_BHTS

    def rows(self, start: int, stop: int) -> Bias:
        """That of the queries from `start` to `stop`."""
        return Bias(self.dense_BHTS[:, :, start:stop])

    def columns(self, seen: slice | Tensor) -> Bias:
        """That of these keys."""
        return Bias(self.dense_BHTS[..., seen])


class PlaceBias(Bias):
    """A bias by distance, made where it is asked for."""

    def __init__(self, scheme: DistanceBiases, queries: Places, keys: Places) -> None:
        self.scheme, self.queries, self.keys = scheme, queries, keys

    @cached_property
    def dense_BHTS(self) -> Float[Tensor, "B H T S"]:
        distance = self.keys.position[:, None, None, :] - self.queries.position[:, None, :, None]
        heads_H = torch.arange(self.scheme.heads, device=distance.device)
        return self.scheme.bias(distance, heads_H[:, None, None])

    def rows(self, start: int, stop: int) -> Bias:
        return PlaceBias(self.scheme, self.queries.rows(start, stop), self.keys)


def sinusoids(length: int, d_model: int, settings: SinusoidSettings | None = None) -> Float[Tensor, "length d_model"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same) (section 3.5).

    Computed in float64, so that far positions keep their precision, and returned in float32. `settings` name the
    dialects of other toolkits.
    """
    settings = settings or SinusoidSettings()
    steps = d_model / 2 - (settings.spacing == "inclusive")
    position = torch.arange(settings.first, settings.first + length, dtype=torch.float64)[:, None]
    frequency = 10000.0 ** (-torch.arange(d_model // 2, dtype=torch.float64) / max(steps, 1))
    phase = position * frequency
    if settings.layout == "halves":
        return torch.cat((phase.sin(), phase.cos()), dim=-1).float()
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(1).float()


class SinusoidalPositions(Positions):
    """Adds the sinusoids to the embeddings. The table is computed, so it is in no file and has no length to change."""

    reach: int
    table_TD: Tensor

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.settings, self.reach = settings, length or settings.max_length
        self.register_buffer("table_TD", self._table(), persistent=False)

    def forward(self, x_BTD: Float[Tensor, "B T D"], places: Places) -> Float[Tensor, "B T D"]:
        return x_BTD + _rows(self.table_TD, places)

    def _table(self) -> Tensor:
        if torch.empty(0).is_meta:  # a model without memory needs no numbers, which would load torch's compiler
            return torch.empty(self.reach, self.settings.d_model)
        return sinusoids(self.reach, self.settings.d_model, self.settings.sinusoids)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SinusoidalPositions:
        """Follow the model's device and dtype, but from the exact table: never through a lower precision and back."""
        nn.Module._apply(self, fn, recurse)
        if not self.table_TD.is_meta:
            self.table_TD = self._table().to(self.table_TD)
        return self


class LearnedPositions(Positions):
    """Adds a learned vector per position: row (E) of the paper's Table 3 (Gehring et al. 2017)."""

    reach: int

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.reach = length or settings.max_length
        self.weight = nn.Parameter(torch.empty(self.reach, settings.d_model))
        nn.init.normal_(self.weight, std=settings.d_model**-0.5)

    def forward(self, x_BTD: Float[Tensor, "B T D"], places: Places) -> Float[Tensor, "B T D"]:
        return x_BTD + _rows(self.weight, places)


class RotaryPositions(Positions):
    """Turns queries and keys (`rotary.py`)."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.layout = settings.rotary.layout
        self.exact_R, self.factor = rotary.frequencies(settings.rotary, settings.rotary_width)
        self.frequencies_R = self.exact_R
        self.in_windows: RotaryPositions | None = None
        if settings.window_rotary is not None:
            other = settings.model_copy(update={"rotary": settings.window_rotary, "window_rotary": None})
            self.in_windows = RotaryPositions(other, causal=causal, length=length)

    def of(self, span: Span) -> Positions:
        return self.in_windows if span == "window" and self.in_windows is not None else self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryPositions:
        nn.Module._apply(self, fn, recurse)
        self.frequencies_R = rotary.wide(self.exact_R, _device(fn, self.frequencies_R))
        return self

    def turn(self, places: Places) -> rotary.Turn:
        """The angles by which queries and keys at these places are turned."""
        return rotary.turn(self.frequencies_R, self.factor, places.position)

    def relate(self, queries: Places, keys: Places) -> Relation:
        return _Turning(self, queries, keys)


class _Turning(Relation):
    """The angles of all places, each made when it is first asked for."""

    def __init__(self, scheme: RotaryPositions, queries: Places, keys: Places) -> None:
        super().__init__()
        self.scheme, self.queries, self.keys = scheme, queries, keys

    def turn_queries(self, x_BHTE: Float[Tensor, "B H T E"]) -> Float[Tensor, "B H T E"]:
        return rotary.rotate(x_BHTE, self._of_queries, self.scheme.layout)

    def turn_keys(self, x_BHSE: Float[Tensor, "B H S E"]) -> Float[Tensor, "B H S E"]:
        return rotary.rotate(x_BHSE, self._of_keys, self.scheme.layout)

    @cached_property
    def _of_queries(self) -> rotary.Turn:
        return self.scheme.turn(self.queries)

    @cached_property
    def _of_keys(self) -> rotary.Turn:
        return self.scheme.turn(self.keys)


class DistanceBiases(Positions, ABC):
    """What schemes share that add to the scores of each head by distance."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.heads = settings.heads

    @abstractmethod
    def bias(self, distance: Int[Tensor, "*places"], head: Int[Tensor, "*heads"]) -> Float[Tensor, "*scores"]:
        """What to add to the scores of a head for keys at `distance` (key position minus query position)."""

    def relate(self, queries: Places, keys: Places) -> Relation:
        return Relation(PlaceBias(self, queries, keys))


class LinearBiases(DistanceBiases):
    """Scores fall with distance, in each head at another rate (ALiBi; Press et al. 2022, arXiv 2108.12409)."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.exact_slopes = slopes(settings.heads)
        self.slopes = self.exact_slopes

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LinearBiases:
        nn.Module._apply(self, fn, recurse)
        self.slopes = self.exact_slopes.to(_device(fn, self.slopes))
        return self

    def bias(self, distance: Int[Tensor, "*places"], head: Int[Tensor, "*heads"]) -> Float[Tensor, "*scores"]:
        return -self.slopes.to(head.device)[head] * distance.abs()


def slopes(heads: int) -> Float[Tensor, " heads"]:
    """2^(-8/n), 2^(-16/n), ... for n heads; where n is no power of two, those of the powers around it (section 3)."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(first + between, device="cpu")


class BucketBiases(DistanceBiases):
    """A learned bias for each head and bucket of distances (T5; Raffel et al. 2020, arXiv 1910.10683, section 2.1)."""

    def __init__(self, settings: ModelSettings, *, causal: bool = False, length: int | None = None) -> None:
        super().__init__(settings, causal=causal, length=length)
        self.causal = causal
        self.count, self.max_distance = settings.buckets.count, settings.buckets.max_distance
        self.weight = nn.Parameter(torch.empty(self.count, settings.heads))
        nn.init.normal_(self.weight, std=settings.d_model**-0.5)

    def bias(self, distance: Int[Tensor, "*places"], head: Int[Tensor, "*heads"]) -> Float[Tensor, "*scores"]:
        return self.weight[buckets(distance, self.count, self.max_distance, self.causal), head]


def buckets(distance: Int[Tensor, "*places"], count: int, max_distance: int, causal: bool) -> Int[Tensor, "*places"]:
    """The bucket of each distance (key position minus query position).

    Half of the buckets are for one distance each, the other half are spaced evenly in its logarithm up to
    `max_distance`. Unless `causal`, later keys have half of all buckets to themselves.
    """
    first = torch.zeros_like(distance)
    if causal:
        distance = (-distance).clamp(min=0)
    else:
        count //= 2
        first = (distance > 0).long() * count
        distance = distance.abs()
    single = count // 2
    share = (distance.clamp(min=1).float() / single).log() / math.log(max_distance / single)
    far = (single + (share * (count - single)).long()).clamp(max=count - 1)
    return first + torch.where(distance < single, distance, far)


def _device(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> torch.device:
    """Where `fn`, which changes the tensors of a module, would take this one.

    What a scheme computes with goes there once: a copy in every step would make the host wait for a GPU. It does not
    follow the model's dtype.
    """
    return fn(torch.empty(0, device=tensor.device)).device


def _rows(table_TD: Tensor, places: Places) -> Tensor:
    """Rows of a table of positions; beyond its end, where slicing would quietly give fewer, `ValueError`."""
    stop = places.stop
    if stop > len(table_TD):
        raise ValueError(f"{stop} positions are more than the model's max_length of {len(table_TD)}")
    if places.start is not None:
        return table_TD[places.start : stop]
    return functional.embedding(places.position, table_TD)


POSITIONS: dict[str, type[Positions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "alibi": LinearBiases,
    "t5": BucketBiases,
    "none": Positions,
}
