"""The loss: cross-entropy with label smoothing (section 5.4), fused with the output projection.

Label smoothing spreads eps evenly over all V classes, the right one included: the target distribution is
(1 - eps) [v = target] + eps / V (Szegedy et al. 2016, as in the paper). Perplexity is always computed from the
unsmoothed negative log-likelihood.

Shapes: N positions, D d_model, V vocabulary, L labels; B, T and S as in the batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.data.batches import Batch
from regard.data.examples import LabelledBatch
from regard.data.labelled import UNSCORED
from regard.data.masking import MaskedBatch
from regard.data.packing import PackedBatch
from regard.model.attention import reading
from regard.model.precision import products_are_half
from regard.model.settings import ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder
from regard.native import loss as native
from regard.training.by_hand import Result, by_hand
from regard.training.guided import GuidedSettings, guided_loss
from regard.training.r_drop import fused_r_drop, readings, reference_r_drop

CHUNK_BYTES = 16 * 2**20
"""Logits are made, used and forgotten in chunks of about this size, which fit into a CPU's cache."""


@dataclass(frozen=True, eq=False)
class LossSums:
    """Sums over the targets of a batch; divide by `tokens` of the whole step, once."""

    loss: Float[Tensor, ""]
    """Smoothed loss in nats: what training minimises."""
    nll: Float[Tensor, ""]
    """Unsmoothed negative log-likelihood in nats, without gradient: exp(nll / tokens) is the perplexity."""
    tokens: int


def total(parts: Sequence[LossSums]) -> LossSums:
    """The sums over all parts of a batch, of one at least."""
    losses, nlls = (torch.stack([getattr(part, name) for part in parts]).sum() for name in ("loss", "nll"))
    return LossSums(losses, nlls, sum(part.tokens for part in parts))


def perplexity(nll: float, units: int) -> float:
    """exp(nll / units), a number also where it is beyond float64; NaN where there is nothing."""
    return math.exp(min(nll / units, 700.0)) if units else math.nan


def reference_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    targets_N: Int[Tensor, " N"],
    smoothing: float,
    softcap: float | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Smoothed loss and negative log-likelihood, summed over positions, said plainly: the oracle of the fused one.

    With `softcap`, logits are bent to stay within it.
    """
    logits_NV = _logits(hidden_ND, weight_VD, softcap)
    log_probabilities_NV = logits_NV.log_softmax(dim=-1)
    nll_N = -log_probabilities_NV.gather(1, targets_N[:, None]).squeeze(1)
    uniform_N = -log_probabilities_NV.mean(dim=-1)
    loss_N = (1 - smoothing) * nll_N + smoothing * uniform_N
    return loss_N.sum(), nll_N.sum().detach()


def _logits(hidden_ND: Tensor, weight_VD: Tensor, softcap: float | None) -> Tensor:
    logits_NV = functional.linear(hidden_ND, weight_VD).float()
    return logits_NV if softcap is None else softcap * torch.tanh(logits_NV / softcap)


def cross_entropy(
    hidden_ND: Float[Tensor, "N D"], weight_VD: Float[Tensor, "V D"], targets_N: Int[Tensor, " N"], smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The same without ever holding all N x V logits: each chunk's gradient is made beside its loss."""
    return by_hand(partial(_fused, targets_N=targets_N, smoothing=smoothing), hidden_ND, weight_VD)


def _fused(hidden_ND: Tensor, weight_VD: Tensor, wanted: bool, targets_N: Tensor, smoothing: float) -> Result:
    compute = partial(native.fused_loss, half=products_are_half()) if native.fits(hidden_ND, weight_VD) else _by_chunks
    return compute(hidden_ND, weight_VD, wanted, targets_N, smoothing)


