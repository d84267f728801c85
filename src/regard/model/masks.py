"""Masks as values: which keys each query may attend to. True = may attend.

A mask over places is a rule: a function of where a query and a key stand. The same rule gives the whole mask, the rows
of a few queries, and the mask of a compiled kernel, so memory need not grow with the square of the length.

Shapes: B batch, H heads, S key positions, T query positions. A mask broadcasts: any of B, H, T may be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.model.places import Places, run
from regard.model.settings import ModelSettings, Span

Rule = Callable[[Places, Places], Tensor]
"""Whether a query may attend to a key, for tensors of places that broadcast against each other."""


class Mask:
    """Which keys each query may attend to; `a & b` allows what both allow."""

    is_causal = False
    """Exactly the square causal mask, which fused attention knows without reading it."""

    def __init__(self, allowed_BHTS: Bool[Tensor, "B H T S"], *, never_empty: bool = False) -> None:
        """`never_empty`: every query may attend to something, as is known without looking."""
        self._given_BHTS = allowed_BHTS
        self.never_empty = never_empty

    @property
    def allowed_BHTS(self) -> Bool[Tensor, "B H T S"]:
        """For each query and key: True = may attend."""
        return self._given_BHTS

    def __and__(self, other: Mask | None) -> Mask:
        return self if other is None else Mask(self.allowed_BHTS & other.allowed_BHTS)

    def rows(self, start: int, stop: int) -> Mask:
        """The mask of the queries from `start` to `stop`."""
        return self if self.allowed_BHTS.shape[2] == 1 else Mask(self.allowed_BHTS[:, :, start:stop])

    def columns(self, seen: slice | Tensor) -> Mask:
        """The mask of these keys."""
        return Mask(self.allowed_BHTS[..., seen])

    def select(self, rows: Int[Tensor, " M"]) -> Mask:
        """The mask of some rows of the batch."""
        return Mask(self.allowed_BHTS.index_select(0, rows)) if self.allowed_BHTS.shape[0] > 1 else self

    @cached_property
    def empty_BHT1(self) -> Bool[Tensor, "B H T 1"] | None:
        """The queries that may attend to nothing, or None when there are none.

        To look for them makes the host wait for a GPU.
        """
        if self.never_empty:
            return None
        empty_BHT1 = ~self.allowed_BHTS.any(dim=-1, keepdim=True)
        return empty_BHT1 if bool(empty_BHT1.any()) else None

    @cached_property
    def bias_BHTS(self) -> Float[Tensor, "B H T S"]:
        """What to add to scores: 0 where allowed, -inf elsewhere.

        A row with nothing to attend to is 0 throughout: its softmax stays finite, forwards and backwards, and
        attention sets its output to zero (`empty_BHT1`).
        """
        hidden_BHTS = ~self.allowed_BHTS
        if self.empty_BHT1 is not None:
            hidden_BHTS = hidden_BHTS & ~self.empty_BHT1
        return torch.zeros_like(hidden_BHTS, dtype=torch.float32).masked_fill_(hidden_BHTS, float("-inf"))


class PlaceMask(Mask):
    """A mask by rule, whose values are made where they are asked for."""

    def __init__(
        self, rule: Rule, queries: Places, keys: Places, is_causal: bool = False, *, never_empty: bool = False
    ) -> None:
        self.rule, self.queries, self.keys = rule, queries, keys
        self.is_causal, self.never_empty = is_causal, never_empty or is_causal

    @cached_property
    def allowed_BHTS(self) -> Bool[Tensor, "B H T S"]:
        queries = self.queries.map(lambda tensor: tensor[:, None, :, None])
        keys = self.keys.map(lambda tensor: tensor[:, None, None, :])
        allowed = self.rule(queries, keys)
        return allowed.expand(*allowed.shape[:2], len(self.queries), len(self.keys))

    def rows(self, start: int, stop: int) -> Mask:
        return PlaceMask(self.rule, self.queries.rows(start, stop), self.keys, never_empty=self.never_empty)


def every(*rules: Rule) -> Rule:
    """What all rules allow."""

    def rule(query: Places, key: Places) -> Tensor:
        allowed = rules[0](query, key)
        for other in rules[1:]:
            allowed = allowed & other(query, key)
        return allowed

    return rule


def either(one: Rule, other: Rule) -> Rule:
    """What one rule or the other allows."""
    return lambda query, key: one(query, key) | other(query, key)


def not_later(query: Places, key: Places) -> Tensor:
    """Causality: the keys up to the query's own position (section 3.2.3)."""
    return key.position <= query.position


