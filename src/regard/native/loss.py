"""Cross-entropy of a vocabulary with label smoothing, or of R-Drop, and its gradient by the compiled library.

`training/loss.py` and `training/r_drop.py` say the mathematics, and do the same with PyTorch where this does not fit.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.native.library import check, fast_pairs, library, serves

WIDTH = 16
"""d_model has to be a multiple of it: numbers in the widest vector."""

PART = 256
"""Positions of a thread, at least: each also has a gradient of the whole matrix."""


def fits(hidden_ND: Tensor, weight_VD: Tensor) -> bool:
    """Whether the library is there and can do this."""
    return hidden_ND.shape[1] % WIDTH == 0 and serves(hidden_ND, weight_VD)


def fused_loss(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    wanted: bool,
    targets_N: Int[Tensor, " N"],
    smoothing: float,
    alpha: float = 0.0,
    half: bool = False,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], tuple[Tensor, Tensor] | None]:
    """Loss and negative log-likelihood, summed, and if `wanted` the loss's gradients for `hidden_ND` and `weight_VD`.

    With R-Drop's `alpha` above 0, of two readings, one after the other. `half`: the factors of products are rounded to
    bfloat16, where the CPU is faster with them.
    """
    loaded = library()
    assert loaded is not None
    assert fits(hidden_ND, weight_VD)
    assert hidden_ND.shape[0] == len(targets_N)
    assert hidden_ND.shape[1] == weight_VD.shape[1]
    hidden_ND, weight_VD = hidden_ND.detach().contiguous(), weight_VD.detach().contiguous()
    targets_N = targets_N.to(torch.int64).contiguous()
    threads = min(torch.get_num_threads(), 1 + len(hidden_ND) // PART)
    gradient_hidden = torch.empty_like(hidden_ND) if wanted else None
    gradient_weights = weight_VD.new_zeros(threads, *weight_VD.shape) if wanted else None
    sums = torch.empty(2, dtype=torch.float64)
    check(
        loaded.regard_cross_entropy(
            hidden_ND.data_ptr(),
            targets_N.data_ptr(),
            len(hidden_ND) // (2 if alpha else 1),
            weight_VD.data_ptr(),
            *weight_VD.shape,
            smoothing,
            alpha,
            None if gradient_hidden is None else gradient_hidden.data_ptr(),
            None if gradient_weights is None else gradient_weights.data_ptr(),
            sums.data_ptr(),
            threads,
            half and fast_pairs() and weight_VD.shape[1] % (2 * WIDTH) == 0,
        ),
        loaded,
    )
    loss, nll = sums.float().unbind()
    if gradient_hidden is None or gradient_weights is None:
        return loss, nll, None
    return loss, nll, (gradient_hidden, gradient_weights[0] if threads == 1 else gradient_weights.sum(dim=0))
