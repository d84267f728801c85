"""Low-rank adapters (LoRA; Hu et al. 2021, arXiv 2106.09685): fine-tuning that leaves the weights as they are.

A weight W of a linear map becomes W + (alpha / R) B A, where only A and B learn. B begins with zeros, so that the model
begins as it was. The maps to queries, keys and values stand in one weight, and each has an A and B of its own.

Adapters are parametrizations of torch: whatever uses `.weight` of a map sees the sum.

Shapes: O outputs and I inputs of a map, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.errors import UserError
from regard.model import store
from regard.model.attention import MultiHeadAttention
from regard.model.dropout import dropout
from regard.model.feed_forward import FeedForward
from regard.settings import Settings, read_json
from regard.text.lines import atomic_write

Target = Literal[
    "self_attention.query",
    "self_attention.key",
    "self_attention.value",
    "self_attention.output",
    "memory_attention.query",
    "memory_attention.key",
    "memory_attention.value",
    "memory_attention.output",
    "feed_forward.gate",
    "feed_forward.expand",
    "feed_forward.contract",
]

CONFIG = "adapters.json"
WEIGHTS = "adapters.safetensors"


class AdapterSettings(Settings):
    """Low-rank adapters (LoRA): what learns in their place of the weights."""

    rank: int = Field(8, gt=0, le=2**12)
    """Rank of the change of a weight: the width of A and B."""
    alpha: float = Field(16.0, gt=0, allow_inf_nan=False)
    """The change is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """On the inputs that A reads, the same ones at all positions of a batch."""
    targets: tuple[Target, ...] = Field(("self_attention.query", "self_attention.value"), min_length=1)
    """The linear maps of each layer that get adapters."""


class AdapterConfig(Settings):
    """The contents of `adapters.json`."""

    format: Literal["regard.adapters"] = "regard.adapters"
    version: Literal[1] = 1
    adapters: AdapterSettings


@dataclass(frozen=True, eq=False)
class Adapters:
    """Adapters by themselves: their settings, and A and B by the name of their map, and what else was trained."""

    settings: AdapterSettings
    tensors: dict[str, Tensor]


