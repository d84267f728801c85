"""The coverage penalty (Wu et al. 2016, arXiv 1609.08144, equation 14): whether an output attends to all of its source.

cp(X; Y) = beta * sum over i of log(min(sum over j of p_ij, 1)); p_ij is how much the j-th token of the output attends
to the i-th of the source. A model with many attentions has no such p of its own: taken is the mean of the heads of
the last layer, which is nearest to the choice of the token. Finished outputs are read once more for it, by PyTorch,
so the search itself is as fast as without.

Shapes: B outputs, each with its source, S source positions, T target positions, H heads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import UserError
from regard.model.attention import watching
from regard.model.interface import SequenceToSequence
from regard.model.reference import AttentionValues
from regard.search.executors import pad
from regard.text.tokenizer import TokenizerPair


class CoverageReader:
    """Reads outputs beside their sources again, by all models of an ensemble, whose attention is averaged."""

    def __init__(self, models: Sequence[SequenceToSequence], tokenizers: TokenizerPair) -> None:
        """Raises `ValueError` without a model."""
        if not models:
            raise ValueError("coverage needs the models themselves, as PyTorch computes them: give them as readers")
        self._models, self._tokenizers = models, tokenizers

    def __call__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
        """cp(X; Y) / beta of the tokens of each source and output, without what stands around them.

        Raises:
            UserError: a model has no attention.
        """
        tokenizers = self._tokenizers
        sources = [[*tokenizers.source_begin, *source, *tokenizers.source_end] for source, _ in pairs]
        targets = [[*tokenizers.target_begin, *output] for _, output in pairs]
        attention_BTS = torch.stack([self._attention(model, sources, targets) for model in self._models]).mean(dim=0)
        begin, forced = len(tokenizers.source_begin), len(tokenizers.target_begin) - 1
        text_BS = _between(begin, [begin + len(source) for source, _ in pairs], attention_BTS.shape[2])
        said_BT = _between(forced, [len(target) for target in targets], attention_BTS.shape[1])
        return coverage(attention_BTS, said_BT, text_BS)

    @torch.inference_mode()
    def _attention(
        self, model: SequenceToSequence, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> Float[Tensor, "B T S"]:
        """How much each position of the target attends to each of the source: the mean of the last layer's heads."""
        device = next(model.parameters()).device
        source_BS, keys_BS = pad(sources, self._tokenizers.source.pad, device)
        target_BT, _ = pad(targets, self._tokenizers.target.pad, device)
        memory = model.encode(source_BS, keys_BS)
        watched: deque[AttentionValues] = deque(maxlen=1)
        with watching(watched.append):
            model.decode(target_BT, memory)
        if not watched:
            raise UserError("coverage needs a model with attention, which this one has not")
        return watched[0].weights_BHTS.float().mean(dim=1).cpu()


def coverage(
    attention_BTS: Float[Tensor, "B T S"], said_BT: Bool[Tensor, "B T"], text_BS: Bool[Tensor, "B S"]
) -> list[float]:
    """cp(X; Y) / beta for each output, of the positions that say something and of those of the source's text."""
    attended_BS = (attention_BTS * said_BT[:, :, None]).sum(dim=1)
    logs_BS = attended_BS.clamp(torch.finfo(attended_BS.dtype).tiny, 1).log()
    penalties: list[float] = logs_BS.masked_fill(~text_BS, 0.0).sum(dim=1).tolist()
    return penalties


def _between(begin: int, ends: Sequence[int], length: int) -> Bool[Tensor, "B T"]:
    places_T = torch.arange(length)
    return (places_T >= begin) & (places_T < torch.tensor(ends)[:, None])
