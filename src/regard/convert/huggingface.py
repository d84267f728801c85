"""A model directory of Hugging Face `transformers`: `config.json` and safetensors, read and written.

Neither needs that library. Weights are read one tensor at a time from files that are mapped into memory, so that the
model and one weight is all that memory holds. What a table does not know, or misses, is an error that lists it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.convert.architectures import ARCHITECTURES
from regard.convert.config import Config
from regard.convert.mapping import NONE, Architecture, Blueprint, Ids, Row
from regard.convert.mapping import weights as all_weights
from regard.convert.order import sines_first
from regard.convert.output import refuse_other
from regard.errors import JobError, UserError
from regard.model.transformer import Model
from regard.settings import read_json
from regard.text.directories import whole_directory
from regard.text.lines import atomic_write

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = 2 * 10**9
"""Bytes of a file of weights."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.pt")


def is_foreign(directory: Path) -> bool:
    """Whether a directory holds a model of `transformers`."""
    path = directory / CONFIG
    return path.is_file() and "model_type" in read_json(path)


def read(directory: Path, dtype: torch.dtype | None = torch.float32) -> tuple[Model, Architecture, Blueprint]:
    """The model in `directory`, in evaluation mode.

    Args:
        dtype: of the weights; None keeps that of the file, but where a value is computed from it (float32).

    Raises:
        UserError: the architecture or a value of its configuration is not supported, weights are missing, unknown or
            of another shape (all of them are listed), or the weights are in a format that would need unpickling.
    """
    with _Weights(directory) as weights:
        architecture, plan = _plan(directory, weights)
        rows = list(architecture.rows(plan))
        outline = plan.outline(str(directory / CONFIG))
        _check(weights, architecture, rows, outline, str(directory))
        model = plan.build().eval()
        _fill(model, rows, outline, weights, dtype)
    return model, architecture, plan


def _plan(directory: Path, weights: _Weights) -> tuple[Architecture, Blueprint]:
    path = directory / CONFIG
    values = read_json(path)
    name = values.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(
            f"{path}: model_type = {name!r} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}"
        )
    architecture = ARCHITECTURES[name]
    weights.complete(architecture.prefix)
    return architecture, architecture.read(Config(values, str(path)), weights.names())


def _check(
    weights: _Weights, architecture: Architecture, rows: list[Row], outline: Mapping[str, Tensor], origin: str
) -> None:
    """Compare the file with the table before memory is asked for; `UserError` lists everything that does not fit."""
    missing, shapes, known = [], [], set()
    for each in rows:
        for name, expected in each.parts(outline[each.ours]).items():
            known |= {name, *each.tied, *filter(None, [each.instead])}
            if each.unused:
                continue
            stored = each.stored(name, weights)
            if stored is None:
                missing += [name] * (not each.optional)
            elif weights.shape(stored) != tuple(expected.shape):
                shapes.append(f"{stored} is {_shape(weights.shape(stored))}, not {_shape(expected.shape)}")
    computed = [re.compile(pattern) for pattern in architecture.computed]
    unknown = [name for name in weights.names() - known if not any(each.fullmatch(name) for each in computed)]
    filled = {id(outline[each.ours]) for each in rows if not each.unused}
    missing += [f"what makes {name}" for name, parameter in outline.items() if id(parameter) not in filled]
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", missing), ("not expected", unknown), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise UserError(f"{origin}: the weights do not fit the configuration; {'; '.join(problems)}")


def _fill(
    model: nn.Module, rows: list[Row], outline: Mapping[str, Tensor], weights: _Weights, dtype: torch.dtype | None
) -> None:
    parameters = all_weights(model)
    for each in rows:
        if each.unused:
            continue
        stored = {name: each.stored(name, weights) for name in each.names}
        parts = {name: weights.tensor(place) for name, place in stored.items() if place is not None}
        kept = next((part.dtype for part in parts.values()), torch.float32) if each.operation.exact else torch.float32
        tensor = each.whole(outline[each.ours], {name: _computable(part, each) for name, part in parts.items()})
        parameter = parameters[each.ours]
        parameter.data = tensor.to(dtype or kept).contiguous().clone()
        for name in each.tied:
            if name in weights and not torch.equal(weights.tensor(name), next(iter(parts.values()))):
                raise UserError(f"{weights.origin}: {name} should be the same as {each.names[0]}, for they are tied")


def _computable(part: Tensor, each: Row) -> Tensor:
    return part if each.operation.exact else part.float()