class LowRank(nn.Module):
    """A and B of one map."""

    def __init__(self, rows: slice, weight_OI: Float[Tensor, "all I"], settings: AdapterSettings) -> None:
        super().__init__()
        self.rows = rows
        self.scale = settings.alpha / settings.rank
        self.drop = settings.dropout
        inputs = weight_OI.shape[1]
        self.a = nn.Parameter(weight_OI.new_empty(settings.rank, inputs).uniform_(-1, 1) / math.sqrt(inputs))
        self.b = nn.Parameter(weight_OI.new_zeros(rows.stop - rows.start, settings.rank))

    def forward(self, weight_OI: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """W + (alpha / R) B A."""
        kept_I = dropout(torch.ones_like(self.a[0]), self.drop, self.training)
        return torch.addmm(weight_OI, self.b, self.a * kept_I, alpha=self.scale)


class Adapted(nn.Module):
    """The parametrization of a weight: some blocks of its rows have adapters, the others stay as they are."""

    def __init__(self, weight_OI: Tensor, blocks: dict[str, slice], settings: AdapterSettings) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({name: LowRank(rows, weight_OI, settings) for name, rows in blocks.items()})

    def forward(self, weight_OI: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        parts, end = [], 0
        with torch.autocast(weight_OI.device.type, enabled=False):
            for block in self.blocks.values():
                assert isinstance(block, LowRank)
                parts += [weight_OI[end : block.rows.start], block(weight_OI[block.rows])]
                end = block.rows.stop
            return torch.cat([*parts, weight_OI[end:]])


class LinearMap(NamedTuple):
    """A linear map of a layer: some rows of the weight of a module."""

    place: str
    """Name of the sub-layer in the model, such as `decoder.0.self_attention`."""
    name: str
    linear: nn.Linear
    rows: slice

    @property
    def target(self) -> str:
        return f"{self.place.rpartition('.')[2]}.{self.name}"


def apply(model: nn.Module, settings: AdapterSettings, learning: tuple[str, ...] = ()) -> None:
    """Freeze `model` and give it new adapters. Parameters whose names begin with one of `learning` keep learning.

    Raises:
        UserError: the model has none of the maps of a target.
    """
    maps = list(linear_maps(model))
    missing = [target for target in settings.targets if target not in {each.target for each in maps}]
    if missing:
        there = [target for target in get_args(Target) if target in {each.target for each in maps}]
        raise UserError(f"adapters.targets: this model has no {', '.join(missing)}; it has {', '.join(there)}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(learning) if learning else False)
    chosen: dict[nn.Linear, dict[str, slice]] = {}
    for each in maps:
        if each.target in settings.targets:
            chosen.setdefault(each.linear, {})[each.name] = each.rows
    for linear, blocks in chosen.items():
        parametrize.register_parametrization(linear, "weight", Adapted(linear.weight, blocks, settings))


def adapters(model: nn.Module, settings: AdapterSettings) -> Adapters:
    """A copy of what was trained: the model's adapters, and parameters that were not frozen."""
    tensors = {name: tensor.detach().clone() for name, tensor in _tensors(model).items()}
    return Adapters(settings, tensors)


def attach(model: nn.Module, given: Adapters) -> None:
    """Give `model` these adapters; it is the one they were trained on, without adapters yet.

    Raises:
        UserError: they do not fit.
    """
    low_rank = {name for name in given.tensors if name.endswith((".a", ".b"))}
    apply(model, given.settings, tuple(given.tensors.keys() - low_rank))
    own = _tensors(model)
    misfits = sorted(
        name
        for name in own.keys() | given.tensors.keys()
        if name not in own or name not in given.tensors or own[name].shape != given.tensors[name].shape
    )
    if misfits:
        raise UserError(f"the adapters are not for this model; these do not fit: {', '.join(misfits)}")
    with torch.no_grad():
        for name, tensor in given.tensors.items():
            own[name].copy_(tensor)


def merge(model: nn.Module) -> None:
    """Put the adapters into the weights: the same outputs, and a model like any other, without adapters."""
    for linear in _adapted(model):
        _parametrizations(linear).eval()
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)


def unmerge(model: nn.Module, given: Adapters) -> None:
    """Take merged adapters out of the weights again, up to rounding, and attach them."""
    attach(model, given)
    for linear in _adapted(model):
        parametrizations = _parametrizations(linear).eval()
        original = parametrizations.original
        assert isinstance(original, nn.Parameter)
        with torch.no_grad():
            original.copy_(2 * original - linear.weight)
        parametrizations.train(model.training)


def save(directory: Path, given: Adapters) -> None:
    """Write `adapters.safetensors` and `adapters.json` into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / WEIGHTS) as file:
        file.write(to_bytes({name: tensor.cpu().contiguous() for name, tensor in given.tensors.items()}))
    with atomic_write(directory / CONFIG) as file:
        file.write((AdapterConfig(adapters=given.settings).model_dump_json(indent=2) + "\n").encode())


def load(directory: Path) -> Adapters:
    """Read what `save` wrote; `UserError` names the file and what is wrong with it."""
    path = directory / CONFIG
    config = AdapterConfig.parse(read_json(path), str(path))
    return Adapters(config.adapters, store.read_tensors(directory / WEIGHTS))


def linear_maps(model: nn.Module) -> Iterator[LinearMap]:
    """Every linear map that may get adapters."""
    for place, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            yield from _blocks(place, module.in_projection, ("query", "key", "value"), module.widths)
            yield from _blocks(place, module.out_projection, ("output",))
        elif isinstance(module, FeedForward):
            gated = module.expand.out_features > module.contract.in_features
            widths = [module.contract.in_features] * (2 if gated else 1)
            yield from _blocks(place, module.expand, ("gate", "expand") if gated else ("expand",), widths)
            yield from _blocks(place, module.contract, ("contract",))


def _blocks(
    place: str, linear: nn.Linear, names: tuple[str, ...], widths: list[int] | None = None
) -> Iterator[LinearMap]:
    end = 0
    for name, width in zip(names, widths or [linear.out_features], strict=True):
        yield LinearMap(place, name, linear, slice(end, end + width))
        end += width


def _adapted(model: nn.Module) -> list[nn.Linear]:
    """The linear modules with adapters."""
    return [
        module for module in model.modules() if isinstance(module, nn.Linear) and parametrize.is_parametrized(module)
    ]


def _parametrizations(linear: nn.Linear) -> parametrize.ParametrizationList:
    found = linear.parametrizations
    assert isinstance(found, nn.ModuleDict)
    weight = found["weight"]
    assert isinstance(weight, parametrize.ParametrizationList)
    return weight


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that learn: A and B by the name of their map, others by their own."""
    found: dict[str, Tensor] = {}
    for each in linear_maps(model):
        if parametrize.is_parametrized(each.linear):
            adapted = _parametrizations(each.linear)[0]
            assert isinstance(adapted, Adapted)
            if each.name in adapted.blocks:
                block = adapted.blocks[each.name]
                found |= {f"{each.place}.{each.name}.{part}": getattr(block, part) for part in "ab"}
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return found | {name: tensor for name, tensor in learning.items() if ".parametrizations." not in name}
