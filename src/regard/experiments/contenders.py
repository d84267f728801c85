"""The kinds of model that are compared: the Transformer of a recipe, and others of its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import nn

from regard.errors import UserError
from regard.experiments.convolution import ConvolutionalEncoderDecoder, ConvolutionSettings
from regard.experiments.recurrent import RecurrentEncoderDecoder, RecurrentSettings
from regard.experiments.reference import ReferenceSettings
from regard.model.transformer import EncoderDecoder
from regard.recipes import merge
from regard.runs.settings import RunSettings
from regard.settings import Settings
from regard.training.trainer import TrainingSettings

WIDEST = 2**14
"""The widest reference model that is looked at."""

LIKE = 0.05
"""By this share may the sizes of models differ that are compared."""


class ContenderSettings(Settings):
    """What one kind of model is told besides the recipe."""

    model: dict[str, Any] = Field(default_factory=dict)
    """Settings of its model; a reference model that is not told its width `hidden` gets the Transformer's size."""
    training: dict[str, Any] = Field(default_factory=dict)
    """What differs from the recipe's training, such as a learning rate that suits it better."""


class ContendersSettings(Settings):
    """A section for each kind of model."""

    transformer: ContenderSettings = ContenderSettings()
    lstm: ContenderSettings = ContenderSettings()
    convolution: ContenderSettings = ContenderSettings()


@dataclass(frozen=True)
class Contender:
    """One kind of model, not built yet."""

    name: str
    model: Settings
    training: TrainingSettings
    build: Callable[[int, int], nn.Module]
    """The model for a source and a target vocabulary of these sizes."""


REFERENCES: dict[str, tuple[type[ReferenceSettings], Callable[[Any, int, int], nn.Module]]] = {
    "lstm": (RecurrentSettings, RecurrentEncoderDecoder),
    "convolution": (ConvolutionSettings, ConvolutionalEncoderDecoder),
}
SHARED = ("d_model", "max_length", "dropout", "tie")
"""What a reference model takes over from the Transformer, unless told otherwise."""


def contenders(settings: RunSettings, own: ContendersSettings, vocabularies: tuple[int, int]) -> list[Contender]:
    """The models of a comparison, the Transformer first; the others as near to its number of parameters as can be.

    Raises `UserError` for settings that do not fit.
    """
    if own.transformer.model:
        raise UserError("transformer.model: the Transformer is the recipe's own; change it by --model.KEY")
    transformer = Contender(
        "transformer",
        settings.model,
        _training(settings, own.transformer, "transformer"),
        lambda source, target: EncoderDecoder(settings.model, source, target),
    )
    size = parameters(transformer.build, vocabularies)
    return [transformer, *(_reference(name, settings, getattr(own, name), size, vocabularies) for name in REFERENCES)]


def parameters(build: Callable[[int, int], nn.Module], vocabularies: tuple[int, int]) -> int:
    """How many parameters a model has; it is built without memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(*vocabularies).parameters())


def nearest_width(size_of: Callable[[int], int], wanted: int) -> int:
    """The width from 1 to `WIDEST` with the size nearest to `wanted`, where a wider model is a larger one."""
    low, high = 1, WIDEST
    while low < high:
        middle = (low + high) // 2
        if size_of(middle) < wanted:
            low = middle + 1
        else:
            high = middle
    narrower = max(low - 1, 1)
    return min((narrower, low), key=lambda width: abs(size_of(width) - wanted))


def _reference(
    name: str, settings: RunSettings, own: ContenderSettings, wanted: int, vocabularies: tuple[int, int]
) -> Contender:
    kind, model_class = REFERENCES[name]
    given = {key: getattr(settings.model, key) for key in SHARED} | own.model

    def with_width(hidden: int) -> ReferenceSettings:
        return kind.parse({**given, "hidden": hidden}, f"{name}.model")

    def size_of(hidden: int) -> int:
        return parameters(lambda *sizes: model_class(with_width(hidden), *sizes), vocabularies)

    chosen = with_width(own.model["hidden"] if "hidden" in own.model else nearest_width(size_of, wanted))
    size = size_of(chosen.hidden)
    if "hidden" not in own.model and abs(size / wanted - 1) > LIKE:
        raise UserError(
            f"{name}.model: with hidden = {chosen.hidden} there are {size:,} parameters, and the Transformer has "
            f"{wanted:,}; change its layers, lower model.max_length (each position has a vector) or give hidden"
        )
    return Contender(
        name,
        chosen,
        _training(settings, own, name),
        lambda source, target: model_class(chosen, source, target),
    )


def _training(settings: RunSettings, own: ContenderSettings, name: str) -> TrainingSettings:
    values: Mapping[str, Any] = merge(settings.training.model_dump(), own.training)
    return TrainingSettings.parse(values, f"{name}.training")