class _Weights:
    """The tensors of a directory by name, in one file or several, opened and not yet read."""

    def __init__(self, directory: Path) -> None:
        self.origin = str(directory)
        self._stack = ExitStack()
        self._place: dict[str, tuple[Any, str]] = {}
        """Of each name the open file and the name in it."""
        for path in _files(directory):
            if not path.is_file():
                raise UserError(f"{path}: is missing; fetch the directory again")
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                names = list(file.keys())
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path}: is damaged or not a safetensors file ({error})") from None
            self._place |= {name: (file, name) for name in names}

    def __enter__(self) -> _Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def names(self) -> set[str]:
        return set(self._place)

    def shape(self, name: str) -> tuple[int, ...]:
        file, inside = self._place[name]
        return tuple(file.get_slice(inside).get_shape())

    def tensor(self, name: str) -> Tensor:
        file, inside = self._place[name]
        tensor: Tensor = file.get_tensor(inside)
        if not tensor.is_floating_point():
            raise UserError(f"{self.origin}: {name} holds {tensor.dtype}, which is no number with a fraction")
        return tensor

    def complete(self, prefix: str) -> None:
        """Give every name `prefix` if none has it: the base model was stored alone."""
        if prefix and not any(name.startswith(prefix) for name in self._place):
            self._place = {prefix + name: place for name, place in self._place.items()}


def _files(directory: Path) -> list[Path]:
    """The safetensors files; `UserError` where there is nothing but a format that would need unpickling."""
    if (directory / INDEX).is_file():
        index = read_json(directory / INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise UserError(f"{directory / INDEX}: has no weight_map; fetch the directory again")
        # By name alone: a file elsewhere is none of this model's.
        return [directory / Path(name).name for name in sorted(set(index.values()))]
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    pickles = [name for name in PICKLES if (directory / name).exists()] or [
        path.name for path in directory.glob("*.bin")
    ]
    if pickles:
        raise UserError(
            f"{directory}: has its weights in {pickles[0]}, a format whose reading may run code from the file, so it "
            "is not read; if you trust it, load it with transformers' from_pretrained and store it with "
            "save_pretrained, which writes model.safetensors"
        )
    raise UserError(f"{directory}: has no {WEIGHTS}")


def choose(model: Model, ids: Ids, name: str | None = None) -> tuple[Architecture, dict[str, Any], Blueprint]:
    """The foreign architecture of `model`, its configuration, and the blueprint that the table of names needs.

    Raises:
        UserError: no architecture, or not that of this `name`, computes what the model does.
    """
    plan = Blueprint.of(model, ids)
    if name is not None and name not in ARCHITECTURES:
        raise UserError(f"architecture {name}: is not known; known are {', '.join(sorted(ARCHITECTURES))}")
    if name is not None:
        try:
            return ARCHITECTURES[name], *ARCHITECTURES[name].express(plan)
        except UserError as error:
            raise UserError(f"the model can't be written as {name}: {error}") from None
    reasons = []
    for architecture in (each for each in ARCHITECTURES.values() if each.family == plan.family):
        try:
            return architecture, *architecture.express(plan)
        except UserError as error:
            reasons.append(f"{architecture.name}: {error}")
    raise UserError(
        f"no architecture of transformers computes what this model does; what is against {'; '.join(reasons)}"
    )


def write(
    directory: Path,
    model: Model,
    ids: Ids = NONE,
    name: str | None = None,
    more: Callable[[Path], None] | None = None,
) -> Architecture:
    """Write `model` as a directory that `transformers` loads; it appears as a whole.

    Args:
        ids: control tokens, for the configuration.
        name: of the architecture; without it, the first that computes what the model does.
        more: writes further files, such as the tokenizer's, into the directory that it is given.

    Raises:
        UserError: there is no such architecture, or `directory` holds something that is not a model.
        JobError: the disk is full.
    """
    model = sines_first(model)
    architecture, values, plan = choose(model, ids, name)
    values |= {"model_type": architecture.name, "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    refuse_other(directory)
    with whole_directory(directory) as partial:
        if more is not None:
            more(partial)
        _write_json(partial / CONFIG, values)
        _write_weights(partial, list(architecture.rows(plan)), plan.outline(), model)
    return architecture


def _write_weights(directory: Path, rows: list[Row], outline: Mapping[str, Tensor], model: Model) -> None:
    """Write files of at most `SHARD` bytes, so that memory holds the model and little more."""
    own = {name: parameter.detach() for name, parameter in all_weights(model).items()}
    shards: list[list[Row]] = [[]]
    size = total = 0
    for each in rows:
        weight = own[each.ours] if each.ours in own else outline[each.ours]
        if shards[-1] and size + weight.nbytes > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(each)
        size, total = size + weight.nbytes, total + weight.nbytes
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = dict(part for each in shard for part in _parts(each, own, outline))
        _save(directory / name, tensors)
        places |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        _write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    # Not by `atomic_write`: the bytes of all tensors would stand in memory three times. The directory is not yet in its
    # place, so only what the library leaves undone is done here: the mode of any other file, and reaching the disk.
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise JobError(f"{path}: could not be written: {error}; see to the disk and run again") from None
    path.chmod((path.parent / CONFIG).stat().st_mode)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _parts(each: Row, own: Mapping[str, Tensor], outline: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    # What only they have, such as a bias, is written as zeros.
    ours = own[each.ours].cpu() if each.ours in own else torch.zeros(outline[each.ours].shape)
    for name, part in each.parts(ours if each.operation.exact else ours.float()).items():
        yield name, part.to(ours.dtype, copy=True).contiguous()


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(values, indent=2, sort_keys=True) + "\n").encode())


def _shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))
