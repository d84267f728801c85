"""Beam search (section 6.1; length penalty: Wu et al. 2016, arXiv 1609.08144, equation 14).

A beam has places. Each holds a hypothesis that still grows or one that has ended and keeps its place, so the search is
over when every place has ended; with one place that is greedy search. It may be over sooner, as soon as nothing that
still grows can come out ahead of what has ended.

The decoder computes where the model is; what is chosen from is small, and is looked after here, by NumPy.

Shapes: N sources still searched, W growing hypotheses of each, R = N * W rows, C candidates of a row, K candidates of a
source, M hypotheses that end, T tokens so far (those that an output begins with included).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.search.choices import Choices
from regard.search.decoder import Decoder
from regard.search.processors import NEVER, NOTHING, Processor
from regard.search.selection import MostProbable, Selection, Standing
from regard.search.settings import SearchSettings

Numbers = Float[np.ndarray, "N K"]
Places = Int[np.ndarray, "N K"]
Flags = Bool[np.ndarray, "N K"]


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
    selection: Selection | None = None,
    alike: Callable[[tuple[int, ...]], Hashable] = tuple,
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
        selection: which candidates get the places of a beam; without it, the most probable.
        alike: outputs of which it makes the same, such as their text, are one: the best of them is kept.

    Raises `JobError` when the model gives NaN or infinite logits.
    """
    if isinstance(begin, Tensor):
        device = begin.device
    begin_NT = np.full((len(limits), 1), begin) if isinstance(begin, int) else begin.cpu().numpy()
    search = BeamSearch(Choices(decoder, processors, device), settings, end, complete, selection, alike)
    search.add(limits, begin_NT)
    found: list[list[Hypothesis]] = [[] for _ in limits]
    while search.sources:
        for number, hypotheses in search.step():
            found[number] = hypotheses
    return found


