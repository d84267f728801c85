"""The best next tokens of each row: from the scores of a decoder, or from a decoder that finds them itself.

Shapes: R rows, T tokens so far, C candidates of a row, F further ones, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.errors import JobError
from regard.search.decoder import Chooser, Decoder
from regard.search.processors import NEVER, NOTHING, Ban, Processor, Rule
from regard.search.ranking import largest

NONE = np.empty(0, dtype=np.int64)


class Choices:
    """Asks a decoder for the next tokens, with what processors make of its scores."""

    def __init__(self, decoder: Decoder, processors: Sequence[Processor], device: torch.device | str = "cpu") -> None:
        self.decoder, self.processors, self.device = decoder, processors, device
        self._chooser: Chooser | None = None
        bans = [processor for processor in processors if isinstance(processor, Ban)]
        self._rules = [processor for processor in processors if isinstance(processor, Rule)]
        if isinstance(decoder, Chooser) and len(bans) + len(self._rules) == len(processors):
            self._chooser = decoder
            self._allowed_V = np.zeros(decoder.vocabulary, dtype=np.float32)
            for ban in bans:
                self._allowed_V[ban.ids.numpy()] = NEVER

    def __call__(
        self,
        tokens_RT: Int[np.ndarray, "R T"],
        sources_R: Int[np.ndarray, " R"],
        wanted_R: Bool[np.ndarray, " R"],
        count: int,
        further: Sequence[Sequence[int]] = (),
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        """Append each row's last token; the log-probabilities and ids of at most `count` tokens that may follow.

        After these come the `further` tokens of each row that are not among them. They need all scores of a decoder.

        Raises `JobError` when the model gives NaN or infinite logits.
        """
        if self._chooser is not None and not further:
            self._chooser.advance(tokens_RT[:, -1], wanted_R)
            values_RC, tokens_RC = self._chosen(tokens_RT, sources_R, count)
        else:
            values_RC, tokens_RC = self._scored(tokens_RT, sources_R, count, further)
        if np.isnan(values_RC[:, 0]).any():
            raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
        return values_RC, tokens_RC

    def reorder(self, rows_R: Int[np.ndarray, " R"], sources_N: Int[np.ndarray, " N"] | None) -> None:
        """As `Decoder.reorder`. Where nothing is left, only a decoder that lets sources in need know."""
        if len(rows_R) or self._chooser is not None:
            sources = None if sources_N is None else torch.from_numpy(sources_N).to(self.device)
            self.decoder.reorder(torch.from_numpy(rows_R).to(self.device), sources)

    def _chosen(
        self, tokens_RT: Int[np.ndarray, "R T"], sources_R: Int[np.ndarray, " R"], count: int
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        """As many more are asked for as rules may forbid of them."""
        assert self._chooser is not None
        said, of_R = torch.from_numpy(tokens_RT), torch.from_numpy(sources_R)
        pairs = [[each.numpy() for each in rule.forbidden(said, of_R)] for rule in self._rules]
        rows, tokens = (np.concatenate(each) for each in zip(*pairs, strict=True)) if pairs else (NONE, NONE)
        more = int(np.bincount(rows).max(initial=0))
        values_RC, tokens_RC = self._chooser.candidates(min(count + more, len(self._allowed_V)), self._allowed_V)
        if more == 0 or np.isnan(values_RC[:, 0]).any():
            return values_RC, tokens_RC
        pair_index, places = (tokens_RC[rows] == tokens[:, None]).nonzero()
        values_RC[rows[pair_index], places] = NEVER
        order_RC = np.argsort(-values_RC, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(values_RC, order_RC, axis=1), np.take_along_axis(tokens_RC, order_RC, axis=1)

    def _scored(
        self,
        tokens_RT: Int[np.ndarray, "R T"],
        sources_R: Int[np.ndarray, " R"],
        count: int,
        further: Sequence[Sequence[int]],
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        with torch.inference_mode():
            said_RT = torch.from_numpy(tokens_RT).to(self.device)
            scores_RV = self.decoder.step(said_RT[:, -1]).float().log_softmax(dim=-1)
            of_R = torch.from_numpy(sources_R).to(self.device) if self.processors else None
            for processor in self.processors:
                assert of_R is not None
                scores_RV = processor(scores_RV, said_RT, of_R)
            values_RC, tokens_RC = largest(scores_RV, min(count, scores_RV.shape[1]))
            if further:
                values_RF, tokens_RF = _others(scores_RV, tokens_RC, further)
                values_RC, tokens_RC = torch.cat((values_RC, values_RF), 1), torch.cat((tokens_RC, tokens_RF), 1)
        return values_RC.cpu().numpy(), tokens_RC.cpu().numpy()


def _others(
    scores_RV: Float[Tensor, "R V"], tokens_RC: Int[Tensor, "R C"], further: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "R F"], Int[Tensor, "R F"]]:
    """The scores of further tokens; -inf for those of `tokens_RC`, and for what fills shorter rows up."""
    filled = [torch.tensor(tokens, dtype=torch.int64, device=scores_RV.device) for tokens in further]
    tokens_RF = pad_sequence(filled, batch_first=True, padding_value=NOTHING)
    known_RF = (tokens_RF[:, :, None] == tokens_RC[:, None]).any(dim=2) | (tokens_RF == NOTHING)
    tokens_RF = tokens_RF.clamp(min=0)
    return scores_RV.gather(1, tokens_RF).masked_fill(known_RF, NEVER), tokens_RF
