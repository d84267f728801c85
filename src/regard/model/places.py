"""Where each token of a batch stands: what masks and positions need to know.

Shapes: B batch (1 where all rows are alike), N tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the tokens of a batch: tensors [B, N], each with B = 1 where its rows are alike."""

    position: Tensor
    """The place in its text, counted from 0 over real tokens: int."""
    start: int | None = None
    """Where rows are alike and whole: the first position, the others following it."""
    real: Tensor | None = None
    """False at padding; None where all are real."""
    document: Tensor | None = None
    """The number of the text that a token belongs to, where a row holds several: int."""
    prefix: Tensor | None = None
    """Whether a token is of the part that is seen from everywhere, also from before."""
    end: int | None = None
    """No position is at or beyond this one, where that is known without looking at them."""

    def __len__(self) -> int:
        return self.position.shape[-1]

    @property
    def stop(self) -> int:
        """A position that all of these come before; to look for it makes the host wait for a GPU."""
        if self.start is not None:
            return self.start + len(self)
        return int(self.position.max()) + 1 if self.end is None else self.end

    def map(self, function: Callable[[Tensor], Tensor]) -> Places:
        """The places with `function` applied to each tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: function(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, start=None, end=None, **changed)

    def at(self, row: Tensor, index: Tensor) -> Places:
        """The place of one token: for functions that are compiled into a kernel."""

        def value(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[row if tensor.shape[0] > 1 else 0, index]

        position = self.position[row if self.position.shape[0] > 1 else 0, index]
        return Places(position, None, value(self.real), value(self.document), value(self.prefix))

    def rows(self, start: int, stop: int) -> Places:
        """Those of columns `start` to `stop`."""
        return self.map(lambda tensor: tensor[..., start:stop])


def run(start: int, count: int, device: torch.device | None = None) -> Places:
    """`count` tokens without padding that begin at position `start`."""
    return Places(torch.arange(start, start + count, device=device)[None], start)


def places(
    shape: tuple[int, int],
    real: Bool[Tensor, "B N"] | None = None,
    document: Int[Tensor, "B N"] | None = None,
    prefix: Bool[Tensor, "B N"] | None = None,
    device: torch.device | None = None,
) -> Places:
    """The places of whole rows: positions count the real tokens of each document.

    Padding that stands at the ends of rows only leaves the positions of all rows alike.
    """
    if real is not None and bool(real.all()):
        real = None
    if document is None and (real is None or not bool((real[:, 1:] & ~real[:, :-1]).any())):
        return replace(run(0, shape[1], device), real=real, prefix=prefix)
    real_BN = torch.ones(shape, dtype=torch.bool, device=device) if real is None else real
    counted = real_BN.cumsum(dim=1)
    if document is not None:
        begins = torch.ones_like(real_BN)
        begins[:, 1:] = document[:, 1:] != document[:, :-1]
        document = begins.cumsum(dim=1)  # a number that comes back is another document, as positions begin anew
        before = torch.where(begins, counted - real_BN.long(), 0).cummax(dim=1).values
        counted = counted - before
    return Places((counted - 1).clamp(min=0), None, real, document, prefix)
