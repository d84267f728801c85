"""Given pairs read by a model, in batches: each target token is predicted from those given before it (teacher forcing).

Shapes: B batch, S source positions, T target positions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from regard.model.transformer import EncoderDecoder
from regard.search.engine import WINDOW, pad_sources
from regard.search.executors import pad
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

R = TypeVar("R")


@dataclass(frozen=True)
class Forced:
    """Pairs as a model reads them."""

    source_BS: Tensor
    source_mask_BS: Tensor
    in_BT: Tensor
    """What the decoder is fed: what stands before a target, and the target."""
    out_BT: Tensor
    """What it should say then: the target and its end."""
    real_BT: Tensor
    """False at the padding of `out_BT`."""
    first: int
    """The position of `in_BT` that should say the first token; those before say what is forced."""

    @classmethod
    def of(
        cls,
        tokenizers: TokenizerPair,
        sources: Sequence[list[int]],
        targets: Sequence[list[int]],
        device: torch.device,
    ) -> Forced:
        """From token ids without what stands around them."""
        source_BS, source_mask_BS = pad_sources(tokenizers, sources, device)
        out_BT, real_BT = pad([[*target, tokenizers.target_end] for target in targets], tokenizers.target.pad, device)
        begin = tokenizers.target_begin
        begin_BT = torch.tensor(begin, device=device).expand(len(targets), -1)
        in_BT = torch.cat((begin_BT, out_BT[:, :-1]), dim=1)
        return cls(source_BS, source_mask_BS, in_BT, out_BT, real_BT, len(begin) - 1)


@dataclass(frozen=True)
class ReadPair(Generic[R]):
    """A pair, its token ids, and what came of it: None if it has more tokens than the model can read."""

    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    result: R | None


def read_pairs(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    pairs: Iterable[tuple[str, str]],
    work: Callable[[Sequence[list[int]], Sequence[list[int]]], list[R]],
    done: str,
    batch_tokens: int = 4096,
    *,
    patience: float | None = None,
    workers: int = 1,
    name: str = "pairs",
) -> Iterator[ReadPair[R]]:
    """Let `work` have the token ids of all (source, target) pairs in batches of like length; the results in order.

    A pair with more tokens than the model can read is left out, with a warning that names its line.

    Args:
        work: gives a result for each pair of a batch.
        done: what it does to a pair, as a participle, for the warning.
        batch_tokens: budget of a batch: pairs times positions of the longer side.
        patience: what has arrived is worked on when nothing more has come for so many seconds (see `windows`); without
            it, pairs are always taken about a thousand at a time.
        workers: so many threads work at once (see `side_by_side`).
        name: stands in warnings before the number of the line.
    """
    line = 1
    for window in windows(pairs, WINDOW, patience):
        names = [f"{name}, line {line + place}" for place in range(len(window))]
        line += len(window)
        sources = tokenizers.source.encode([source for source, _ in window])
        targets = tokenizers.target.encode([target for _, target in window])
        costs = _readable(model, tokenizers, names, sources, targets, done)
        places = list(costs)
        planned = [[places[index] for index in batch] for batch in batches(list(costs.values()), batch_tokens)]
        chosen = [([sources[place] for place in batch], [targets[place] for place in batch]) for batch in planned]
        results: list[R | None] = [None] * len(window)
        for batch, found in zip(planned, side_by_side(lambda ids: work(*ids), chosen, workers), strict=True):
            for place, result in zip(batch, found, strict=True):
                results[place] = result
        for pair, source, target, outcome in zip(window, sources, targets, results, strict=True):
            yield ReadPair(*pair, source, target, outcome)


def _readable(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    names: Sequence[str],
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    done: str,
) -> dict[int, int]:
    """The places of the pairs that the model can read, with the positions of their longer side."""
    around = len(tokenizers.source_begin) + len(tokenizers.source_end), len(tokenizers.target_begin)
    reaches = model.settings.source_reach, model.settings.max_length
    costs = {}
    for place, (name, source, target) in enumerate(zip(names, sources, targets, strict=True)):
        lengths = len(source) + around[0], len(target) + around[1]
        length, reach = max(zip(lengths, reaches, strict=True), key=lambda side: side[0] - side[1])
        if length <= reach:
            costs[place] = max(lengths)
        else:
            log.warning(
                "%s: has %d tokens, begin and end counted, of which the model can read %d; not %s: split the line",
                name,
                length,
                reach,
                done,
            )
    return costs
