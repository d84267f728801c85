"""Runs that go on from a model that has learned already, whole or by adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import UserError
from regard.model import adapters, store
from regard.model.settings import HeadSettings
from regard.recipes import merge, read_yaml
from regard.runs.settings import RunSettings
from regard.runs.task import Run
from regard.text.extension import made_of
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import checkpoints, load_latest
from regard.training.optimizers import OptimizerSettings

FREE = ("dropout", "attention_dropout", "activation_dropout", "layer_dropout")
"""Settings of a model that its weights do not depend on."""

HEAD = "head."
"""What the names of an encoder's head begin with: other questions need another one."""

SOURCE = "source_embedding."
"""What the name of the matrix begins with that has a row for each piece of the source's vocabulary alone."""

CHECKPOINTS = "checkpoints"
NO_MOMENTS = ("random", "average")
"""What a checkpoint keeps beside an optimizer's state."""


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
    if values.get("initial_optimizer") == "keep":
        _refuse_other_optimizer(Path(values["initial"]), values, origin)
    return merge({"model": model}, values)


def _refuse_other_optimizer(initial: Path, values: Mapping[str, Any], origin: str) -> None:
    if not checkpoints(initial / CHECKPOINTS):
        raise UserError(f"{origin}: {_nothing_to_keep(initial)}")
    before, after = (_optimizer(each) for each in (read_yaml(initial / "settings.yaml"), values))
    if before != after:
        raise UserError(
            f"{origin}: initial_optimizer: keep cannot be: the run {initial} had the optimizer {before}, not {after}"
        )
    if values.get("adapters") is not None:
        raise UserError(f"{origin}: initial_optimizer: keep cannot be with adapters, whose weights are new")


def _optimizer(values: Mapping[str, Any]) -> str:
    """The kind of optimizer that a recipe asks for."""
    found: Any = values
    for key in ("training", "optimizer", "kind"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return str(found or OptimizerSettings().kind)


def initial_tokenizers(settings: RunSettings) -> TokenizerPair | None:
    """Those of the model that the run goes on from, if it does."""
    return None if settings.initial is None else TokenizerPair.load(store.find(settings.initial))


def take_over(model: nn.Module, run: Run) -> None:
    """Put the initial model's weights into a new model; a head for another question stays new.

    Where the run's vocabulary has grown, a new piece begins as the mean of those that it was made of before, and a tag
    as the mean of all.

    Raises:
        UserError: the weights do not fit.
    """
    settings = run.settings
    if settings.initial is None:
        return
    directory = store.find(settings.initial)
    before = store.read(directory)
    weights = store.parameters(before)
    own = store.parameters(model)
    if getattr(before, "head_settings", None) != getattr(model, "head_settings", None):
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(HEAD)}
        weights |= {name: tensor for name, tensor in own.items() if name.startswith(HEAD)}
    longer = [name for name in weights.keys() & own.keys() if own[name].shape[:1] > weights[name].shape[:1]]
    if longer:
        weights = weights | _longer({name: weights[name] for name in longer}, run)
    store.assign(model, weights, str(directory / store.WEIGHTS))


def _longer(weights: Mapping[str, Tensor], run: Run) -> dict[str, Tensor]:
    """Weights that have a row for each piece, with rows for those that the vocabulary has now beside them."""
    before, after = initial_tokenizers(run.settings), TokenizerPair.load(run.directory)
    assert before is not None
    source, target = made_of(before.source, after.source), made_of(before.target, after.target)

    def rows(weight: Tensor, parts: list[tuple[int, ...]]) -> Tensor:
        new = [weight[list(each)].mean(dim=0) if each else weight.mean(dim=0) for each in parts]
        return torch.cat((weight, torch.stack(new)))

    return {name: rows(weight, source if name.startswith(SOURCE) else target) for name, weight in weights.items()}


def take_over_moments(model: nn.Module, optimizer: Optimizer, run: Run) -> None:
    """Put what the initial run's optimizer remembered last into a new one, if the settings say so.

    Of rows and heads that are new there is nothing to remember.

    Raises:
        UserError: there is no such checkpoint, or it is of another model.
    """
    settings = run.settings
    if settings.initial is None or settings.initial_optimizer == "reset":
        return
    found = load_latest(settings.initial / CHECKPOINTS)
    if found is None:
        raise UserError(_nothing_to_keep(settings.initial))
    path, checkpoint = found
    new_head = store.read_config(store.find(settings.initial)).head != getattr(model, "head_settings", None)
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in checkpoint.optimizer.items():
        kind, _, name = key.partition(".")
        if kind not in NO_MOMENTS and not (new_head and name.startswith(HEAD)):
            moments.setdefault(name, {})[kind] = value
    weights = dict(store.unwrap(model).named_parameters())
    for name, remembered in moments.items():
        if name not in weights:
            raise UserError(f"{path}: remembers a weight {name}, which this model has not; leave out initial_optimizer")
        weight = weights[name]
        optimizer.state[weight] = {kind: _filled_up(value, weight) for kind, value in remembered.items()}


def _filled_up(moment: Tensor, weight: Tensor) -> Tensor:
    missing = len(weight) - len(moment) if moment.ndim else 0
    longer = torch.cat((moment, moment.new_zeros(missing, *moment.shape[1:]))) if missing else moment
    return longer.to(weight.device)


def _nothing_to_keep(initial: Path) -> str:
    return (
        f"initial_optimizer: keep needs what an optimizer remembers: the directory of a run with checkpoints, "
        f"and {initial} has none; name such a run by initial, or leave that out"
    )


def adapt(model: nn.Module, settings: RunSettings) -> None:
    """Give the model adapters, if the settings say so; a head that is new learns as a whole."""
    if settings.adapters is None:
        return
    head = getattr(model, "head_settings", None)
    new_head = isinstance(head, HeadSettings) and bool(head.labels)
    adapters.apply(model, settings.adapters, (HEAD,) if new_head else ())
