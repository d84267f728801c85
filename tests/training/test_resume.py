"""A run that was interrupted and taken up again is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.training.checkpoint import load_latest
from regard.training.keeping import CheckpointKeeper, CheckpointSettings
from regard.training.loss import LossSums
from regard.training.trainer import Listening, StepReport, Trainer
from regard.training.validation import EarlyStopping, Validation, ValidationSettings

MakeTrainer = Callable[..., Trainer]


class Diary(Listening):
    """What happened in each step: which pairs, at what rate, with what loss."""

    def __init__(self, pairs: list[tuple[int, ...]]) -> None:
        self.pairs = pairs
        self.entries: dict[int, tuple[Any, ...]] = {}

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        pairs = tuple(self.pairs)
        self.pairs.clear()
        self.entries[report.step] = (pairs, report.rate, report.loss, report.nll, report.gradient_norm)


@pytest.fixture
def sitting(
    make_trainer: MakeTrainer, dataset: PairDataset, make_model: Callable[..., nn.Module]
) -> Callable[..., tuple[Trainer, Diary]]:
    """Train in `folder` until `until`; another sitting begins with other weights and another random state."""

    def sit(
        folder: Path, until: int | None = None, steps: int = 20, seed: int = 0, **settings: Any
    ) -> tuple[Trainer, Diary]:
        pairs: list[tuple[int, ...]] = []
        inner = make_trainer(**settings).objective

        def objective(model: nn.Module, batch: Batch) -> LossSums:
            if model.training:
                pairs.append(batch.indices)
            return inner(model, batch)

        class Pause(Listening):
            def on_step(self, trainer: Trainer, report: StepReport) -> None:
                if report.step == until:
                    trainer.stop("pause")

        diary = Diary(pairs)
        listeners = [
            diary,
            Validation(ValidationSettings(every=5), Batches(dataset, BatchSettings(tokens=100))),
            EarlyStopping("loss", patience=50),
            Pause(),
            CheckpointKeeper(folder, CheckpointSettings(keep_last=100), "loss"),
        ]
        trainer = make_trainer(
            listeners, objective=objective, model=make_model(0.3, seed=seed), steps=steps, **settings
        )
        torch.manual_seed(seed)
        found = load_latest(folder)
        if found:
            trainer.resume(found[1], str(found[0]))
        trainer.train()
        return trainer, diary

    return sit


def everything(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.checkpoint()
    return {f"model.{name}": tensor for name, tensor in state.model.items()} | state.optimizer


OPTIONS: list[dict[str, Any]] = [
    {"accumulate": 1},
    {"accumulate": 3},
    {"r_drop": 3.0},
    {"ema": 0.8},
    {"optimizer": {"kind": "muon", "weight_decay": 0.1}},
    {"accumulate": 3, "r_drop": 3.0, "ema": 0.8, "optimizer": {"kind": "muon"}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pauses", [[7], [11], [1, 4, 19]], ids=str)
def test_twenty_steps_in_one_sitting_or_in_several(
    tmp_path: Path,
    sitting: Callable[..., tuple[Trainer, Diary]],
    batches: Batches,
    options: dict[str, Any],
    pauses: list[int],
) -> None:
    """Pauses in the middle of an epoch, in the second epoch, after a window over an epoch's end; dropout 0.3."""
    straight, diary = sitting(tmp_path / "straight", **options)
    entries: dict[int, tuple[Any, ...]] = {}
    for seed, until in enumerate([*pauses, None], start=1):
        trainer, part = sitting(tmp_path / "parts", until=until, seed=seed if entries else 0, **options)
        entries |= part.entries
    assert entries == diary.entries
    assert sorted(entries) == list(range(1, 21))
    assert len({loss for _, _, loss, *_ in entries.values()}) == 20
    expected, found = everything(straight), everything(trainer)
    assert expected.keys() == found.keys()
    assert any(name.startswith("exp_avg_sq.") for name in expected)
    kinds = {name.partition(".")[0] for name in expected}
    assert ("average" in kinds, "momentum" in kinds) == ("ema" in options, "optimizer" in options)
    assert "random.cpu" in expected
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    for one, other in zip(straight.listeners, trainer.listeners, strict=True):
        assert one.state() == other.state()
    before, after = (vars(run.progress) | {"seconds": 0} for run in (straight, trainer))
    assert before == after
    assert after["epoch"] * batches.count(0) + after["batch"] == 20 * options.get("accumulate", 1)


def test_the_pauses_are_where_they_should_be(batches: Batches) -> None:
    """After 7 steps the run is in the middle of epoch 0, after 11 in epoch 1; the 4th window of 3 lies in both."""
    assert [batches.count(epoch) for epoch in range(7)] == [10] * 7
    assert 3 * 3 < 10 < 3 * 4


def test_a_longer_run_goes_on_from_a_finished_one(
    tmp_path: Path, sitting: Callable[..., tuple[Trainer, Diary]]
) -> None:
    straight, diary = sitting(tmp_path / "straight", steps=15)
    sitting(tmp_path / "parts", steps=10)
    longer, part = sitting(tmp_path / "parts", steps=15, seed=1)
    assert sorted(part.entries) == [11, 12, 13, 14, 15]
    for step, entry in part.entries.items():
        assert entry == diary.entries[step]
    expected, found = everything(straight), everything(longer)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path, sitting: Callable[..., tuple[Trainer, Diary]]) -> None:
    sitting(tmp_path, steps=4)
    trainer, diary = sitting(tmp_path, steps=4, seed=1)
    assert diary.entries == {}
    assert trainer.progress.step == 4


def test_another_model_cannot_go_on(
    tmp_path: Path,
    sitting: Callable[..., tuple[Trainer, Diary]],
    make_trainer: MakeTrainer,
    make_model: Callable[..., nn.Module],
) -> None:
    sitting(tmp_path, steps=2)
    found = load_latest(tmp_path)
    assert found
    with pytest.raises(UserError, match=r"step-2: the weights do not fit the settings; missing: "):
        make_trainer(model=make_model(tie="none")).resume(found[1], str(found[0]))


def test_every_file_is_plain_data(tmp_path: Path, sitting: Callable[..., tuple[Trainer, Diary]]) -> None:
    """Tensors as safetensors, the rest as JSON and text: nothing needs unpickling."""
    sitting(tmp_path, steps=2)
    for path in sorted(tmp_path.rglob("*")):
        if path.suffix == ".safetensors":
            assert load_file(path)
        elif path.suffix == ".json":
            assert json.loads(path.read_text(encoding="utf-8"))["version"] == 1
        elif path.is_file():
            assert path.name == "SHA256SUMS"
    assert sorted(path.name for path in (tmp_path / "step-2").iterdir()) == [
        "SHA256SUMS",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
