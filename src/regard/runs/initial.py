"""Runs that go on from a model that has learned already, whole or by adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.errors import UserError
from regard.model import adapters, store
from regard.model.settings import HeadSettings
from regard.runs.settings import RunSettings
from regard.settings import merge
from regard.text.tokenizer import TokenizerPair

FREE = ("dropout", "attention_dropout", "activation_dropout")
"""Settings of a model that its weights do not depend on."""

HEAD = "head."
"""What the names of an encoder's head begin with: other questions need another one."""


def with_initial(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The values of a recipe, those of the model that it goes on from included, if it names one.

    Raises:
        UserError: the recipe asks for another model or tokenizer than the initial one is.
    """
    if not isinstance(values.get("initial"), str | Path):
        return dict(values)
    path = Path(values["initial"])
    for section in ("preset", "tokenizer"):
        if section in values:
            raise UserError(f"{origin}: {section}: the initial model brings its own; leave that out")
    model = store.read_config(store.find(path)).model.model_dump(mode="json")
    asked = values.get("model")
    for key, value in asked.items() if isinstance(asked, Mapping) else ():
        if key in model and key not in FREE and value != model[key]:
            raise UserError(
                f"{origin}: model.{key} = {value} is not that of the initial model, {model[key]}; leave it out"
            )
    return merge({"model": model}, values)


def initial_tokenizers(settings: RunSettings) -> TokenizerPair | None:
    """Those of the model that the run goes on from, if it does."""
    return None if settings.initial is None else TokenizerPair.load(store.find(settings.initial))


def take_over(model: nn.Module, settings: RunSettings) -> None:
    """Put the initial model's weights into a new model; a head for another question stays new.

    Raises:
        UserError: it is of another family, or the weights do not fit.
    """
    if settings.initial is None:
        return
    directory = store.find(settings.initial)
    before = store.read(directory)
    family = getattr(model, "family", None)
    if before.family != family:
        raise UserError(
            f"initial: {directory} holds a model of the family {before.family}; {settings.task} needs {family}"
        )
    weights = store.parameters(before)
    own = store.parameters(model)
    if getattr(before, "head_settings", None) != getattr(model, "head_settings", None):
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(HEAD)}
        weights |= {name: tensor for name, tensor in own.items() if name.startswith(HEAD)}
    store.assign(model, weights, str(directory / store.WEIGHTS))


def adapt(model: nn.Module, settings: RunSettings) -> None:
    """Give the model adapters, if the settings say so; a head that is new learns as a whole."""
    if settings.adapters is None:
        return
    head = getattr(model, "head_settings", None)
    new_head = isinstance(head, HeadSettings) and bool(head.labels)
    adapters.apply(model, settings.adapters, (HEAD,) if new_head else ())
