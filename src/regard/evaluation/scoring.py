"""How probable a model finds given text.

Shapes: B batch, S source positions, T target positions, N real target positions of a batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import JobError
from regard.model.transformer import EncoderDecoder
from regard.search.engine import WINDOW, pad_sources
from regard.search.executors import pad
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

PROJECTED = 1024
"""So many positions are projected to the vocabulary at a time, to bound the memory."""


@dataclass(frozen=True)
class PairScore:
    """The probability of one target given its source."""

    log_probability: float
    """Natural logarithm, the end token included; NaN for a pair that is longer than the model can read."""
    tokens: int
    """Tokens of the target, the end token counted."""


@dataclass
class Total:
    """The sum over pairs; those that could not be scored are left out and counted."""

    log_probability: float = 0.0
    tokens: int = 0
    pairs: int = 0
    left_out: int = 0

    def add(self, pair: PairScore) -> None:
        if math.isnan(pair.log_probability):
            self.left_out += 1
            return
        self.log_probability += pair.log_probability
        self.tokens += pair.tokens
        self.pairs += 1

    @property
    def perplexity(self) -> float:
        """exp(-log-probability / tokens); NaN without a token."""
        if not self.tokens:
            return math.nan
        loss = -self.log_probability / self.tokens
        return math.exp(loss) if loss < 700 else math.inf


def score(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    pairs: Iterable[tuple[str, str]],
    batch_tokens: int = 4096,
    *,
    workers: int = 1,
    name: str = "pairs",
) -> Iterator[PairScore]:
    """Score each (source, target) pair, in order.

    The model must be in evaluation mode. A pair with more tokens than the model can read gets NaN and a warning that
    names its line.

    Args:
        batch_tokens: budget of a batch: pairs times positions of the longer side. It does not change the scores.
        workers: so many threads score batches at once (see `side_by_side`).
        name: stands in warnings before the number of the line.

    Raises:
        JobError: the model gives NaN or infinite scores.
    """
    line = 1
    for window in windows(pairs, WINDOW):
        names = [f"{name}, line {line + place}" for place in range(len(window))]
        yield from _score_window(model, tokenizers, window, names, batch_tokens, workers)
        line += len(window)


def _score_window(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    pairs: list[tuple[str, str]],
    names: list[str],
    batch_tokens: int,
    workers: int,
) -> list[PairScore]:
    sources = tokenizers.source.encode([source for source, _ in pairs])
    targets = tokenizers.target.encode([target for _, target in pairs])
    around = len(tokenizers.source_begin) + len(tokenizers.source_end), len(tokenizers.target_begin)
    lengths = [
        (len(source) + around[0], len(target) + around[1]) for source, target in zip(sources, targets, strict=True)
    ]
    reaches = model.settings.source_reach, model.settings.max_length
    readable = []
    for place, (line, pair) in enumerate(zip(names, lengths, strict=True)):
        length, reach = max(zip(pair, reaches, strict=True), key=lambda side: side[0] - side[1])
        if length <= reach:
            readable.append(place)
        else:
            log.warning(
                "%s: has %d tokens, begin and end counted, of which the model can read %d; not scored: split the line",
                line,
                length,
                reach,
            )
    costs = [max(lengths[place]) for place in readable]
    planned = [[readable[index] for index in batch] for batch in batches(costs, batch_tokens)]

    def log_probabilities(places: list[int]) -> list[float]:
        chosen = [sources[place] for place in places], [targets[place] for place in places]
        return _log_probabilities(model, tokenizers, *chosen)

    values = [math.nan] * len(pairs)
    for places, found in zip(planned, side_by_side(log_probabilities, planned, workers), strict=True):
        for place, value in zip(places, found, strict=True):
            values[place] = value
    return [PairScore(value, len(target) + 1) for value, target in zip(values, targets, strict=True)]


@torch.inference_mode()
def _log_probabilities(
    model: EncoderDecoder, tokenizers: TokenizerPair, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[float]:
    device = model.output.device
    source_BS, source_keys_BS = pad_sources(tokenizers, sources, device)
    out_BT, real_BT = pad([[*target, tokenizers.target_end] for target in targets], tokenizers.target.pad, device)
    begin = tokenizers.target_begin
    begin_BT = torch.tensor(begin, device=device).expand(len(targets), -1)
    in_BT = torch.cat((begin_BT, out_BT[:, :-1]), dim=1)
    # What follows a forced token is forced too or the first token of the target.
    hidden_ND = model(source_BS, source_keys_BS, in_BT)[:, len(begin) - 1 :][real_BT]
    chunks = zip(torch.split(hidden_ND, PROJECTED), torch.split(out_BT[real_BT], PROJECTED), strict=True)
    losses_N = torch.cat([_losses(model, hidden, ids) for hidden, ids in chunks])
    if bool(losses_N.isnan().any()):
        raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
    return [-float(losses.sum()) for losses in torch.split(losses_N.double(), real_BT.sum(dim=1).tolist())]


def _losses(model: EncoderDecoder, hidden_ND: Tensor, ids_N: Tensor) -> Tensor:
    return functional.cross_entropy(model.logits(hidden_ND).float(), ids_N, reduction="none")
