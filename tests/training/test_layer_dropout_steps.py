"""Steps in which layers are left out: what they leave as it is, and that a resumed run leaves out the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.model import adapters
from regard.model.adapters import AdapterSettings
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def model(tokenizers: TokenizerPair) -> Callable[..., EncoderDecoder]:
    def build(layer_dropout: float) -> EncoderDecoder:
        torch.manual_seed(0)
        size = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
        chosen = ModelSettings.model_validate(size | {"dropout": 0.1, "layer_dropout": layer_dropout})
        return EncoderDecoder(chosen, tokenizers.target.size, tokenizers.target.size)

    return build


class States(Listening):
    """The whole state after each step."""

    def __init__(self) -> None:
        self.found: list[dict[str, Tensor]] = []
        self.norms: list[float] = []

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        state = trainer.checkpoint()
        self.found.append({name: tensor.clone() for name, tensor in (state.model | state.optimizer).items()})
        self.norms.append(report.gradient_norm)


def test_a_layer_that_is_left_out_stays_as_it_is(
    make_trainer: MakeTrainer, model: Callable[..., EncoderDecoder]
) -> None:
    """Its weights do not decay, its moments neither, its steps are not counted; and the others do learn."""
    states = States()
    optimizer = {"weight_decay": 0.1}
    make_trainer([states], model=model(0.5), steps=8, clip_norm=1.0, optimizer=optimizer).train()
    name = "decoder.1.feed_forward.expand.weight"
    steps = [int(state.get(f"step.{name}", torch.tensor(0))) for state in states.found]
    assert 0 < steps[-1] < 8
    assert int(states.found[-1]["step.output"]) == 8
    for before, after, now, then in zip(states.found, states.found[1:], steps, steps[1:], strict=False):
        kinds = (name, *(f"{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq") if now))
        for each in kinds:
            assert torch.equal(before[each], after[each]) == (now == then), each


def test_a_resumed_run_leaves_out_the_same_layers(
    make_trainer: MakeTrainer, model: Callable[..., EncoderDecoder], tmp_path: Path
) -> None:
    """Stopped so early that some weights have no moments yet, and taken up by a trainer that has other ones."""
    straight, resumed = States(), States()
    make_trainer([straight], model=model(0.6), steps=9).train()
    first = make_trainer(model=model(0.6), steps=9)
    first.listeners = [States(), _Stop(2)]
    first.train()
    saved = first.checkpoint()
    assert {f"exp_avg.{name}" for name in saved.model} - saved.optimizer.keys()
    path = save_checkpoint(tmp_path, 2, saved)
    second = make_trainer(model=model(0.6), steps=9)
    second.listeners = [States(), _Stop(7)]
    second.train()
    second.stop_reason = None
    second.listeners = [resumed, _Stop(None)]
    second.resume(load_checkpoint(path), "path")
    second.train()
    assert len(resumed.found) == 7
    for expected, found in zip(straight.found[2:], resumed.found, strict=True):
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_step_may_leave_out_all_that_learns(make_trainer: MakeTrainer, model: Callable[..., EncoderDecoder]) -> None:
    adapted = model(0.9)
    adapters.apply(adapted, AdapterSettings(rank=2))
    states = States()
    make_trainer([states], model=adapted, steps=4).train()
    assert states.norms[0] == 0.0
    assert max(states.norms) > 0.0


class _Stop(Listening):
    def __init__(self, after: int | None) -> None:
        self.after = after

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step == self.after:
            trainer.stop("enough")