class BeamSearch:
    """A search under way: `step` appends one token to everything that grows, `add` lets further sources in."""

    def __init__(
        self,
        choices: Choices,
        settings: SearchSettings,
        end: int,
        complete: Callable[[int, list[int]], bool] | None = None,
        selection: Selection | None = None,
        alike: Callable[[tuple[int, ...]], Hashable] = tuple,
    ) -> None:
        self.choices, self.settings, self.end, self.complete = choices, settings, end, complete
        self.selection, self.alike = selection or MostProbable(), alike
        self.added = 0
        self.sources: list[int] = []
        """The numbers of the sources still searched, in the order in which they came; all below follow it."""
        self.found: list[dict[Hashable, Hypothesis]] = []
        """What has ended of each; of outputs that are alike, the best."""
        self.lengths_N = np.empty(0, dtype=np.int64)
        """How many tokens its outputs have so far."""
        self.limits_N = np.empty(0, dtype=np.int64)
        self.penalty_N = np.empty(0)
        """The length penalty at the limit."""
        self.to_beat_N = np.empty(0)
        """The score of the nbest-th best that has ended."""
        self.places_N = np.empty(0, dtype=np.int64)
        self.scores_NW = np.empty((0, 1))
        """Log-probabilities; -inf marks an empty place."""
        self.tokens_RT = np.empty((0, 1), dtype=np.int64)
        """The latest tokens of all rows stand in the last column."""

    def add(self, limits: Sequence[int], begin_NT: Int[np.ndarray, "N T"]) -> None:
        """Sources that `decoder` has just begun with, each with as many rows as the others have."""
        count, width = len(limits), self.scores_NW.shape[1]
        new_RT = np.repeat(begin_NT, width, axis=0)
        said = self._said() if self.sources else 0
        columns = max(said, new_RT.shape[1])
        held_RT = _from_left(self.tokens_RT[:, self.tokens_RT.shape[1] - said :], columns)
        self.tokens_RT = np.concatenate((held_RT, _from_left(new_RT, columns)))
        self.sources += range(self.added, self.added + count)
        self.added += count
        self.found += [{} for _ in limits]
        scores_NW = np.full((count, width), NEVER)
        scores_NW[:, 0] = 0.0
        self.scores_NW = np.concatenate((self.scores_NW, scores_NW))
        penalties = [length_penalty(limit, self.settings.alpha) for limit in limits]
        self.lengths_N = np.concatenate((self.lengths_N, np.zeros(count, dtype=np.int64)))
        self.limits_N = np.concatenate((self.limits_N, np.array(limits, dtype=np.int64)))
        self.penalty_N = np.concatenate((self.penalty_N, np.array(penalties)))
        self.to_beat_N = np.concatenate((self.to_beat_N, np.full(count, NEVER)))
        self.places_N = np.concatenate((self.places_N, np.full(count, self.settings.beam)))

    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """Append a token to every output. Sources that are over leave; their numbers and best hypotheses are given."""
        scores_NK, rows_NK, tokens_NK = self._candidates()
        self.lengths_N += 1
        placed_NK = (scores_NK > NEVER) & (np.arange(scores_NK.shape[1]) < self.places_N[:, None])
        ended_NK = placed_NK & (tokens_NK == self.end)
        if self.complete is not None:
            ended_NK |= self._completed(placed_NK, rows_NK, tokens_NK)
        if ended_NK.any():
            self._record_ended(ended_NK, scores_NK, rows_NK, tokens_NK)
        scores_NK = np.where(placed_NK & ~ended_NK, scores_NK, NEVER)
        order_NK = np.argsort(-scores_NK, axis=1, kind="stable")
        scores_NK, rows_NK, tokens_NK = (_taken(each, order_NK) for each in (scores_NK, rows_NK, tokens_NK))
        over_N = self._over(scores_NK[:, 0])
        stay_N: Int[np.ndarray, " N"] | None = None
        done: list[tuple[int, list[Hypothesis]]] = []
        if over_N.any():
            for n in over_N.nonzero()[0].tolist():
                self._record_unfinished(n, scores_NK[n], rows_NK[n], tokens_NK[n])
                done.append((self.sources[n], self._best(self.found[n])))
            stay_N = (~over_N).nonzero()[0]
            self._leave(stay_N)
            scores_NK, rows_NK, tokens_NK = scores_NK[stay_N], rows_NK[stay_N], tokens_NK[stay_N]
        self._grow(scores_NK, rows_NK, tokens_NK, stay_N)
        return done

    def _said(self) -> int:
        """Columns of tokens in which something stands."""
        return self.tokens_RT.shape[1] - int((self.tokens_RT != NOTHING).any(axis=0).argmax())

    def _candidates(self) -> tuple[Numbers, Places, Places]:
        """Continuations of each source: log-probability, row that is continued, token; those to be taken first."""
        width = self.scores_NW.shape[1]
        sources_R = np.repeat(np.array(self.sources), width)
        wanted_R = self.scores_NW.reshape(-1) > NEVER
        standing = Standing(self.sources, self.places_N, self.lengths_N, self.tokens_RT)
        further = self.selection.further(standing)
        places = self.settings.beam
        values_RC, tokens_RC = self.choices(self.tokens_RT, sources_R, wanted_R, places * self.selection.each, further)
        count = values_RC.shape[1]
        scores_NK = (self.scores_NW[:, :, None] + values_RC.reshape(-1, width, count)).reshape(-1, width * count)
        tokens_NK = tokens_RC.reshape(-1, width * count)
        order_NK = self.selection.order(standing, scores_NK, tokens_NK)[:, :places]
        rows_NK = np.arange(0, len(values_RC), width)[:, None] + order_NK // count
        return _taken(scores_NK, order_NK), rows_NK, _taken(tokens_NK, order_NK)

    def _over(self, best_N: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Where nothing grows, or nothing that does can beat what has ended, or the limit is reached.

        A log-probability only falls from here on, so it is divided by the largest penalty that is still to come: that
        of the limit, or with a negative alpha that of the next token.
        """
        next_N = ((6 + self.lengths_N) / 6) ** self.settings.alpha
        beaten_N = self.to_beat_N >= best_N / np.maximum(self.penalty_N, next_N)
        over_N: Bool[np.ndarray, " N"] = beaten_N | (best_N == NEVER) | (self.limits_N <= self.lengths_N)
        return over_N

    def _completed(self, placed_NK: Flags, rows_NK: Places, tokens_NK: Places) -> Flags:
        """Which outputs are complete by what they say."""
        assert self.complete is not None
        sources_M = placed_NK.nonzero()[0]
        outputs = self._outputs(sources_M, rows_NK[placed_NK], tokens_NK[placed_NK])
        completed_NK = np.zeros_like(placed_NK)
        completed_NK[placed_NK] = [
            self.complete(self.sources[n], ids) for n, ids in zip(sources_M.tolist(), outputs, strict=True)
        ]
        return completed_NK

    def _outputs(
        self, sources_M: Int[np.ndarray, " M"], rows_M: Int[np.ndarray, " M"], tokens_M: Int[np.ndarray, " M"]
    ) -> list[list[int]]:
        """The tokens of rows that are continued, each by its token unless that is the end."""
        columns = self.tokens_RT.shape[1]
        begins_M = columns - (self.lengths_N[sources_M] - 1)
        outputs = []
        for begin, row, token in zip(begins_M.tolist(), rows_M.tolist(), tokens_M.tolist(), strict=True):
            ids: list[int] = self.tokens_RT[row, begin:].tolist()
            outputs.append(ids if token == self.end else [*ids, token])
        return outputs

    def _record_ended(self, ended_NK: Flags, scores_NK: Numbers, rows_NK: Places, tokens_NK: Places) -> None:
        changed_M = ended_NK.nonzero()[0]
        outputs = self._outputs(changed_M, rows_NK[ended_NK], tokens_NK[ended_NK])
        self.places_N = self.places_N.copy()
        for n, ids, log_probability in zip(changed_M.tolist(), outputs, scores_NK[ended_NK].tolist(), strict=True):
            self.places_N[n] -= self._record(n, ids, log_probability, int(self.lengths_N[n]), finished=True)
        for n in set(changed_M.tolist()):
            best = self._best(self.found[n])
            if len(best) == self.settings.nbest:
                self.to_beat_N[n] = best[-1].score

    def _record_unfinished(
        self, n: int, scores_K: Float[np.ndarray, " K"], rows_K: Int[np.ndarray, " K"], tokens_K: Int[np.ndarray, " K"]
    ) -> None:
        """Fill up with what still grows where fewer than `nbest` have ended."""
        if len(self.found[n]) >= self.settings.nbest:
            return
        growing_K = scores_K > NEVER
        outputs = self._outputs(np.full(int(growing_K.sum()), n), rows_K[growing_K], tokens_K[growing_K])
        for ids, log_probability in zip(outputs, scores_K[growing_K].tolist(), strict=True):
            self._record(n, ids, log_probability, len(ids), finished=False)
        if not self.found[n]:  # every continuation is forbidden or has probability 0: what stands so far is the answer
            best = n * self.scores_NW.shape[1]
            (ids,) = self._outputs(np.array([n]), np.array([best]), np.array([self.end]))
            self._record(n, ids, float(self.scores_NW[n, 0]), len(ids), finished=False)

    def _record(self, n: int, ids: list[int], log_probability: float, length: int, finished: bool) -> bool:
        """Whether there was none like it. `length` counts the end token."""
        score = log_probability / length_penalty(length, self.settings.alpha)
        hypothesis = Hypothesis(tuple(ids), log_probability, score, finished)
        found, key = self.found[n], self.alike(hypothesis.ids)
        new = key not in found
        if new or rank(hypothesis) > rank(found[key]):
            found[key] = hypothesis
        return new

    def _best(self, found: dict[Hashable, Hypothesis]) -> list[Hypothesis]:
        return sorted(found.values(), key=rank, reverse=True)[: self.settings.nbest]

    def _leave(self, stay_N: Int[np.ndarray, " N"]) -> None:
        self.sources = [self.sources[n] for n in stay_N.tolist()]
        self.found = [self.found[n] for n in stay_N.tolist()]
        self.lengths_N, self.limits_N, self.penalty_N = (
            each[stay_N] for each in (self.lengths_N, self.limits_N, self.penalty_N)
        )
        self.to_beat_N, self.places_N = self.to_beat_N[stay_N], self.places_N[stay_N]

    def _grow(
        self, scores_NK: Numbers, rows_NK: Places, tokens_NK: Places, stay_N: Int[np.ndarray, " N"] | None
    ) -> None:
        """Continue with the growing hypotheses; sources that are over, and places that no source uses, cost nothing."""
        width = max(1, int((scores_NK > NEVER).sum(axis=1).max(initial=0)))
        rows_R, newest_R = rows_NK[:, :width].reshape(-1), tokens_NK[:, :width].reshape(-1)
        if stay_N is not None or not np.array_equal(rows_R, np.arange(len(self.tokens_RT))):
            self.choices.reorder(rows_R, stay_N)
            self.tokens_RT = self.tokens_RT[rows_R]
        self.scores_NW = scores_NK[:, :width]
        self.tokens_RT = np.concatenate((self.tokens_RT, newest_R[:, None]), axis=1)


def rank(hypothesis: Hypothesis) -> tuple[bool, float]:
    """What has ended comes first, then the higher score."""
    return hypothesis.finished, hypothesis.score


def _from_left(tokens_RT: Int[np.ndarray, "R T"], columns: int) -> Int[np.ndarray, "R columns"]:
    """Rows with `NOTHING` on their left, up to so many columns."""
    missing = columns - tokens_RT.shape[1]
    return np.pad(tokens_RT, ((0, 0), (missing, 0)), constant_values=NOTHING)


def _taken(values_NK: np.ndarray, order_NK: Places) -> np.ndarray:
    taken: np.ndarray = np.take_along_axis(values_NK, order_NK, axis=1)
    return taken
