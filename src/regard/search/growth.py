"""Texts that grow token by token: by choosing from the next tokens, or by contrastive search.

Both loops advance all rows by one token for each `next` of the iterator that they return, so that a caller can show
what has come so far. What has stopped leaves the rows and costs nothing.

Shapes: R rows (texts that still grow), T tokens so far (prompt included), K candidates of a row, D d_model,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from regard.errors import JobError
from regard.search.decoder import Decoder, StatesDecoder
from regard.search.processors import NEVER, NOTHING, Processor
from regard.search.ranking import largest
from regard.search.stops import StopReader

Stopped = Literal["end", "stop", "length", "blocked"]
"""Why a text stopped: the model ended it, a stop string came, its limit was reached, or no token was allowed."""


@runtime_checkable
class Choice(Protocol):
    """How the next token of each row is chosen; `chances` are numbers from [0, 1), one for each row."""

    def __call__(self, scores_RV: Float[Tensor, "R V"], chances: Sequence[float]) -> Int[Tensor, " R"]: ...


@dataclass(eq=False)
class Growing:
    """One text that grows."""

    limit: int | None
    """How many tokens it may have; None: no limit."""
    reader: StopReader | None = None
    """What makes text of its tokens."""
    random: Random = field(default_factory=Random)
    """Its own random numbers, so that no other text can change them."""
    ids: list[int] = field(default_factory=list)
    """Its tokens so far, without the end token."""
    log_probability: float = 0.0
    """Of all its tokens under the model, the end token included if it has come."""
    stopped: Stopped | None = None
    pieces: list[str] = field(default_factory=list)
    """Its text so far."""

    def append(self, token: int, log_probability: float, end: int) -> None:
        """Add a token of this log-probability."""
        self.log_probability += log_probability
        if token == end:
            self.stop("end")
            return
        self.ids.append(token)
        if self.reader is not None:
            self.pieces.append(self.reader.push(token))
        if self.reader is not None and self.reader.stopped:
            self.stop("stop")
        elif self.limit is not None and len(self.ids) >= self.limit:
            self.stop("length")

    def stop(self, why: Stopped) -> None:
        """No token comes after this."""
        self.stopped = why
        if self.reader is not None:
            self.pieces.append(self.reader.finish())


def choose_step_by_step(
    decoder: Decoder,
    prompts_RT: Int[Tensor, "R T"],
    texts: Sequence[Growing],
    choose: Choice,
    *,
    end: int,
    processors: Sequence[Processor] = (),
) -> Iterator[None]:
    """Let each text grow after its prompt, of which `decoder` knows all but the last token.

    Raises:
        JobError: the model gives NaN or infinite logits.
    """
    rows = _Rows(prompts_RT, texts, end, processors)
    while rows.texts:
        with torch.inference_mode():
            logits_RV = decoder.step(rows.tokens_RT[:, -1]).float()
            scores_RV = rows.processed(logits_RV)
            tokens_R = choose(scores_RV, [text.random.random() for text in rows.texts])
            stay = rows.append(tokens_R, logits_RV)
            if stay is not None and len(stay):
                decoder.reorder(stay, stay)
        yield


def contrast_step_by_step(
    decoder: StatesDecoder,
    prompts_RT: Int[Tensor, "R T"],
    texts: Sequence[Growing],
    weight: float,
    candidates: int,
    *,
    end: int,
    processors: Sequence[Processor] = (),
) -> Iterator[None]:
    """The same by contrastive search (Su et al. 2022, arXiv 2202.06417, equation 5).

    Of the most probable `candidates` the one with the largest (1 - weight) * probability - weight * (the largest cosine
    of its own hidden state and that of any token before it) is taken.
    """
    rows = _Rows(prompts_RT, texts, end, processors)
    with torch.inference_mode():
        logits_RV = decoder.step(rows.tokens_RT[:, -1]).float()
    while rows.texts:
        with torch.inference_mode():
            scores_RV = rows.processed(logits_RV)
            count = min(candidates, scores_RV.shape[1])
            probabilities_RK, tokens_RK = largest(scores_RV.softmax(dim=1), count)
            each_R = torch.arange(len(scores_RV), device=scores_RV.device)
            repeated_R = each_R.repeat_interleave(count)
            decoder.reorder(repeated_R, repeated_R)
            following_RV = decoder.step(tokens_RK.flatten()).float()
            repetition_RK = _repetition(decoder.states_RTD, rows.tokens_RT).view(-1, count)
            gain_RK = (1 - weight) * probabilities_RK - weight * repetition_RK
            best_R = gain_RK.masked_fill(probabilities_RK == 0, NEVER).argmax(dim=1)
            stay = rows.append(tokens_RK[each_R, best_R], logits_RV)
            if rows.texts:
                stay_R = each_R if stay is None else stay
                chosen_R = stay_R * count + best_R[stay_R]
                decoder.reorder(chosen_R, chosen_R)
                logits_RV = following_RV[chosen_R]
        yield


def _repetition(states_RTD: Float[Tensor, "RK U D"], tokens_RT: Int[Tensor, "R T"]) -> Float[Tensor, " RK"]:
    """How like the last state of each row is to the one most like it among those before."""
    directions_RTD = normalize(states_RTD.float(), dim=-1)
    cosine_RT = (directions_RTD[:, :-1] @ directions_RTD[:, -1, :, None])[..., 0]
    real_RT = (tokens_RT != NOTHING).repeat_interleave(len(states_RTD) // len(tokens_RT), dim=0)
    return cosine_RT.masked_fill(~real_RT, NEVER).amax(dim=1)


class _Rows:
    """The texts that still grow, and their tokens."""

    def __init__(self, prompts_RT: Tensor, texts: Sequence[Growing], end: int, processors: Sequence[Processor]) -> None:
        self.texts = list(texts)
        self.tokens_RT = prompts_RT
        self.sources_R = torch.arange(len(texts), device=prompts_RT.device)
        self.end, self.processors = end, processors
        self.blocked_R = torch.zeros(len(texts), dtype=torch.bool, device=prompts_RT.device)
        """Rows in which no token is allowed."""

    def processed(self, logits_RV: Tensor) -> Tensor:
        if not bool(logits_RV.logsumexp(dim=1).isfinite().all()):
            raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
        scores_RV = logits_RV.clone()
        for processor in self.processors:
            scores_RV = processor(scores_RV, self.tokens_RT, self.sources_R)
        self.blocked_R = (scores_RV == NEVER).all(dim=1)
        return scores_RV.masked_fill(self.blocked_R[:, None], 0.0)  # whatever is chosen there is not taken

    def append(self, tokens_R: Tensor, logits_RV: Tensor) -> Tensor | None:
        """Give each text its token. Those that go on stay, as the rows that are returned; None when all do."""
        log_probabilities_R = logits_RV.log_softmax(dim=1).gather(1, tokens_R[:, None])[:, 0]
        given = zip(tokens_R.tolist(), log_probabilities_R.tolist(), self.blocked_R.tolist(), strict=True)
        for text, (token, log_probability, blocked) in zip(self.texts, given, strict=True):
            if blocked:
                text.stop("blocked")
            else:
                text.append(token, log_probability, self.end)
        self.tokens_RT = torch.cat((self.tokens_RT, tokens_R[:, None]), dim=1)
        going = [row for row, text in enumerate(self.texts) if text.stopped is None]
        if len(going) == len(self.texts):
            return None
        stay_R = torch.tensor(going, dtype=torch.int64, device=tokens_R.device)
        self.texts = [self.texts[row] for row in going]
        self.tokens_RT, self.sources_R = self.tokens_RT[stay_R], self.sources_R[stay_R]
        return stay_R
