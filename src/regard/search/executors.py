"""What carries a model out in a search: PyTorch, or the compiled decoder (`regard.native`).

All give the same translations up to rounding. `fastest` chooses, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.data.shortlist import Shortlist
from regard.errors import UserError
from regard.model.interface import Reach, SequenceToSequence
from regard.model.transformer import EncoderDecoder
from regard.native.decoder import NativeDecoder, PackedModel, Precision, obstacle
from regard.native.library import fast_bytes, kind
from regard.search.decoder import CachedDecoder, Decoder

Choice = Literal["auto", "native", "torch"]


@runtime_checkable
class Executor(Protocol):
    """A model ready to be searched. Threads may share one."""

    about: str
    """What it is, in words."""
    device: torch.device
    joins: bool
    """Whether its decoders are `Chooser`s, which let sources in at any time."""
    alone: bool
    """Whether it is to be given one source at a time, so that none can change how another's numbers are rounded."""

    @property
    def settings(self) -> Reach: ...

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> Decoder:
        """Read sources, ids with what stands around them; every output begins with the `forced` tokens."""
        ...


class TorchExecutor:
    """Any model, on any device, by PyTorch."""

    joins = False

    def __init__(self, model: SequenceToSequence, alone: bool = False) -> None:
        self.model, self.alone = model, alone
        self.device: torch.device = next(model.parameters()).device
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self.about = f"PyTorch on {self.device}, {dtype}"

    @property
    def settings(self) -> Reach:
        return self.model.settings

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> Decoder:
        with torch.inference_mode():
            return CachedDecoder(self.model, *pad(sources, padding, self.device), forced)


class NativeExecutor:
    """An encoder-decoder on a CPU, by the compiled decoder, which gives the same bits in any company."""

    joins = True
    alone = False

    def __init__(self, model: EncoderDecoder, precision: Precision, shortlist: Shortlist | None = None) -> None:
        """Its weights are packed now; later changes of the model are not seen.

        Sources that join may be translated with the tokens of their `shortlist` only; those that a decoder begins with,
        with all.

        Raises:
            NativeError: there is an `obstacle`, or weights are not finite.
        """
        if model.training:
            raise ValueError("a search needs the model in evaluation mode: call model.eval() first")
        self.packed = PackedModel(model, precision)
        self.shortlist = shortlist
        self.device = torch.device("cpu")
        self.about = f"the compiled decoder ({kind()}), {precision}" + (", with a shortlist" if shortlist else "")
        self.settings: Reach = model.settings

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> Joining:
        decoder = Joining(self.packed, forced, self.shortlist)
        if sources:
            decoder.read(sources)
        return decoder


class Joining(NativeDecoder):
    """A compiled decoder whose outputs begin with forced tokens, with a shortlist for sources that join."""

    def __init__(self, packed: PackedModel, forced: Sequence[int], shortlist: Shortlist | None) -> None:
        super().__init__(packed)
        self._forced, self._shortlist = forced, shortlist

    def join(self, sources: Sequence[Sequence[int]]) -> None:
        shortlist = self._shortlist
        self.read(sources, None if shortlist is None else [shortlist.candidates(source) for source in sources])

    def read(self, sources: Sequence[Sequence[int]], shortlists: Sequence[np.ndarray] | None = None) -> None:
        before = self.rows
        super().read(sources, shortlists)
        new_R = np.arange(self.rows) >= before
        for token in self._forced:
            self.advance(np.full(self.rows, token), new_R)


def fastest(
    model: SequenceToSequence,
    choice: Choice = "auto",
    precision: Literal["auto", "float32", "int8"] = "auto",
    shortlist: Shortlist | None = None,
    invariant: bool = False,
) -> tuple[Executor, str]:
    """The executor for a model where it is, and why that one.

    Args:
        choice: "native" or "torch" insist on one.
        precision: of the compiled decoder. "auto": int8 where the CPU multiplies bytes faster than floats. PyTorch
            works with the precision that the model has.
        shortlist: for the compiled decoder, what each source may be translated with.
        invariant: a source gives the same bits alone, among others, and on any number of threads (of PyTorch's own
            threads only while there is one). The compiled decoder always does; PyTorch gets one source at a time.

    Raises:
        UserError: what was insisted on is not possible.
        JobError: the weights are not finite.
    """
    reason = obstacle(model)
    if choice == "torch" or (choice == "auto" and reason is not None):
        if precision == "int8":
            raise UserError(f"precision = int8 needs the compiled decoder; {reason or 'executor = torch excludes it'}")
        why = "as asked" if choice == "torch" else f"the compiled decoder does not serve: {reason}"
        return TorchExecutor(model, alone=invariant), why
    if reason is not None:
        raise UserError(f"executor = native is not possible: {reason}; leave the choice open, or take torch")
    assert isinstance(model, EncoderDecoder)
    chosen: Precision = precision if precision != "auto" else "int8" if fast_bytes() else "float32"
    why = "as asked" if precision != "auto" else f"this CPU multiplies {'bytes' if fast_bytes() else 'floats'} fastest"
    return NativeExecutor(model, chosen, shortlist), why


def pad(
    lines: Sequence[list[int]], padding: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each line as a row of ids, padded at its end, and which positions are real."""
    length = max(map(len, lines))
    ids_BS = torch.tensor([[*line, *[padding] * (length - len(line))] for line in lines], device=device)
    lengths_B = torch.tensor([len(line) for line in lines], device=device)
    return ids_BS, torch.arange(length, device=device) < lengths_B[:, None]
