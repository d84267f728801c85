"""Keys and values of earlier positions, kept so that a decoding step computes its own position only.

A cache is an argument: nothing is stored on a module, so one model serves any number of searches at once.
Shapes: B batch (rows of a search), G key and value heads, S key positions, E width of a head, N tokens held. In a
static cache: L layers, B sources, R rows of all of them, S positions of a source, C tokens that there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, cat

from regard.model.places import Places, places, run
from regard.model.settings import ModelSettings


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


class Held(NamedTuple):
    """What a cache holds, each of a tensor for all layers, so that to choose among rows takes four kernels in all."""

    keys_LRGCE: Float[Tensor, "L R G C E"]
    values_LRGCE: Float[Tensor, "L R G C Ev"]
    memory_keys_LBGSE: Float[Tensor, "L B G S E"]
    memory_values_LBGSE: Float[Tensor, "L B G S Ev"]
    real_BS: Bool[Tensor, "B S"]
    """False at the padding of a source. Values there are zero, so that the first position of an empty source may pass
    for real, and no query has nothing to attend to."""

    @classmethod
    def by(cls, layers: Sequence[LayerCache], real_BS: Bool[Tensor, "B S"]) -> Held:
        """A copy of what some layers hold that have decoded something."""
        own, memories = [], []
        for layer in layers:
            assert layer.keys_BGSE is not None
            assert layer.values_BGSE is not None
            assert layer.memory is not None
            own.append((layer.keys_BGSE, layer.values_BGSE))
            memories.append(layer.memory)
        keys, values = (torch.stack(each) for each in zip(*own, strict=True))
        memory_keys, memory_values = (torch.stack(each) for each in zip(*memories, strict=True))
        return cls(keys, values, memory_keys, memory_values.masked_fill_(~real_BS[:, None, :, None], 0.0), real_BS)


class StaticCache:
    """A cache whose tensors never move nor grow, so that each step is the same kernels over the same memory.

    How many tokens it holds is a tensor too: nothing in a step depends on what the host knows, and a CUDA graph can
    repeat it. There are places for `width` rows of each of `sources` sources; all rows hold equally many tokens. Places
    that nobody uses are computed like the others.
    """

    def __init__(
        self, settings: ModelSettings, sources: int, width: int, source_length: int, capacity: int, like: Tensor
    ) -> None:
        """Room for so many tokens of each row, and for sources of this length; dtype and device are those of `like`."""
        self.sources, self.width = sources, width
        layers, heads = settings.decoder_layers, settings.key_heads
        d_k, d_v = settings.key_width, settings.value_width
        self.held = Held(
            like.new_empty(layers, sources * width, heads, capacity, d_k),
            like.new_empty(layers, sources * width, heads, capacity, d_v),
            like.new_empty(layers, sources, heads, source_length, d_k),
            like.new_empty(layers, sources, heads, source_length, d_v),
            like.new_empty(sources, source_length, dtype=torch.bool),
        )
        self.count_1 = like.new_empty(1, dtype=torch.long)
        self.layers = [StaticLayer(*layer) for layer in zip(*self.held[:4], strict=True)]
        self._keys = replace(run(0, capacity, like.device), start=None)
        self.clear()

    def extend(
        self,
        shape: tuple[int, int],
        real: Bool[Tensor, "B N"] | None = None,
        prefix: Bool[Tensor, "B N"] | None = None,
        device: torch.device | None = None,
    ) -> tuple[Places, Places]:
        """As `Cache.extend`, of tokens that are all real. The caller knows that there is room."""
        assert real is None
        assert prefix is None
        at_T = self.count_1 + torch.arange(shape[1], device=device)
        self.count_1 += shape[1]
        for layer in self.layers:
            layer.at_T = at_T
        return Places(at_T[None], end=len(self._keys)), self._keys

    def take(
        self, held: Held, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None, sources: int, count: int
    ) -> None:
        """Hold the first `count` tokens of these rows: equally many rows, side by side, for each of so many sources.

        `held` may be this cache's own: everything is read before it is written. `sources_N` names the sources; without
        it, they stay as they are.
        """
        width = len(rows_R) // sources
        for mine, theirs in zip(self.held[:2], held[:2], strict=True):
            places = mine.unflatten(1, (self.sources, self.width))[:, :sources, :width, :, :count]
            places.copy_(theirs[:, :, :, :count].index_select(1, rows_R).unflatten(1, (sources, width)))
        if sources_N is not None:
            length = held.real_BS.shape[1]
            for mine, theirs in zip(self.held[2:4], held[2:4], strict=True):
                mine[:, :sources, :, :length] = theirs.index_select(1, sources_N)
            self.held.real_BS[:sources, :length] = held.real_BS.index_select(0, sources_N)
            self.held.real_BS[:, 0] = True
        self.count_1.fill_(count)

    def clear(self) -> None:
        """Forget all, even what is not finite."""
        for tensor in (*self.held, self.count_1):
            tensor.zero_()
        self.held.real_BS[:, 0] = True


class StaticLayer(LayerCache):
    """One layer of a static cache."""

    def __init__(
        self,
        keys_RGCE: Float[Tensor, "R G C E"],
        values_RGCE: Float[Tensor, "R G C Ev"],
        *memory: Float[Tensor, "B G S _"],
    ) -> None:
        super().__init__()
        self._keys_RGCE, self._values_RGCE = keys_RGCE, values_RGCE
        self.memory = memory[0], memory[1]
        self.at_T: Tensor = torch.empty(0)
        """Where the next tokens go."""

    def append(
        self, keys_BGTE: Float[Tensor, "B G T E"], values_BGTE: Float[Tensor, "B G T Ev"]
    ) -> tuple[Float[Tensor, "B G S E"], Float[Tensor, "B G S Ev"]]:
        """Write keys and values of new positions to their places; return all places, what is beyond them too."""
        return (
            self._keys_RGCE.index_copy_(2, self.at_T, keys_BGTE),
            self._values_RGCE.index_copy_(2, self.at_T, values_BGTE),
        )


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
