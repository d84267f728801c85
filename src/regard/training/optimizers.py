"""The optimizers (section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.errors import UserError
from regard.model import store
from regard.model.adapters import LowRank, linear_maps
from regard.settings import Settings


class OptimizerSettings(Settings):
    """Adam (Kingma and Ba 2015) with the paper's constants, or Muon for the matrices inside of layers."""

    kind: Literal["adamw", "muon"] = "adamw"
    """A row of the table in `optimizers.py`. adamw without weight decay is Adam, the paper's optimizer."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of the gradients."""
    beta2: float = Field(0.98, ge=0, lt=1)
    """Decay of the mean of their squares."""
    epsilon: float = Field(1e-9, gt=0)
    """Added to the root of that mean."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """At each step matrices lose this share of themselves, times the rate (AdamW, Loshchilov and Hutter 2019). The
    paper has none."""
    muon_rate: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The rate of Muon's matrices, in rates of the schedule. At 1 they change about as much at a step as they would
    under Adam."""

    @model_validator(mode="after")
    def _rate_of_muon(self) -> Self:
        if self.muon_rate != 1 and self.kind != "muon":
            raise ValueError(f"muon_rate means nothing to the optimizer {self.kind}; it is for kind: muon")
        return self


def adam(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Adam over all weights that learn, in torch's fused implementation. The schedule sets the rate at each step.

    Only matrices decay: biases and the gains of normalisations stay about where they are best.
    """
    return _adam_over([parameter for parameter in model.parameters() if parameter.requires_grad], settings)


def _adam_over(learning: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    groups = [
        {"params": [each for each in learning if each.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [each for each in learning if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def muon(model: nn.Module, settings: OptimizerSettings) -> Muon:
    """Muon for the matrices inside of layers, Adam for all else that learns: embeddings, output, gains, biases, heads.

    Raises:
        UserError: there is no such matrix in the model.
    """
    matrices = _matrices(store.unwrap(model))
    if not matrices:
        raise UserError(
            "training.optimizer.kind: muon is for the matrices of attention and feed-forward layers; none learn here"
        )
    others = [each for each in model.parameters() if each.requires_grad and each not in matrices]
    return Muon(matrices, _adam_over(others, settings) if others else None, settings)


def _matrices(model: nn.Module) -> dict[nn.Parameter, list[slice]]:
    """The weights of the linear maps of layers, and which rows of each are a map of their own.

    Where maps have adapters, these are the matrices that learn.
    """
    found: dict[nn.Parameter, list[slice]] = {}
    for each in linear_maps(model):
        if not parametrize.is_parametrized(each.linear):
            weight = each.linear.weight
            assert isinstance(weight, nn.Parameter)
            found.setdefault(weight, []).append(each.rows)
    for module in model.modules():
        if isinstance(module, LowRank):
            found |= {module.a: [slice(None)], module.b: [slice(None)]}
    return {weight: parts for weight, parts in found.items() if weight.requires_grad}


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), and Adam beside it.

    A matrix changes not by the mean of its gradients, U S V^T by singular values, but by about U V^T: it learns equally
    fast in all directions. The mean has Nesterov's step ahead. The change is scaled by 0.2 sqrt(max(rows, columns)), to
    be as large as those by Adam usually are (Liu et al. 2025, arXiv 2502.16982). A weight that holds several maps below
    each other, such as those to queries, keys and values, is several matrices.

    The first group of parameters are Muon's, the others Adam's. The state of both is in one place.
    """

    def __init__(
        self,
        matrices: Mapping[nn.Parameter, Sequence[slice]],
        others: torch.optim.AdamW | None,
        settings: OptimizerSettings,
        decay: float = 0.95,
    ) -> None:
        """`matrices`: weights, and the rows of each that are a map of their own; `decay`: that of the mean."""
        super().__init__(list(matrices), {"lr": 0.0, "weight_decay": settings.weight_decay})
        self._maps = matrices
        self._others = others
        self._factor, self._decay = settings.muon_rate, decay
        if others is not None:
            self.param_groups += others.param_groups
            others.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change all weights that have gradients."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        group = self.param_groups[0]
        rate = group["lr"] * self._factor
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                ahead = self._mean(weight).lerp(weight.grad, 1 - self._decay)
                weight.mul_(1 - rate * group["weight_decay"])
                for rows in self._maps[weight]:
                    by_shape.setdefault(weight[rows].shape, []).append((weight[rows], ahead[rows]))
        for shape, matrices in by_shape.items():
            changes = orthogonal(torch.stack([ahead for _, ahead in matrices]))
            for (matrix, _), change in zip(matrices, changes, strict=True):
                matrix.sub_(change, alpha=rate * 0.2 * math.sqrt(max(shape)))
        if self._others is not None:
            self._others.step()
        return loss

    def _mean(self, weight: Tensor) -> Tensor:
        """The mean of a weight's gradients, the present one included."""
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        mean: Tensor = state["momentum"].lerp_(weight.grad, 1 - self._decay)
        return mean


def orthogonal(matrices_KOI: Float[Tensor, "K O I"]) -> Float[Tensor, "K O I"]:
    """About U V^T of each U S V^T, by Newton and Schulz's iteration: singular values become about 1.

    Five steps of a polynomial of degree five whose coefficients raise small values fast, in bfloat16, as published.
    """
    tall = matrices_KOI.shape[1] > matrices_KOI.shape[2]
    x = (matrices_KOI.mT if tall else matrices_KOI).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x.mT if tall else x


OPTIMIZERS: dict[str, Callable[[nn.Module, OptimizerSettings], torch.optim.Optimizer]] = {"adamw": adam, "muon": muon}
"""Optimizers of a model by the name that settings give them."""
