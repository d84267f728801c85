"""What carries a model out in a search: PyTorch, also by CUDA graphs, or the compiled decoder (`regard.native`).

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
from regard.native.library import fast_bytes, kind
from regard.search.capture import Capture, capture_on, has_graphs
from regard.search.compiled import NativeDecoder, PackedModel, Precision, obstacle
from regard.search.decoder import CachedDecoder, Decoder
from regard.search.static import Pool, StaticDecoder

Choice = Literal["auto", "native", "graphs", "torch"]

SHARE = 4
"""CUDA graphs that wait for their next search hold at most one in so many of the bytes that were free."""
UNKNOWN = 2**30
"""So many bytes are taken to be free where there is no GPU to ask."""
GRAPH_DTYPES = torch.float32, torch.float16, torch.bfloat16
AGREEMENT = 20
"""Logits agree that differ by less than one in so many of the largest: half precision rounds at each of many steps."""


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

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> CachedDecoder:
        with torch.inference_mode():
            return CachedDecoder(self.model, *pad(sources, padding, self.device), forced)


class GraphExecutor:
    """An encoder-decoder on a GPU, by PyTorch, in steps that are captured as CUDA graphs (`regard.search.static`)."""

    joins = False
    alone = False

    def __init__(self, model: EncoderDecoder, capture: Capture | None = None) -> None:
        """Graphs read the model's weights where they are now: changed in place they are seen, moved they are not.

        Threads may share one as long as they share their CUDA stream, which they do unless they choose another.
        """
        self.device: torch.device = model.output.device
        graphs = has_graphs(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] if graphs else UNKNOWN
        self.pool = Pool(model, capture or capture_on(self.device), free // SHARE)
        self.plain = TorchExecutor(model)
        self.settings: Reach = model.settings
        self.about = f"{self.plain.about}, {'steps captured as CUDA graphs' if graphs else 'steps of static shapes'}"

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> StaticDecoder:
        return StaticDecoder(self.plain.begin(sources, padding, forced), self.pool, len(sources))

    @torch.inference_mode()
    def trial(self) -> str | None:
        """What is wrong with the graphs of a short search; None if they compute what they are to."""
        sources, tokens_R = [[0], [0]], torch.zeros(2, dtype=torch.long, device=self.device)
        plain, static = self.plain.begin(sources, 0, ()), self.begin(sources, 0, ())
        for _ in range(min(3, self.settings.max_length)):
            expected_RV, found_RV = plain.step(tokens_R).float(), static.step(tokens_R).float()
            largest = float(expected_RV.abs().max())
            if not torch.allclose(found_RV, expected_RV, rtol=0.0, atol=largest / AGREEMENT):
                return "what was captured computes something else"
        return self.pool.obstacle and f"a step cannot be captured: {self.pool.obstacle}"


def captured(model: SequenceToSequence) -> GraphExecutor | str:
    """What carries a model out by CUDA graphs, or why nothing can."""
    if not isinstance(model, EncoderDecoder):
        return "it is no encoder-decoder"
    parameters = list(model.parameters())
    reasons = {
        "the model is not on a GPU with CUDA graphs": not has_graphs(model.output.device),
        "the model is on several devices": len({each.device for each in parameters}) > 1,
        f"the model computes in {model.output.dtype}": model.output.dtype not in GRAPH_DTYPES,
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    executor = GraphExecutor(model)
    return executor.trial() or executor


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
    lasting: bool = True,
) -> tuple[Executor, str]:
    """The executor for a model where it is, and why that one.

    Args:
        choice: "native", "graphs" or "torch" insist on one; "torch" is PyTorch without CUDA graphs.
        precision: of the compiled decoder. "auto": int8 where the CPU multiplies bytes faster than floats. PyTorch
            works with the precision that the model has.
        shortlist: for the compiled decoder, what each source may be translated with.
        invariant: a source gives the same bits alone, among others, and on any number of threads (of PyTorch's own
            threads only while there is one). The compiled decoder always does; PyTorch gets one source at a time, and
            no CUDA graphs, whose shapes depend on what else is there.
        lasting: many searches are to come, so that it pays to capture graphs for them.

    Raises:
        UserError: what was insisted on is not possible.
        JobError: the weights are not finite.
    """
    reason = obstacle(model)
    if choice in ("graphs", "torch") or (choice == "auto" and reason is not None):
        if precision == "int8":
            excluded = f"executor = {choice} excludes it"
            raise UserError(f"precision = int8 needs the compiled decoder; {reason or excluded}")
        why = "as asked" if choice != "auto" else f"the compiled decoder does not serve: {reason}"
        return _by_torch(model, choice, invariant, lasting, why)
    if reason is not None:
        raise UserError(f"executor = native is not possible: {reason}; leave the choice open, or take torch")
    assert isinstance(model, EncoderDecoder)
    chosen: Precision = precision if precision != "auto" else "int8" if fast_bytes() else "float32"
    why = "as asked" if precision != "auto" else f"this CPU multiplies {'bytes' if fast_bytes() else 'floats'} fastest"
    return NativeExecutor(model, chosen, shortlist), why


def _by_torch(
    model: SequenceToSequence, choice: Choice, invariant: bool, lasting: bool, why: str
) -> tuple[Executor, str]:
    """With CUDA graphs where they are asked for, or possible."""
    if choice == "graphs" and invariant:
        raise UserError("executor = graphs does not give the same bits in any company: take torch, or do without")
    if choice == "graphs" or (choice == "auto" and lasting and not invariant):
        found = captured(model)
        if not isinstance(found, str):
            return found, why
        if choice == "graphs":
            raise UserError(f"executor = graphs is not possible: {found}; leave the choice open, or take torch")
        if has_graphs(next(model.parameters()).device):
            why = f"{why}; CUDA graphs do not either: {found}"
    return TorchExecutor(model, alone=invariant), why


def pad(
    lines: Sequence[list[int]], padding: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each line as a row of ids, padded at its end, and which positions are real."""
    length = max(map(len, lines))
    ids_BS = torch.tensor([[*line, *[padding] * (length - len(line))] for line in lines], device=device)
    lengths_B = torch.tensor([len(line) for line in lines], device=device)
    return ids_BS, torch.arange(length, device=device) < lengths_B[:, None]
