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

from regard.model.transformer import EncoderDecoder
from regard.search.engine import WINDOW, pad
from regard.search.windows import batches, windows
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
    name: str = "pairs",
) -> Iterator[PairScore]:
    """Score each (source, target) pair, in order.

    The model must be in evaluation mode. A pair with more tokens than the model can read gets NaN and a warning that
    names its line.

    Args:
        batch_tokens: budget of a batch: pairs times positions of the longer side. It does not change the scores.
        name: stands in warnings before the number of the line.
    """
    reach = model.settings.max_length - 1  # and the end token
    line = 0
    for window in windows(pairs, WINDOW):
        sources = tokenizers.source.encode([source for source, _ in window])
        targets = tokenizers.target.encode([target for _, target in window])
        scores = [PairScore(math.nan, len(target) + 1) for target in targets]
        lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        readable = [place for place, length in enumerate(lengths) if length <= reach]
        for place, length in enumerate(lengths, start=1):
            if length > reach:
                log.warning(
                    "%s, line %d: has %d tokens, of which the model can read %d; not scored: split the line",
                    name,
                    line + place,
                    length,
                    reach,
                )
        for batch in batches([lengths[place] + 1 for place in readable], batch_tokens):
            places = [readable[index] for index in batch]
            chosen = [sources[place] for place in places], [targets[place] for place in places]
            for place, value in zip(places, _log_probabilities(model, tokenizers, *chosen), strict=True):
                scores[place] = PairScore(value, len(targets[place]) + 1)
        yield from scores
        line += len(window)


@torch.inference_mode()
def _log_probabilities(
    model: EncoderDecoder, tokenizers: TokenizerPair, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[float]:
    device = model.output.device
    source_BS, source_keys_BS = pad(sources, tokenizers.source.eos, tokenizers.source.pad, device)
    out_BT, real_BT = pad(targets, tokenizers.target.eos, tokenizers.target.pad, device)
    begin_B1 = torch.full((len(targets), 1), tokenizers.target.bos, device=device)
    in_BT = torch.cat((begin_B1, out_BT[:, :-1]), dim=1)
    hidden_ND = model(source_BS, source_keys_BS, in_BT)[real_BT]
    chunks = zip(torch.split(hidden_ND, PROJECTED), torch.split(out_BT[real_BT], PROJECTED), strict=True)
    losses_N = torch.cat([_losses(model, hidden, ids) for hidden, ids in chunks])
    return [-float(losses.sum()) for losses in torch.split(losses_N.double(), real_BT.sum(dim=1).tolist())]


def _losses(model: EncoderDecoder, hidden_ND: Tensor, ids_N: Tensor) -> Tensor:
    return functional.cross_entropy(model.logits(hidden_ND).float(), ids_N, reduction="none")
