"""Keys and values of earlier positions, kept so that a decoding step computes its own position only.

A cache is an argument: nothing is stored on a module, so one model serves any number of searches at once.
Shapes: B batch (rows of a search), H heads, S key positions, E width of a head.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, cat


class LayerCache:
    """One decoder layer: its own earlier keys and values, and those of the memory (computed once per source)."""

    def __init__(self) -> None:
        self.keys_BHSE: Tensor | None = None
        self.values_BHSE: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def append(
        self, keys_BHTE: Float[Tensor, "B H T E"], values_BHTE: Float[Tensor, "B H T Ev"]
    ) -> tuple[Float[Tensor, "B H S E"], Float[Tensor, "B H S Ev"]]:
        """Add the keys and values of new positions; return all so far."""
        if self.keys_BHSE is not None and self.values_BHSE is not None:
            keys_BHTE = cat((self.keys_BHSE, keys_BHTE), dim=2)
            values_BHTE = cat((self.values_BHSE, values_BHTE), dim=2)
        self.keys_BHSE, self.values_BHSE = keys_BHTE, values_BHTE
        return keys_BHTE, values_BHTE


class Cache:
    """The state of decoding: one `LayerCache` a layer."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many positions are held."""
        keys_BHSE = self.layers[0].keys_BHSE
        return 0 if keys_BHSE is None else keys_BHSE.shape[2]

    def reorder(self, rows_R: Int[Tensor, " R"], memory_rows: Int[Tensor, " M"] | None = None) -> None:
        """Keep row `rows_R[i]` as row i: rows may be repeated or left out.

        The memory's keys and values are shared by all rows of a source (`MultiHeadAttention`), so they change only when
        whole sources leave: `memory_rows` names the sources that stay.
        """
        for layer in self.layers:
            if layer.keys_BHSE is not None and layer.values_BHSE is not None:
                layer.keys_BHSE = layer.keys_BHSE.index_select(0, rows_R)
                layer.values_BHSE = layer.values_BHSE.index_select(0, rows_R)
            if memory_rows is not None and layer.memory is not None:
                keys, values = layer.memory
                layer.memory = keys.index_select(0, memory_rows), values.index_select(0, memory_rows)

    def trim(self, length: int) -> None:
        """Forget all positions from `length` on."""
        for layer in self.layers:
            if layer.keys_BHSE is not None and layer.values_BHSE is not None:
                layer.keys_BHSE = layer.keys_BHSE[:, :, :length]
                layer.values_BHSE = layer.values_BHSE[:, :, :length]
