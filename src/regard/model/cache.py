"""Keys and values of earlier positions, kept so that a decoding step computes its own position only.

A cache is an argument: nothing is stored on a module, so one model serves any number of searches at once.
Shapes: B batch (rows of a search), G key and value heads, S key positions, E width of a head, N tokens held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, cat

from regard.model.places import Places, places, run


@dataclass(frozen=True)
class Bound:
    """A cache that never grows beyond `sinks + recent` tokens: the first ones and the latest.

    The first tokens draw attention whatever they say; with them kept, text can go on for ever (attention sinks: Xiao et
    al. 2024, arXiv 2309.17453). Positions are counted inside the cache.
    """

    sinks: int = 4
    recent: int = 1020

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.recent < 1:
            raise ValueError(f"a bound of {self.sinks} sinks and {self.recent} recent tokens holds nothing new")

    @property
    def size(self) -> int:
        return self.sinks + self.recent


class LayerCache:
    """One decoder layer: its own earlier keys and values, and those of the memory (computed once per source)."""

    def __init__(self, moves: bool = False) -> None:
        self.moves = moves
        """Whether positions of what is held change, so that keys are held as they are before positions turn them."""
        self.keys_BGSE: Tensor | None = None
        self.values_BGSE: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def append(
        self, keys_BGTE: Float[Tensor, "B G T E"], values_BGTE: Float[Tensor, "B G T Ev"]
    ) -> tuple[Float[Tensor, "B G S E"], Float[Tensor, "B G S Ev"]]:
        """Add the keys and values of new positions; return all so far."""
        if self.keys_BGSE is not None and self.values_BGSE is not None:
            keys_BGTE = cat((self.keys_BGSE, keys_BGTE), dim=2)
            values_BGTE = cat((self.values_BGSE, values_BGTE), dim=2)
        self.keys_BGSE, self.values_BGSE = keys_BGTE, values_BGTE
        return keys_BGTE, values_BGTE


class Cache:
    """The state of decoding: one `LayerCache` a layer, and where the tokens stand that it holds."""

    def __init__(self, layers: int, bound: Bound | None = None) -> None:
        self.layers = [LayerCache(moves=bound is not None) for _ in range(layers)]
        self.bound = bound
        self.held: Places | None = None
        """The places of what is held, where its rows are not alike."""

    @property
    def length(self) -> int:
        """How many positions are held."""
        keys_BGSE = self.layers[0].keys_BGSE if self.layers else None
        return 0 if keys_BGSE is None else keys_BGSE.shape[2]

    def extend(
        self,
        shape: tuple[int, int],
        real: Bool[Tensor, "B N"] | None = None,
        prefix: Bool[Tensor, "B N"] | None = None,
        device: torch.device | None = None,
    ) -> tuple[Places, Places]:
        """The places of new tokens, and those of all with them; the layers are to append their keys next."""
        length, count = self.length, shape[1]
        if real is not None and bool(real.all()):
            real = None
        if self.held is None and real is None and prefix is None:
            return run(length, count, device), run(0, length + count, device)
        real_BN = torch.ones(shape, dtype=torch.bool, device=device) if real is None else real
        prefix_BN = torch.zeros_like(real_BN) if prefix is None else prefix
        if length:
            held = self.held or run(0, length, device)
            real_BN = cat((_or_else(held.real, True, shape[0], length, device), real_BN), dim=1)
            prefix_BN = cat((_or_else(held.prefix, False, shape[0], length, device), prefix_BN), dim=1)
        keys = places((shape[0], length + count), real_BN, None, prefix_BN, device)
        if not bool(prefix_BN.any()):
            keys = replace(keys, prefix=None)
        self.held = None if keys.real is None and keys.prefix is None else keys
        queries = keys.rows(length, length + count)
        return (replace(queries, start=length) if keys.start is not None else queries), keys

    def forget(self, count: int) -> None:
        """Give up `count` tokens of each row: padding, then the oldest behind the sinks."""
        if count <= 0 or self.bound is None:
            return
        length, sinks = self.length, self.bound.sinks
        if self.held is None or self.held.real is None:
            keep_N = torch.arange(length)
            keep_BN = keep_N[(keep_N < sinks) | (keep_N >= sinks + count)][None]
        else:
            real_BN = self.held.real
            rank_BN = real_BN.cumsum(dim=1) - 1
            # The order of leaving: padding, then real tokens by age, sinks never.
            age_BN = torch.where(real_BN, torch.where(rank_BN < sinks, length + rank_BN, rank_BN), -1)
            leaving_BN = age_BN.argsort(dim=1, stable=True)
            keep_BN = leaving_BN[:, count:].sort(dim=1).values
            self.held = replace(
                self.held.map(lambda tensor: tensor.expand(len(keep_BN), -1).gather(1, keep_BN)), start=None
            )
        for layer in self.layers:
            layer.keys_BGSE, layer.values_BGSE = _kept(layer.keys_BGSE, keep_BN), _kept(layer.values_BGSE, keep_BN)

    def reorder(self, rows_R: Int[Tensor, " R"], memory_rows: Int[Tensor, " M"] | None = None) -> None:
        """Keep row `rows_R[i]` as row i: rows may be repeated or left out.

        The memory's keys and values are shared by all rows of a source (`MultiHeadAttention`), so they change only when
        whole sources leave: `memory_rows` names the sources that stay.
        """
        if self.held is not None:
            start = self.held.start
            self.held = self.held.map(lambda tensor: tensor[rows_R] if tensor.shape[0] > 1 else tensor)
            self.held = replace(self.held, start=start)
        for layer in self.layers:
            if layer.keys_BGSE is not None and layer.values_BGSE is not None:
                layer.keys_BGSE = layer.keys_BGSE.index_select(0, rows_R)
                layer.values_BGSE = layer.values_BGSE.index_select(0, rows_R)
            if memory_rows is not None and layer.memory is not None:
                keys, values = layer.memory
                layer.memory = keys.index_select(0, memory_rows), values.index_select(0, memory_rows)

    def trim(self, length: int) -> None:
        """Forget all positions from `length` on."""
        if self.held is not None:
            self.held = replace(self.held.rows(0, length), start=self.held.start)
        for layer in self.layers:
            if layer.keys_BGSE is not None and layer.values_BGSE is not None:
                layer.keys_BGSE = layer.keys_BGSE[:, :, :length]
                layer.values_BGSE = layer.values_BGSE[:, :, :length]


def _or_else(values: Tensor | None, default: bool, rows: int, count: int, device: torch.device | None) -> Tensor:
    if values is None:
        return torch.full((rows, count), default, device=device)
    return values.expand(rows, count)


def _kept(tensor_BGSE: Tensor | None, keep_BN: Tensor) -> Tensor | None:
    if tensor_BGSE is None:
        return None
    if keep_BN.shape[0] == 1:
        return tensor_BGSE.index_select(2, keep_BN[0].to(tensor_BGSE.device))
    return tensor_BGSE.gather(2, keep_BN[:, None, :, None].expand(-1, tensor_BGSE.shape[1], -1, tensor_BGSE.shape[3]))