def is_real(query: Places, key: Places) -> Tensor:
    """The keys that are no padding."""
    return _present(key.real)


def same_document(query: Places, key: Places) -> Tensor:
    """The keys of the query's own text, where a row holds several."""
    return _present(query.document) == _present(key.document)


def in_prefix(query: Places, key: Places) -> Tensor:
    """The keys of the prefix (prefix language model: Raffel et al. 2020, section 3.2.1)."""
    return _present(key.prefix)


def window(settings: ModelSettings) -> Rule:
    """Positions less than `window` apart (Child et al. 2019, arXiv 1904.10509; Mistral: Jiang et al. 2023)."""
    size = settings.window or 0
    return _with_global(settings, lambda query, key: (query.position - key.position).abs() < size)


def blocks(settings: ModelSettings) -> Rule:
    """Blocks less than `window` apart, with the first tokens global (Longformer, BigBird: arXiv 2007.14062)."""
    size, reach = settings.block, settings.window or 0
    return _with_global(settings, lambda query, key: (query.position // size - key.position // size).abs() < reach)


SPANS: dict[Span, Callable[[ModelSettings], Rule | None]] = {
    "full": lambda _: None,
    "window": window,
    "blocks": blocks,
}
"""What self-attention reaches, besides what causality, padding and documents hide."""


def self_attention_mask(
    queries: Places, keys: Places, settings: ModelSettings, span: Span, *, causal: bool
) -> Mask | None:
    """The mask of self-attention in a stack; None when nothing is hidden."""
    rules: list[Rule] = []
    if causal and not (len(queries) == 1 and keys.start is not None):
        rules.append(not_later if keys.prefix is None else either(not_later, in_prefix))
    if keys.document is not None:
        rules.append(same_document)
    reach = SPANS[span](settings)
    if reach is not None:
        rules.append(reach)
    if not rules:
        return None if keys.real is None else Mask(keys.real[:, None, None, :])
    if keys.real is not None:
        rules.append(is_real)
    whole = rules == [not_later] and queries.start is not None and queries.start == keys.start
    square = whole and len(queries) == len(keys)
    # Each rule lets a token see itself.
    return PlaceMask(every(*rules), queries, keys, is_causal=square, never_empty=keys.real is None)


def padding(keys_BS: Bool[Tensor, "B S"]) -> Mask | None:
    """Allow the real keys (True in `keys_BS`) to every query; None when all are real."""
    return None if bool(keys_BS.all()) else Mask(keys_BS[:, None, None, :])


def causal(queries: int, keys: int, device: torch.device | None = None) -> Mask | None:
    """Allow each query the keys up to its own position (section 3.2.3).

    Aligned bottom-right: the last query stands at the last key, so a chunk after a cached prefix stays causal. None
    when nothing is hidden (one query).
    """
    if queries == 1:
        return None
    places = run(keys - queries, queries, device), run(0, keys, device)
    return PlaceMask(not_later, *places, is_causal=queries == keys)


def _with_global(settings: ModelSettings, local: Rule) -> Rule:
    count = settings.global_tokens
    if not count:
        return local
    return either(local, lambda query, key: (key.position < count) | (query.position < count))


def _present(values: Tensor | None) -> Tensor:
    if values is None:
        raise ValueError("the places lack what this rule reads")
    return values