def _by_chunks(hidden_ND: Tensor, weight_VD: Tensor, wanted: bool, targets_N: Tensor, smoothing: float) -> Result:
    """With p = softmax(h W^T) and q the target distribution, d loss / d logits = p - q.

    p - q = p - (1 - eps) [target] - eps / V. The even part eps / V is the same for all positions and classes, so its
    share of loss and gradients needs only the sums over W's rows and over the hidden states.
    """
    vocabulary = weight_VD.shape[0]
    even = smoothing / vocabulary
    weight = weight_VD.to(hidden_ND.dtype)
    weight_sum_D = weight_VD.sum(dim=0, dtype=torch.float32)
    gradients = (torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)) if wanted else None
    nll = hidden_ND.new_zeros((), dtype=torch.float64)
    loss = hidden_ND.new_zeros((), dtype=torch.float64)

    rows = min(max(1, CHUNK_BYTES // (4 * vocabulary)), max(1, hidden_ND.shape[0]))
    # The same memory for all chunks: new pages from the system would cost as much time as the softmax.
    logits_memory = hidden_ND.new_empty(rows, vocabulary)
    p_memory = hidden_ND.new_empty(rows, vocabulary, dtype=torch.float32)
    for start in range(0, hidden_ND.shape[0], rows):
        hidden = hidden_ND[start : start + rows]
        targets = targets_N[start : start + rows, None]
        logits = torch.mm(hidden, weight.T, out=logits_memory[: len(hidden)])
        target_logits = logits.gather(1, targets).squeeze(1).float()
        highest = logits.amax(dim=-1).float()
        p = torch.softmax(logits, dim=-1, dtype=torch.float32, out=p_memory[: len(hidden)])
        # log sum exp(logits) by way of the likeliest class, whose probability is at least 1 / V
        normaliser = highest - p.amax(dim=-1).log()
        mean_logits = hidden.float() @ weight_sum_D / vocabulary
        nll += (normaliser - target_logits).sum(dtype=torch.float64)
        loss += (normaliser - (1 - smoothing) * target_logits - smoothing * mean_logits).sum(dtype=torch.float64)
        if gradients is None:
            continue
        gradient_hidden, gradient_weight = gradients
        p.scatter_add_(1, targets, p.new_full((1, 1), smoothing - 1).expand_as(targets))
        p = p.to(hidden.dtype)
        gradient_hidden[start : start + rows] = p @ weight - even * weight_sum_D
        if p.dtype == gradient_weight.dtype:
            gradient_weight.addmm_(p.T, hidden)
        else:
            gradient_weight += p.T @ hidden
    if gradients is not None:
        gradients[1].sub_(even * hidden_ND.sum(dim=0, dtype=torch.float32))
    return loss.float(), nll.float(), gradients


class WritesTokens(Protocol):
    """A model with logits over a vocabulary: what their loss needs to know of it."""

    settings: ModelSettings

    @property
    def output(self) -> Tensor: ...
    @property
    def output_bias(self) -> Tensor | None: ...


def vocabulary_loss(
    model: WritesTokens,
    hidden_ND: Float[Tensor, "N D"],
    targets_N: Int[Tensor, " N"],
    smoothing: float,
    r_drop: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Smoothed loss and negative log-likelihood, summed, of a model's logits for these hidden states.

    With `r_drop`, they are those of two readings, one after the other (`r_drop.py`).
    """
    weight_VD = model.output
    if model.output_bias is not None:  # a bias is the weight of one more hidden value, which is always 1
        hidden_ND = torch.cat((hidden_ND, hidden_ND.new_ones(len(hidden_ND), 1)), dim=1)
        weight_VD = torch.cat((weight_VD, model.output_bias[:, None]), dim=1)
    softcap = model.settings.output_softcap
    if r_drop and softcap is not None:
        return reference_r_drop(_logits(hidden_ND, weight_VD, softcap), targets_N, smoothing, r_drop)
    if r_drop:
        return fused_r_drop(hidden_ND, weight_VD, targets_N, smoothing, r_drop)
    if softcap is not None:
        return reference_cross_entropy(hidden_ND, weight_VD, targets_N, smoothing, softcap)
    loss, nll = cross_entropy(hidden_ND, weight_VD, targets_N, smoothing)
    return loss, nll


def translation_loss(
    model: EncoderDecoder, batch: Batch, smoothing: float, r_drop: float = 0.0, guided: GuidedSettings | None = None
) -> LossSums:
    """The loss of predicting each target token from the source and the tokens before it. Padding takes no part.

    With `guided`, and a batch that knows what is aligned, that of a head that learns to align is added.
    """
    batch, r_drop = readings(model, batch, r_drop)
    inputs = batch.source_BS, batch.source_mask_BS, batch.target_in_BT
    if guided is None or batch.aligned_BTS is None:
        hidden_BTD, extra = model(*inputs), None
    else:
        place = guided.among(len(model.decoder))
        with reading(model.memory_attention(place.layer), place.head) as read:
            hidden_BTD = model(*inputs)
        # The layer may have been left out of this pass.
        weights_BHTS = read.weights_BHTS
        extra = None if weights_BHTS is None else guided_loss(weights_BHTS.squeeze(1), batch.aligned_BTS)
    hidden_ND, targets_N = _scored(hidden_BTD, batch.target_out_BT, batch.target_mask_BT)
    loss, nll = vocabulary_loss(model, hidden_ND, targets_N, smoothing, r_drop)
    if guided is not None and extra is not None:
        loss = loss + guided.weight * extra / (2 if r_drop else 1)
    return LossSums(loss, nll, batch.target_tokens)


def causal_loss(model: CausalDecoder, batch: PackedBatch, smoothing: float, r_drop: float = 0.0) -> LossSums:
    """The loss of predicting each token from those before it in its own document."""
    batch, r_drop = readings(model, batch, r_drop)
    hidden_BTD = model(batch.tokens_BT, batch.documents_BT)
    hidden_ND, targets_N = _scored(hidden_BTD, batch.targets_BT, batch.scored_BT)
    loss, nll = vocabulary_loss(model, hidden_ND, targets_N, smoothing, r_drop)
    return LossSums(loss, nll, batch.target_tokens)


def masked_loss(model: BidirectionalEncoder, batch: MaskedBatch, smoothing: float, r_drop: float = 0.0) -> LossSums:
    """The loss of guessing the tokens that were hidden, from all of their document (Devlin et al. 2019)."""
    batch, r_drop = readings(model, batch, r_drop)
    states_BSD = model.encode(batch.tokens_BS, batch.real_BS, documents_BS=batch.documents_BS)
    states_ND, targets_N = _scored(states_BSD, batch.targets_BS, batch.scored_BS)
    loss, nll = vocabulary_loss(model, model.predict(states_ND), targets_N, smoothing, r_drop)
    return LossSums(loss, nll, batch.target_tokens)


def classification_loss(
    model: BidirectionalEncoder, batch: LabelledBatch, smoothing: float, r_drop: float = 0.0
) -> LossSums:
    """The loss of telling the label of each text or image."""
    batch, r_drop = readings(model, batch, r_drop)
    logits_BL = model.logits(model.encode(batch.inputs, batch.real_BS))
    loss, nll = _label_loss(logits_BL, batch.labels, smoothing, r_drop)
    return LossSums(loss, nll, batch.target_tokens)


def token_classification_loss(
    model: BidirectionalEncoder, batch: LabelledBatch, smoothing: float, r_drop: float = 0.0
) -> LossSums:
    """The loss of telling the label of each word, at its first token. Other tokens take no part."""
    batch, r_drop = readings(model, batch, r_drop)
    logits_BSL = model.logits(model.encode(batch.inputs, batch.real_BS))
    loss, nll = _label_loss(*_scored(logits_BSL, batch.labels, batch.labels != UNSCORED), smoothing, r_drop)
    return LossSums(loss, nll, batch.target_tokens)


def _scored(values_BTX: Tensor, targets_BT: Tensor, scored_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Values and targets of the positions that count."""
    places_N = scored_BT.flatten().nonzero().squeeze(1)
    return values_BTX.flatten(0, 1).index_select(0, places_N), targets_BT.flatten().index_select(0, places_N)


def _label_loss(logits_NL: Tensor, labels_N: Tensor, smoothing: float, r_drop: float) -> tuple[Tensor, Tensor]:
    logits_NL = logits_NL.float()
    if r_drop:
        return reference_r_drop(logits_NL, labels_N, smoothing, r_drop)
    loss = functional.cross_entropy(logits_NL, labels_N, reduction="sum", label_smoothing=smoothing)
    nll = functional.cross_entropy(logits_NL.detach(), labels_N, reduction="sum")
    return loss, nll
