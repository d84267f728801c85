"""Checkpoints survive kills, full disks and damage, or say so."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import JobError, UserError
from regard.training import checkpoint as module
from regard.training.checkpoint import (
    Checkpoint,
    amend,
    average,
    checkpoints,
    load_checkpoint,
    load_latest,
    prune,
    save_checkpoint,
)

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"]


def holding(number: int) -> Checkpoint:
    """A checkpoint whose every value tells its number."""
    tensors = {"a": torch.full((3, 2), float(number)), "b": torch.tensor(float(number))}
    moments: dict[str, Tensor] = {f"exp_avg.{name}": tensor + 0.5 for name, tensor in tensors.items()}
    return Checkpoint(tensors, moments | {"random.cpu": torch.get_rng_state()}, {"progress": {"step": number}})


def number_of(checkpoint: Checkpoint) -> int:
    step: int = checkpoint.state["progress"]["step"]
    assert torch.equal(checkpoint.model["a"], torch.full((3, 2), float(step)))
    assert torch.equal(checkpoint.optimizer["exp_avg.a"], torch.full((3, 2), step + 0.5))
    return step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def filled(folder: Path) -> Path:
    for number in (1, 2, 3):
        save_checkpoint(folder, number, holding(number))
    return folder


def newest(folder: Path) -> int:
    found = load_latest(folder)
    assert found
    path, checkpoint = found
    assert path == folder / f"step-{number_of(checkpoint)}"
    return number_of(checkpoint)


def test_what_is_saved_is_loaded(filled: Path) -> None:
    assert list(checkpoints(filled)) == [1, 2, 3]
    assert [number_of(load_checkpoint(path)) for path in checkpoints(filled).values()] == [1, 2, 3]
    assert newest(filled) == 3
    assert names(filled) == ["step-1", "step-2", "step-3"]


def test_no_checkpoints_are_no_error(folder: Path) -> None:
    assert load_latest(folder) is None
    folder.mkdir()
    (folder / ".step-4.partial").mkdir()
    (folder / "notes").mkdir()
    assert load_latest(folder) is None


def test_steps_are_ordered_as_numbers(folder: Path) -> None:
    for number in (100, 20, 3):
        save_checkpoint(folder, number, holding(number))
    assert list(checkpoints(folder)) == [3, 20, 100]


def test_a_checkpoint_can_be_written_again(filled: Path) -> None:
    (filled / "step-3" / FILES[0]).write_bytes(b"")
    save_checkpoint(filled, 3, holding(3))
    assert newest(filled) == 3
    assert names(filled) == ["step-1", "step-2", "step-3"]


def test_the_checksums_are_those_of_the_standard_tool(filled: Path) -> None:
    lines = (filled / "step-1" / "SHA256SUMS").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    found = dict(reversed(line.split("  ")) for line in lines)
    assert found == {name: hashlib.sha256((filled / "step-1" / name).read_bytes()).hexdigest() for name in FILES[:3]}


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes, place: float = 0.5) -> bytes:
    position = min(int(len(data) * place), len(data) - 1)
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "half": half,
    "empty": lambda data: b"",
    "missing": lambda data: None,
    "flipped": flipped,
    "longer": lambda data: b"x" + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_one_is_passed_over_with_a_warning(
    filled: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    path = filled / "step-3" / name
    data = DAMAGES[damage](path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="regard"):
        assert newest(filled) == 2
    (warning,) = caplog.messages
    assert str(filled / "step-3") in warning
    assert "going back to the checkpoint before it" in warning


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_wherever_it_is(filled: Path, name: str) -> None:
    """Also in state.json, where a flipped digit would be another step or another rate."""
    path = filled / "step-3" / name
    whole = path.read_bytes()
    for place in range(0, 101, 4):
        path.write_bytes(flipped(whole, place / 100))
        with pytest.raises(UserError, match="step-3"):
            load_checkpoint(filled / "step-3")
    path.write_bytes(whole)
    assert newest(filled) == 3


def test_several_damaged_ones_are_passed_over(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    (filled / "step-3" / FILES[0]).write_bytes(b"")
    shutil.rmtree(filled / "step-2")
    (filled / "step-2").touch()
    assert newest(filled) == 1
    assert len(caplog.messages) == 2


def test_only_damaged_ones_are_an_error_and_no_new_beginning(filled: Path) -> None:
    for number in (1, 2, 3):
        (filled / f"step-{number}" / FILES[0]).write_bytes(b"")
    with pytest.raises(UserError, match="none of its checkpoints can be read; move it away to begin anew"):
        load_latest(filled)
    assert names(filled) == ["step-1", "step-2", "step-3"]


def test_an_unknown_format_version_is_named(filled: Path) -> None:
    path = filled / "step-3" / "state.json"
    state = json.loads(path.read_text(encoding="utf-8")) | {"version": 2}
    path.write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(UserError, match="has format version 2; this release reads 1"):
        load_checkpoint(filled / "step-3")


def test_a_planted_pickle_with_right_checksums_runs_nothing(filled: Path, tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "created",)

    path = filled / "step-3" / "model.safetensors"
    path.write_bytes(pickle.dumps(Planted()))
    sums = [f"{hashlib.sha256((path.parent / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES[:3]]
    (path.parent / "SHA256SUMS").write_text("".join(sums), encoding="utf-8", newline="\n")
    with pytest.raises(UserError, match="pickle checkpoints are not read"):
        load_checkpoint(path.parent)
    assert not (tmp_path / "created").exists()


def test_an_amended_checkpoint_has_the_new_state_and_all_else(filled: Path) -> None:
    found = load_latest(filled)
    assert found is not None
    path = found[0]
    before = load_checkpoint(path)
    amend(path, {"recovery": {"rate": 0.5}})
    after = load_checkpoint(path)
    assert after.state == before.state | {"recovery": {"rate": 0.5}}
    assert number_of(after) == number_of(before)
    assert sorted(each.name for each in path.iterdir()) == sorted(FILES)
    for line in (path / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((path / name).read_bytes()).hexdigest() == digest
    assert len((path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_while_it_is_amended_leaves_it_whole(filled: Path, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_latest(filled)
    assert found is not None
    path = found[0]
    before = load_checkpoint(path).state
    write, done = module.atomic_write, 0

    @contextmanager
    def killed(file: Path) -> Iterator[Any]:
        nonlocal done
        if done == writes:
            raise KeyboardInterrupt
        done += 1
        with write(file) as stream:
            yield stream

    monkeypatch.setattr(module, "atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        amend(path, {"recovery": {"rate": 0.5}})
    state = load_checkpoint(path).state
    assert state == (before if writes < 2 else before | {"recovery": {"rate": 0.5}})
    monkeypatch.undo()
    amend(path, {"recovery": {"rate": 0.25}})
    assert load_checkpoint(path).state == before | {"recovery": {"rate": 0.25}}


def test_pruning_keeps_what_it_is_told_and_clears_leftovers(filled: Path) -> None:
    for leftover in (".step-2.partial", ".step-1.removed", ".step-9.partial"):
        (filled / leftover).mkdir()
        (filled / leftover / "model.safetensors").touch()
    prune(filled, [3, 1, 77])
    assert names(filled) == ["step-1", "step-3"]
    prune(filled, [3])
    assert names(filled) == ["step-3"]


def test_the_average_is_the_mean_of_the_weights(filled: Path) -> None:
    mean = average([filled / "step-1", filled / "step-2", filled / "step-3"])
    assert set(mean) == {"a", "b"}
    assert torch.equal(mean["a"], torch.full((3, 2), 2.0))
    assert mean["a"].dtype == torch.float32


def test_the_average_does_not_lose_small_differences(folder: Path) -> None:
    """Summed in float32, 1 would vanish beside 2^25."""
    for step, value in enumerate((2.0**25, 1.0, -(2.0**25)), start=1):
        save_checkpoint(folder, step, Checkpoint({"a": torch.tensor([value])}, {"b": torch.zeros(1)}, {}))
    assert average(checkpoints(folder).values())["a"].item() == pytest.approx(1 / 3)


def full_disk(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Work `calls` times; then the disk is full."""
    left = calls

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        return full_disk() if left < 0 else function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("where", "calls"),
    [
        *(("_write_through", n) for n in range(4)),
        *(("os.fsync", n) for n in range(5)),
        ("Path.mkdir", 0),
        ("Path.rename", 0),
    ],
)
def test_a_full_disk_is_a_failed_job_that_leaves_nothing_that_looks_valid(
    filled: Path, monkeypatch: pytest.MonkeyPatch, where: str, calls: int
) -> None:
    owner, _, name = where.rpartition(".")
    target = {"": module, "os": os, "Path": Path}[owner]
    monkeypatch.setattr(target, name, after(calls, getattr(target, name)))
    with pytest.raises(JobError, match=r"step-4: the checkpoint could not be written: No space left.*make room"):
        save_checkpoint(filled, 4, holding(4))
    monkeypatch.undo()
    assert names(filled) == ["step-1", "step-2", "step-3"]
    assert newest(filled) == 3


