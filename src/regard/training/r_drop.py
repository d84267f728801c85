"""R-Drop: what dropout leaves of a model should say the same each time (Wu et al. 2021, arXiv 2106.14448).

Every batch is read twice, with other units dropped each time. With p_1 and p_2 the two distributions of a position,
the publication minimises (its equation 4)

    CE_1 + CE_2 + alpha (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2,

and so do we, divided by two: the cross-entropies are averaged, so that losses and gradients stand beside those without
R-Drop, and alpha weighs the divergence against them as it does there.

The normalisers of the two softmaxes cancel in the symmetric divergence. With d = z_1 - z_2, the difference of logits,

    J = KL(p_1 || p_2) + KL(p_2 || p_1) = sum_v (p_1 - p_2) d,
    dJ / dz_1 =   (p_1 - p_2) + p_1 (d - sum_v p_1 d),
    dJ / dz_2 = -((p_1 - p_2) + p_2 (d - sum_v p_2 d)).

Shapes: N positions of one reading, M = 2 N those of both, the first reading's before the second's; D d_model, V
vocabulary or labels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.data.feed import TensorBatch
from regard.model.precision import products_are_half
from regard.native import loss as native
from regard.training.by_hand import Result, by_hand

CHUNK_BYTES = 4 * 2**20
"""Of the logits of each reading, so much is made at a time: less than in `loss.py`, as more stands beside it."""

BatchT = TypeVar("BatchT", bound=TensorBatch)


def readings(model: nn.Module, batch: BatchT, r_drop: float) -> tuple[BatchT, float]:
    """What the model is to read for its loss, and the weight alpha of that.

    In training all examples, and after them all once more; their tokens are counted once. Otherwise, as nothing is
    dropped, the batch as it is, and 0.
    """
    if not r_drop or not model.training:
        return batch, 0.0
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **{name: torch.cat((tensor, tensor)) for name, tensor in tensors.items()}), r_drop


def reference_r_drop(
    logits_MV: Float[Tensor, "M V"], targets_M: Int[Tensor, " M"], smoothing: float, alpha: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Loss and negative log-likelihood of both readings (their mean), summed over the N positions, said plainly.

    The likelihood is without smoothing, and without gradient.
    """
    loss = functional.cross_entropy(logits_MV, targets_M, reduction="sum", label_smoothing=smoothing)
    nll = functional.cross_entropy(logits_MV.detach(), targets_M, reduction="sum")
    one_NV, other_NV = _readings(logits_MV.log_softmax(dim=-1))
    divergence = ((one_NV.exp() - other_NV.exp()) * (one_NV - other_NV)).sum()
    return loss / 2 + alpha / 4 * divergence, nll / 2


def fused_r_drop(
    hidden_MD: Float[Tensor, "M D"],
    weight_VD: Float[Tensor, "V D"],
    targets_M: Int[Tensor, " M"],
    smoothing: float,
    alpha: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The same of logits h W^T that are never held all at once: each chunk's gradient is made beside its loss."""
    return by_hand(partial(_fused, targets_M=targets_M, smoothing=smoothing, alpha=alpha), hidden_MD, weight_VD)


def _fused(
    hidden_MD: Tensor, weight_VD: Tensor, wanted: bool, targets_M: Tensor, smoothing: float, alpha: float
) -> Result:
    compute = partial(native.fused_loss, half=products_are_half()) if native.fits(hidden_MD, weight_VD) else _by_chunks
    return compute(hidden_MD, weight_VD, wanted, targets_M, smoothing, alpha)


def _by_chunks(
    hidden_MD: Tensor, weight_VD: Tensor, wanted: bool, targets_M: Tensor, smoothing: float, alpha: float
) -> Result:
    """d loss / d z_i = (p_i - q) / 2 + alpha / 4 dJ / dz_i, where q = (1 - eps) [v = target] + eps / V."""
    vocabulary = weight_VD.shape[0]
    hidden, targets = _readings(hidden_MD), _readings(targets_M)
    weight = weight_VD.to(hidden.dtype)
    gradients = (torch.empty_like(hidden), torch.zeros_like(weight_VD)) if wanted else None
    sums = [hidden.new_zeros((), dtype=torch.float64) for _ in range(2)]

    rows = max(1, CHUNK_BYTES // (4 * vocabulary))
    for start in range(0, hidden.shape[1], rows):
        here = slice(start, start + rows)
        logits = functional.linear(hidden[:, here], weight)
        losses, gradient = _chunk(logits, targets[:, here], smoothing, alpha, wanted)
        sums = [total + each for total, each in zip(sums, losses, strict=True)]
        if gradients is not None:
            gradient = gradient.to(hidden.dtype)
            gradients[0][:, here] = gradient @ weight
            gradients[1].add_(gradient.flatten(0, 1).T @ hidden[:, here].flatten(0, 1))
    loss, nll = (total.to(_wide(hidden.dtype)) for total in sums)
    return loss, nll, None if gradients is None else (gradients[0].flatten(0, 1), gradients[1])


def _chunk(
    logits: Tensor, targets: Tensor, smoothing: float, alpha: float, wanted: bool
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Loss and negative log-likelihood of some positions, logits [2, N, V], summed; if wanted, d loss / d logits."""
    logits = logits.to(_wide(logits.dtype))
    targets = targets[..., None]
    target_logits = logits.gather(-1, targets)
    p = torch.softmax(logits, dim=-1)
    # log sum exp(logits) by way of the likeliest class, whose probability is at least 1 / V
    normaliser = logits.amax(dim=-1, keepdim=True) - p.amax(dim=-1, keepdim=True).log()
    difference = logits[0] - logits[1]
    expected = (p * difference).sum(dim=-1, keepdim=True)
    divergence = (expected[0] - expected[1]).sum(dtype=torch.float64)
    nll = (normaliser - target_logits).sum(dtype=torch.float64) / 2
    smoothed = normaliser - (1 - smoothing) * target_logits - smoothing * logits.mean(dim=-1, keepdim=True)
    loss = smoothed.sum(dtype=torch.float64) / 2 + alpha / 4 * divergence
    if wanted:
        gap = p[0] - p[1]
        gradient = (difference - expected).mul_(p).add_(gap)
        gradient[1].neg_()
        gradient.mul_(alpha / 4).add_(p, alpha=0.5).sub_(smoothing / (2 * p.shape[-1]))
        p = gradient.scatter_add_(-1, targets, gradient.new_full((), (smoothing - 1) / 2).expand_as(targets))
    return (loss, nll), p


def _readings(values: Tensor) -> Tensor:
    """[M, ...] as [2, N, ...]."""
    return values.view(2, len(values) // 2, *values.shape[1:])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32, unless more is asked for."""
    return torch.promote_types(dtype, torch.float32)
