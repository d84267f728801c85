"""What may come next: functions between the model's scores and the search, shared by all searches.

Shapes: R rows of a search, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

NEVER = float("-inf")

NOTHING = -1
"""Stands for a token where a row is shorter than others: prompts of a batch are filled up with it on the left."""


@runtime_checkable
class Processor(Protocol):
    """Changes the scores of the next token; -inf forbids a token.

    Beam search gives log-probabilities; they are not normalised again, so that a hypothesis keeps the probability that
    the model gives it. Sampling gives logits, which differ from them by a number for each row.
    """

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        """May work in place.

        `tokens_RT` are each row's tokens so far, the prompt (or begin) included, with `NOTHING` before shorter ones;
        `sources_R` is the source that each belongs to.
        """
        ...


class Ban:
    """Forbids tokens everywhere."""

    def __init__(self, ids: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.ids = torch.tensor(ids, dtype=torch.int64, device=device)

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        return scores_RV.index_fill_(1, self.ids, NEVER)


Pairs = tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]
"""Rows and tokens, pair by pair."""


class Rule(ABC):
    """Forbids a few tokens, as what a row has said asks for; no score is needed to know them."""

    @abstractmethod
    def forbidden(self, tokens_RT: Int[Tensor, "R T"], sources_R: Int[Tensor, " R"]) -> Pairs:
        """The tokens that must not come next, each with its row."""

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        scores_RV[self.forbidden(tokens_RT, sources_R)] = NEVER
        return scores_RV


class MinimumLength(Rule):
    """Forbids the end before an output has `tokens` tokens, or those of its source; `prompt` columns come before it."""

    def __init__(self, end: int, tokens: int | Sequence[int], prompt: int) -> None:
        self._end, self._prompt = end, prompt
        self._tokens = torch.tensor(tokens)

    def forbidden(self, tokens_RT: Int[Tensor, "R T"], sources_R: Int[Tensor, " R"]) -> Pairs:
        tokens = self._tokens.to(sources_R.device)
        said = tokens_RT.shape[1] - self._prompt
        short_R = said < (tokens[sources_R] if tokens.dim() else tokens.expand(len(sources_R)))
        (rows,) = short_R.nonzero(as_tuple=True)
        return rows, torch.full_like(rows, self._end)


class RepetitionPenalty:
    """Makes tokens that have occurred less probable (CTRL: Keskar et al. 2019, arXiv 1909.05858, section 4.1).

    Positive scores are divided by the penalty and negative ones multiplied, however often a token has occurred. The
    zero of scores matters here: a beam search's log-probabilities are all negative.
    """

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    def __call__(
        self,
        scores_RV: Float[Tensor, "R V"],
        tokens_RT: Int[Tensor, "R T"],
        sources_R: Int[Tensor, " R"],
    ) -> Float[Tensor, "R V"]:
        rows, vocabulary = scores_RV.shape
        occurred = torch.zeros(rows, 1 + vocabulary, dtype=torch.bool, device=scores_RV.device)
        occurred_RV = occurred.scatter_(1, tokens_RT - NOTHING, True)[:, 1:]
        penalised_RV = torch.where(scores_RV < 0, scores_RV * self._penalty, scores_RV / self._penalty)
        return torch.where(occurred_RV, penalised_RV, scores_RV)


class NoRepeat(Rule):
    """Forbids a token that would make the last `size` tokens of a row occur twice in it (Paulus et al. 2017)."""

    def __init__(self, size: int) -> None:
        self._size = size

    def forbidden(self, tokens_RT: Int[Tensor, "R T"], sources_R: Int[Tensor, " R"]) -> Pairs:
        length = tokens_RT.shape[1]
        if length < self._size:
            nothing = sources_R.new_empty(0)
            return nothing, nothing
        runs_RNn = tokens_RT.unfold(1, self._size, 1)
        latest_Rm = tokens_RT[:, length - self._size + 1 :]
        again_RN = (runs_RNn[:, :, :-1] == latest_Rm[:, None]).all(dim=2) & (runs_RNn != NOTHING).all(dim=2)
        rows, places = again_RN.nonzero(as_tuple=True)
        return rows, runs_RNn[rows, places, -1]
