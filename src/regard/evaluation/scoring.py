"""How probable a model finds given text.

Shapes: B batch, S source positions, T target positions, D d_model, N real target positions of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import JobError
from regard.evaluation.forced import Forced, read_pairs
from regard.model.transformer import EncoderDecoder
from regard.text.tokenizer import TokenizerPair

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
    work = partial(_log_probabilities, model, tokenizers)
    for each in read_pairs(model, tokenizers, pairs, work, "scored", batch_tokens, workers=workers, name=name):
        yield PairScore(math.nan if each.result is None else each.result, len(each.target_ids) + 1)


@torch.inference_mode()
def _log_probabilities(
    model: EncoderDecoder, tokenizers: TokenizerPair, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[float]:
    forced = Forced.of(tokenizers, sources, targets, model.output.device)
    hidden_ND = model(forced.source_BS, forced.source_mask_BS, forced.in_BT)[:, forced.first :][forced.real_BT]
    ids_N = forced.out_BT[forced.real_BT]
    chunks = zip(torch.split(hidden_ND, PROJECTED), torch.split(ids_N, PROJECTED), strict=True)
    losses_N = torch.cat([_losses(model, hidden, ids) for hidden, ids in chunks])
    if bool(losses_N.isnan().any()):
        raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
    return [-float(losses.sum()) for losses in torch.split(losses_N.double(), forced.real_BT.sum(dim=1).tolist())]


def _losses(model: EncoderDecoder, hidden_ND: Tensor, ids_N: Tensor) -> Tensor:
    return functional.cross_entropy(model.logits(hidden_ND).float(), ids_N, reduction="none")
