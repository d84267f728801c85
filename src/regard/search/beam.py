"""Beam search (section 6.1; length penalty: Wu et al. 2016, arXiv 1609.08144, equation 14).

A beam has places. Each holds a hypothesis that still grows or one that has ended and keeps its place, so the search is
over when every place has ended; with one place that is greedy search. It may be over sooner, as soon as nothing that
still grows can come out ahead of what has ended.

Shapes: N sources still searched, W growing hypotheses of each, R = N * W rows, C candidates of a row, K candidates of a
source, T tokens so far (those that an output begins with included), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import JobError
from regard.search.decoder import Decoder
from regard.search.processors import Processor
from regard.search.ranking import largest
from regard.search.settings import SearchSettings


@dataclass(frozen=True)
class Hypothesis:
    """One output that a search found."""

    ids: tuple[int, ...]
    """Its tokens, without the end token."""
    log_probability: float
    """Natural logarithm of its probability under the model, the end token included if it has one."""
    score: float
    """The log-probability divided by the length penalty: what hypotheses are ranked by."""
    finished: bool
    """Whether it ended by itself (or was complete), not by the limit of its length."""


def length_penalty(tokens: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha; |Y| counts the end token."""
    return float(((5 + tokens) / 6) ** alpha)


def beam_search(
    decoder: Decoder,
    limits: Sequence[int],
    settings: SearchSettings,
    *,
    begin: int | Int[Tensor, "N T"],
    end: int,
    processors: Sequence[Processor] = (),
    complete: Callable[[int, list[int]], bool] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best `settings.nbest` hypotheses for each source of `decoder`, best first.

    `limits` says how many tokens each output may have at most, the end token included. What reaches the limit without
    an end comes after everything that has ended, and only where fewer than `nbest` hypotheses have. Other sources
    never change a result, and equal probabilities are settled by the lower token id.

    Args:
        begin: the token before every output, or the tokens before that of each source (with `NOTHING` on the left of
            shorter ones); `decoder` knows all but the last of them.
        complete: says of the index of a source and the tokens of an output whether that is complete without an end.

    Raises `JobError` when the model gives NaN or infinite logits.
    """
    with torch.inference_mode():
        begin_NT = torch.full((len(limits), 1), begin, device=device) if isinstance(begin, int) else begin
        beams = _Beams(decoder, limits, settings, begin_NT, end, processors, complete)
        while beams.sources:
            beams.step()
    return [
        sorted(found, key=lambda hypothesis: (hypothesis.finished, hypothesis.score), reverse=True)[: settings.nbest]
        for found in beams.found
    ]


class _Beams:
    """The state of a search; `step` appends one token to everything that grows."""

    def __init__(
        self,
        decoder: Decoder,
        limits: Sequence[int],
        settings: SearchSettings,
        begin_NT: Tensor,
        end: int,
        processors: Sequence[Processor],
        complete: Callable[[int, list[int]], bool] | None,
    ) -> None:
        self.decoder, self.settings, self.end, self.processors = decoder, settings, end, processors
        self.complete = complete
        count, self.begin = begin_NT.shape
        device = begin_NT.device
        self.sources = list(range(count))
        """Which sources are still searched; all tensors below follow this order."""
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.length = 0
        self.limits_N = torch.tensor(limits, device=device)
        self.penalty_N = torch.tensor([length_penalty(limit, settings.alpha) for limit in limits], device=device)
        self.to_beat_N = torch.full((count,), float("-inf"), device=device)
        """The score of the nbest-th best that has ended."""
        self.places_N = torch.full((count,), settings.beam, device=device)
        self.scores_NW = torch.zeros(count, 1, device=device)
        """Log-probabilities; -inf marks an empty place."""
        self.tokens_RT = begin_NT
        """Of these, the first `begin` columns are no part of an output."""

    def step(self) -> None:
        scores_NK, rows_NK, tokens_NK = self._candidates()
        self.length += 1
        rank_K = torch.arange(scores_NK.shape[1], device=scores_NK.device)
        placed_NK = (scores_NK > float("-inf")) & (rank_K < self.places_N[:, None])
        ended_NK = placed_NK & ((tokens_NK == self.end) | self._completed(placed_NK, rows_NK, tokens_NK))
        if bool(ended_NK.any()):
            self._record_ended(ended_NK, scores_NK, rows_NK, tokens_NK)
        growing_NK = placed_NK & ~ended_NK
        scores_NK = scores_NK.masked_fill(~growing_NK, float("-inf"))
        scores_NK, order_NK = scores_NK.sort(dim=1, descending=True, stable=True)
        rows_NK, tokens_NK = rows_NK.gather(1, order_NK), tokens_NK.gather(1, order_NK)
        over_N = self._over(scores_NK[:, 0])
        if bool(over_N.any()):
            for n in over_N.nonzero()[:, 0].tolist():
                self._record_unfinished(n, scores_NK[n], rows_NK[n], tokens_NK[n])
            stay_N = (~over_N).nonzero()[:, 0]
            self.sources = [self.sources[n] for n in stay_N.tolist()]
            self.limits_N, self.penalty_N = self.limits_N[stay_N], self.penalty_N[stay_N]
            self.to_beat_N, self.places_N = self.to_beat_N[stay_N], self.places_N[stay_N]
            self._grow(scores_NK[stay_N], rows_NK[stay_N], tokens_NK[stay_N], stay_N)
        else:
            self._grow(scores_NK, rows_NK, tokens_NK, None)

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each source: log-probability, row that is continued, token; best first."""
        width = self.scores_NW.shape[1]
        log_probabilities_RV = self.decoder.step(self.tokens_RT[:, -1]).float().log_softmax(dim=-1)
        if self.processors:
            sources_R = torch.tensor(self.sources, device=self.tokens_RT.device).repeat_interleave(width)
            for processor in self.processors:
                log_probabilities_RV = processor(log_probabilities_RV, self.tokens_RT, sources_R)
        beam = self.settings.beam
        values_RC, tokens_RC = largest(log_probabilities_RV, min(beam, log_probabilities_RV.shape[1]))
        if bool(values_RC[:, 0].isnan().any()):
            raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
        candidates = values_RC.shape[1]
        scores_NWC = self.scores_NW[:, :, None] + values_RC.view(-1, width, candidates)
        scores_NK, order_NK = scores_NWC.flatten(1).sort(dim=1, descending=True, stable=True)
        scores_NK, order_NK = scores_NK[:, :beam], order_NK[:, :beam]
        first_row_N = torch.arange(0, len(values_RC), width, device=values_RC.device)
        rows_NK = first_row_N[:, None] + order_NK // candidates
        tokens_NK = tokens_RC.view(-1, width * candidates).gather(1, order_NK)
        return scores_NK, rows_NK, tokens_NK

    def _over(self, best_N: Tensor) -> Tensor:
        """Where nothing grows, or nothing that does can beat what has ended, or the limit is reached.

        A log-probability only falls from here on, so it is divided by the largest penalty that is still to come: that
        of the limit, or with a negative alpha that of the next token.
        """
        best_penalty_N = self.penalty_N.clamp(min=length_penalty(self.length + 1, self.settings.alpha))
        beaten_N = self.to_beat_N >= best_N / best_penalty_N
        return beaten_N | (best_N == float("-inf")) | (self.limits_N <= self.length)

    def _completed(self, placed_NK: Tensor, rows_NK: Tensor, tokens_NK: Tensor) -> Tensor:
        """Which outputs are complete by what they say."""
        completed_NK = torch.zeros_like(placed_NK)
        if self.complete is not None:
            sources = [self.sources[n] for n in placed_NK.nonzero()[:, 0].tolist()]
            outputs = self._outputs(rows_NK[placed_NK], tokens_NK[placed_NK])
            complete = list(map(self.complete, sources, outputs))
            completed_NK[placed_NK] = torch.tensor(complete, dtype=torch.bool, device=placed_NK.device)
        return completed_NK

    def _outputs(self, rows_M: Tensor, tokens_M: Tensor) -> list[list[int]]:
        """The tokens of rows that are continued, each by its token unless that is the end."""
        prefixes, tokens = self.tokens_RT[rows_M, self.begin :].tolist(), tokens_M.tolist()
        return [ids if token == self.end else [*ids, token] for ids, token in zip(prefixes, tokens, strict=True)]

    def _record_ended(self, ended_NK: Tensor, scores_NK: Tensor, rows_NK: Tensor, tokens_NK: Tensor) -> None:
        changed = ended_NK.nonzero()[:, 0].tolist()
        outputs = self._outputs(rows_NK[ended_NK], tokens_NK[ended_NK])
        for n, ids, log_probability in zip(changed, outputs, scores_NK[ended_NK].tolist(), strict=True):
            self.found[self.sources[n]].append(self._hypothesis(ids, log_probability, finished=True))
        self.places_N = self.places_N - ended_NK.sum(dim=1)
        for n in set(changed):
            scores = sorted((hypothesis.score for hypothesis in self.found[self.sources[n]]), reverse=True)
            if len(scores) >= self.settings.nbest:
                self.to_beat_N[n] = scores[self.settings.nbest - 1]

    def _record_unfinished(self, n: int, scores_K: Tensor, rows_K: Tensor, tokens_K: Tensor) -> None:
        """Fill up with what still grows where fewer than `nbest` have ended."""
        found = self.found[self.sources[n]]
        if len(found) >= self.settings.nbest:
            return
        growing_K = scores_K > float("-inf")
        outputs = self._outputs(rows_K[growing_K], tokens_K[growing_K])
        for ids, log_probability in zip(outputs, scores_K[growing_K].tolist(), strict=True):
            found.append(self._hypothesis(ids, log_probability, finished=False))
        if not found:  # every continuation is forbidden or has probability 0: what stands so far is the answer
            width = self.scores_NW.shape[1]
            best = self.tokens_RT[n * width, self.begin :].tolist()
            found.append(self._hypothesis(best, float(self.scores_NW[n, 0]), finished=False))

    def _hypothesis(self, ids: list[int], log_probability: float, finished: bool) -> Hypothesis:
        # What was found in this step has this length, the end token counted; what stands so far is shorter.
        penalty = length_penalty(self.length if finished else len(ids), self.settings.alpha)
        return Hypothesis(tuple(ids), log_probability, log_probability / penalty, finished)

    def _grow(self, scores_NK: Tensor, rows_NK: Tensor, tokens_NK: Tensor, sources_N: Tensor | None) -> None:
        """Continue with the growing hypotheses; sources that are over, and places that no source uses, cost nothing."""
        if not self.sources:
            return
        width = int((scores_NK > float("-inf")).sum(dim=1).max())
        rows_R, newest_R = rows_NK[:, :width].flatten(), tokens_NK[:, :width].flatten()
        unchanged = sources_N is None and torch.equal(rows_R, torch.arange(len(self.tokens_RT), device=rows_R.device))
        if not unchanged:
            self.decoder.reorder(rows_R, sources_N)
            self.tokens_RT = self.tokens_RT[rows_R]
        self.scores_NW = scores_NK[:, :width]
        self.tokens_RT = torch.cat((self.tokens_RT, newest_R[:, None]), dim=1)
