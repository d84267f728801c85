"""Checkpoints: everything a run needs to go on as if it had never stopped.

`checkpoints/step-N/` holds `model.safetensors`, `optimizer.safetensors` (moments, moving averages of the weights where
there are any, and the state of the random numbers),
`state.json` (the rest) and `SHA256SUMS` (`sha256sum -c` reads it too). It is written under another name, forced to the
disk and then renamed, so a directory of this name is complete; older ones are removed only afterwards.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from regard.errors import JobError, UserError
from regard.model import store
from regard.settings import read_json
from regard.text.lines import atomic_write
from regard.training.guard import refuse_not_finite

log = logging.getLogger("regard")

VERSION = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
SUMS = "SHA256SUMS"
_AVERAGE = "average."
_NAME = re.compile(r"step-(\d+)$")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a checkpoint holds."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def averages(self) -> dict[str, Tensor]:
        """The moving averages of weights, by the names of these."""
        return {
            name.removeprefix(_AVERAGE): tensor for name, tensor in self.optimizer.items() if name.startswith(_AVERAGE)
        }


def snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    averages: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """The present state of a run. Tensors are those in use, not copies: save before the next step."""
    weights = dict(store.unwrap(model).named_parameters())
    moments = {
        f"{kind}.{name}": value.detach()
        for name, weight in weights.items()
        for kind, value in optimizer.state.get(weight, {}).items()
    }
    random = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random |= {f"random.cuda.{i}": value for i, value in enumerate(torch.cuda.get_rng_state_all())}
    averages = {f"{_AVERAGE}{name}": tensor for name, tensor in (averages or {}).items()}
    return Checkpoint(store.parameters(model), moments | averages | random, state)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, origin: str) -> None:
    """Put a checkpoint's values back into a model, its optimizer and the random number generators.

    Its moving averages are left to whom they belong to.
    """
    store.assign(model, checkpoint.model, origin)
    tensors = dict(checkpoint.optimizer)
    torch.set_rng_state(tensors.pop("random.cpu"))
    devices = sum(name.startswith("random.cuda.") for name in tensors)
    cuda = [tensors.pop(f"random.cuda.{i}") for i in range(devices)]
    if devices and devices == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
    weights = dict(store.unwrap(model).named_parameters())
    optimizer.state.clear()  # a weight that had no gradient yet has no moments, and gets none from another time
    for name, value in tensors.items():
        if name.startswith(_AVERAGE):
            continue
        kind, _, weight_name = name.partition(".")
        weight = weights[weight_name]
        optimizer.state[weight][kind] = value.to(weight.device)


def save_checkpoint(directory: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write `directory/step-N` as a whole or not at all.

    Raises:
        JobError: the disk is full; or, as `DivergenceError`, a value is not finite.
    """
    refuse_not_finite((checkpoint.model | checkpoint.optimizer).items(), step)
    final = directory / f"step-{step}"
    partial = directory / f".step-{step}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = {
            MODEL: save({name: tensor.cpu().contiguous() for name, tensor in checkpoint.model.items()}),
            OPTIMIZER: save({name: tensor.cpu().contiguous() for name, tensor in checkpoint.optimizer.items()}),
            STATE: _written(checkpoint.state),
        }
        files[SUMS] = b"".join(_sum(name, hashlib.sha256(data).hexdigest()) for name, data in files.items())
        for name, data in files.items():
            _write_through(partial / name, data)
        _sync(partial)
        if final.exists():
            _remove(final)
        partial.rename(final)
        _sync(directory)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise JobError(
            f"{final}: the checkpoint could not be written: {error.strerror or error}; "
            "make room and train again to go on from the last good one"
        ) from None
    return final


def amend(path: Path, changes: dict[str, Any]) -> None:
    """Change some of a checkpoint's state. It is whole at each moment: for a while either state fits the checksums.

    Raises `JobError` when the disk is full.
    """
    state = _written(read_json(path / STATE) | changes)
    new = _sum(STATE, hashlib.sha256(state).hexdigest())
    try:
        before = (path / SUMS).read_bytes().splitlines(keepends=True)
        after = [line for line in before if not line.endswith(f"  {STATE}\n".encode())] + [new]
        for name, data in ((SUMS, b"".join([*before, new])), (STATE, state), (SUMS, b"".join(after))):
            with atomic_write(path / name) as file:
                file.write(data)
    except OSError as error:
        raise JobError(f"{path}: cannot be changed: {error.strerror or error}; make room and train again") from None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, checking every byte; `UserError` when it is incomplete, damaged or of another version."""
    state = read_json(path / STATE)
    if state.get("version") != VERSION:
        raise UserError(f"{path / STATE}: has format version {state.get('version')!r}; this release reads {VERSION}")
    try:
        sums = (path / SUMS).read_bytes().splitlines(keepends=True)
        for name in (MODEL, OPTIMIZER, STATE):
            with (path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _sum(name, digest) not in sums:
                raise UserError(f"{path / name}: is damaged (its checksum differs)")
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return Checkpoint(store.read_tensors(path / MODEL), store.read_tensors(path / OPTIMIZER), state)


def checkpoints(directory: Path) -> dict[int, Path]:
    """The checkpoints in a directory by step, oldest first."""
    found = ((_NAME.match(path.name), path) for path in directory.glob("step-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def load_latest(directory: Path) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that is whole, or None where there is none at all.

    Damaged newer ones are passed over with a warning. `UserError` when all are damaged: to begin anew over what may be
    weeks of work is for the user to decide.
    """
    paths = checkpoints(directory).values()
    for path in reversed(paths):
        try:
            return path, load_checkpoint(path)
        except UserError as error:
            log.warning("%s; going back to the checkpoint before it", error)
    if paths:
        raise UserError(f"{directory}: none of its checkpoints can be read; move it away to begin anew")
    return None


def prune(directory: Path, keep: Iterable[int]) -> None:
    """Remove all checkpoints but those of the steps in `keep`, and what a killed save left behind."""
    kept = set(keep)
    for step, path in checkpoints(directory).items():
        if step not in kept:
            _remove(path)
    for path in directory.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of some checkpoints (section 6.1), summed in float64."""
    sums: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        count += 1
        for name, tensor in load_checkpoint(path).model.items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    return {name: (total / count).float() for name, total in sums.items()}


def _written(state: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **state}, indent=1).encode()


def _sum(name: str, digest: str) -> bytes:
    """The line of `SHA256SUMS` for a file."""
    return f"{digest}  {name}\n".encode()


def _remove(path: Path) -> None:
    """Remove a checkpoint; renamed first, so that a kill in the middle leaves nothing that looks like one."""
    doomed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Force a directory's names to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
