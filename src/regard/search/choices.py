"""The best next tokens of each row: from the scores of a decoder, or from a decoder that finds them itself.

Shapes: R rows, T tokens so far, C candidates of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from regard.errors import JobError
from regard.search.decoder import Chooser, Decoder
from regard.search.processors import NEVER, Ban, Processor
from regard.search.ranking import largest


class Choices:
    """Asks a decoder for the next tokens, with what processors make of its scores."""

    def __init__(self, decoder: Decoder, processors: Sequence[Processor], device: torch.device | str = "cpu") -> None:
        self.decoder, self.processors, self.device = decoder, processors, device
        self._chooser: Chooser | None = None
        bans = [processor for processor in processors if isinstance(processor, Ban)]
        if isinstance(decoder, Chooser) and len(bans) == len(processors):
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
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        """Append each row's last token; the log-probabilities and ids of at most `count` tokens that may follow.

        Raises `JobError` when the model gives NaN or infinite logits.
        """
        if self._chooser is not None:
            self._chooser.advance(tokens_RT[:, -1], wanted_R)
            values_RC, tokens_RC = self._chooser.candidates(min(count, len(self._allowed_V)), self._allowed_V)
        else:
            values_RC, tokens_RC = self._scored(tokens_RT, sources_R, count)
        if np.isnan(values_RC[:, 0]).any():
            raise JobError("the model gives NaN or infinite scores: its weights are damaged or its numbers overflow")
        return values_RC, tokens_RC

    def reorder(self, rows_R: Int[np.ndarray, " R"], sources_N: Int[np.ndarray, " N"] | None) -> None:
        """As `Decoder.reorder`. Where nothing is left, only a decoder that lets sources in need know."""
        if len(rows_R) or self._chooser is not None:
            sources = None if sources_N is None else torch.from_numpy(sources_N).to(self.device)
            self.decoder.reorder(torch.from_numpy(rows_R).to(self.device), sources)

    def _scored(
        self, tokens_RT: Int[np.ndarray, "R T"], sources_R: Int[np.ndarray, " R"], count: int
    ) -> tuple[Float[np.ndarray, "R C"], Int[np.ndarray, "R C"]]:
        with torch.inference_mode():
            said_RT = torch.from_numpy(tokens_RT).to(self.device)
            scores_RV = self.decoder.step(said_RT[:, -1]).float().log_softmax(dim=-1)
            of_R = torch.from_numpy(sources_R).to(self.device) if self.processors else None
            for processor in self.processors:
                assert of_R is not None
                scores_RV = processor(scores_RV, said_RT, of_R)
            values_RC, tokens_RC = largest(scores_RV, min(count, scores_RV.shape[1]))
        return values_RC.cpu().numpy(), tokens_RC.cpu().numpy()
