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

FREE = ("dropout", "attention_dropout", "activation_dropout", "layer_dropout")
"""Settings of a model that its weights do not depend on."""

HEAD = "head."
"""What the names of an encoder's head begin with: other questions need another one."""


def initial_model(values: Mapping[str, Any]) -> store.ModelConfig | None:
    """The configuration of the model that a recipe goes on from, if it names one."""
    path = values.get("initial")
    return store.read_config(store.find(Path(path))) if isinstance(path, str | Path) else None


def with_initial(values: Mapping[str, Any], family: str, origin: str) -> dict[str, Any]:
    """The values of a recipe, those of the model that it goes on from included, if it names one.

    Raises:
        UserError: the recipe asks for another family, model or tokenizer than the initial one is.
    """
    found = initial_model(values)
    if found is None:
        return dict(values)
    if found.family != family:
        raise UserError(
            f"{origin}: initial: {values['initial']} holds a model of the family {found.family}, and what is to be "
            f"learned needs one of the family {family}"
        )
    for section in ("preset", "tokenizer"):
        if values.get(section) is not None:
            raise UserError(f"{origin}: {section}: the initial model brings its own; leave that out")
    model = found.model.model_dump(mode="json")
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
        UserError: the weights do not fit.
    """
    if settings.initial is None:
        return
    directory = store.find(settings.initial)
    before = store.read(directory)
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