DEADLY = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}


def killed(action: Callable[[], object], nth: int, before_sync: bool) -> bool:
    """Do `action` in a child that dies at once at its nth deed on the disk; whether it lived that long.

    `before_sync`: the deed is forcing a file to the disk, and the file has reached it by half.
    """
    child = os.fork()
    if child == 0:
        left = nth

        def deed() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        def hook(event: str, _: Iterable[object]) -> None:
            if event in DEADLY and deed():
                os._exit(9)

        def half_written(descriptor: int) -> None:
            if deed():
                file = Path(f"/proc/self/fd/{descriptor}")
                if file.is_file():
                    os.truncate(file, file.stat().st_size // 2)
                os._exit(9)

        try:
            if before_sync:
                os.fsync = half_written
            else:
                sys.addaudithook(hook)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return code == 9


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="kills a forked process by way of /proc")
@pytest.mark.parametrize("before_sync", [False, True], ids=["at each deed", "with half a file"])
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a damaged step again"])
def test_a_kill_at_any_moment_leaves_a_good_checkpoint(
    filled: Path, tmp_path: Path, again: bool, before_sync: bool
) -> None:
    """Every single deed of saving and pruning is once the last one. What has a checkpoint's name is whole."""
    kills = 0
    while True:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(filled, copy)
        if again:
            shutil.copytree(copy / "step-3", copy / "step-4")
            (copy / "step-4" / FILES[0]).write_bytes(b"")

        def save(copy: Path = copy) -> None:
            save_checkpoint(copy, 4, holding(4))
            prune(copy, [3, 4])

        died = killed(save, kills, before_sync)
        assert newest(copy) in (3, 4)
        for number, path in checkpoints(copy).items():
            if not (again and number == 4):
                assert number_of(load_checkpoint(path)) == number
        save()
        assert newest(copy) == 4
        assert names(copy) == ["step-3", "step-4"]
        if not died:
            break
        kills += 1
    assert kills >= (6 if before_sync else 20)
