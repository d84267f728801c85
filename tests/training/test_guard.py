"""Training that has diverged is stopped, and the place where it began is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.data.batches import Batch, Batches
from regard.model.transformer import EncoderDecoder
from regard.training.checkpoint import load_latest, save_checkpoint
from regard.training.guard import DivergenceError, GuardSettings, LossWatch, Recovery
from regard.training.loss import LossSums
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


class BadBackward(torch.autograd.Function):
    """The identity, with a gradient that is no number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * math.nan


def diverge(trainer: Trainer) -> DivergenceError:
    with pytest.raises(DivergenceError) as caught:
        trainer.train()
    return caught.value


def state(trainer: Trainer) -> dict[str, Tensor]:
    found = trainer.checkpoint()
    return {name: tensor.clone() for name, tensor in (found.model | found.optimizer).items()}


def at_step(trainer: Trainer, step: int, change: Callable[[], object]) -> dict[str, Tensor]:
    """Before this step, `change` something; returns the state of the step before."""
    before: dict[str, Tensor] = {}

    class Listener(Listening):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == step - 1:
                before.update(state(trainer))
                change()

    trainer.listeners.append(Listener())
    return before


def module(trainer: Trainer, name: str) -> nn.Module:
    return trainer.model.get_submodule(name)


def return_bad(bad: float) -> Callable[..., Tensor]:
    """A hook that makes one value of a module's output bad."""

    def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        output = output.clone()
        output.view(-1)[0] = bad
        return output

    return hook


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("source_embedding", "source_embedding"),
        ("encoder.0.self_attention.in_projection", "encoder.0.self_attention.in_projection (layer 1 of the encoder)"),
        ("decoder.0.feed_forward.expand", "decoder.0.feed_forward.expand (layer 1 of the decoder)"),
        ("decoder_norm", "decoder_norm"),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_module_of_the_first_bad_value_is_named(
    make_trainer: MakeTrainer, name: str, spoken: str, bad: float, dropout: float
) -> None:
    trainer = make_trainer(dropout=dropout)
    before = at_step(trainer, 4, lambda: module(trainer, name).register_forward_hook(return_bad(bad)))
    error = diverge(trainer)
    assert error.step == error.since == 4
    assert error.place == f"the output of {spoken} ({bad})"
    assert f"the gradient's norm nan; the first value that is not finite is {error.place}; the weights" in str(error)
    assert trainer.progress.step == 3
    after = state(trainer)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), "nothing has changed, nor has fate"
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert all(not each._backward_hooks and not each._forward_pre_hooks for each in trainer.model.modules())


def test_a_bad_weight_is_named(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()

    def spoil() -> None:
        with torch.no_grad():
            trainer.model.get_parameter("encoder.0.feed_forward.contract.weight")[3, 5] = math.inf

    at_step(trainer, 3, spoil)
    place = "the weight encoder.0.feed_forward.contract.weight (layer 1 of the encoder) (inf)"
    assert diverge(trainer).place == place


def test_a_bad_value_between_modules_is_named_by_the_module_that_reads_it(make_trainer: MakeTrainer) -> None:
    """Attention over the memory is no call of a module: its heads are what the output projection reads."""
    trainer = make_trainer()
    model = trainer.model
    assert isinstance(model, EncoderDecoder)

    def spoil() -> None:
        attention = model.decoder[0].get_submodule("memory_attention")
        attend = attention._attend
        attention._attend = lambda query, *rest: attend(query * math.nan, *rest)

    at_step(trainer, 2, spoil)
    expected = "the input of decoder.0.memory_attention.out_projection (layer 1 of the decoder) (nan)"
    assert diverge(trainer).place == expected


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("decoder_norm", "the gradient of the input of decoder_norm (nan)"),
        (
            "encoder.0.feed_forward.expand",
            "the gradient of the input of encoder.0.feed_forward.expand (layer 1 of the encoder) (nan)",
        ),
    ],
)
def test_the_module_of_the_first_bad_gradient_is_named(make_trainer: MakeTrainer, name: str, place: str) -> None:
    """All forward values are finite; the module that gives back a bad gradient is named, not that which receives it."""
    trainer = make_trainer(dropout=0.3)

    def spoil() -> None:
        spoiled = module(trainer, name)
        inner = spoiled.forward
        spoiled.forward = lambda x: inner(BadBackward.apply(x))

    before = at_step(trainer, 4, spoil)
    error = diverge(trainer)
    assert (error.step, error.place) == (4, place)
    assert "the gradient's norm nan" in error.what
    assert "the loss is nan" not in error.what
    after = state(trainer)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_bad_gradient_of_a_weight_is_named(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    weight = trainer.model.get_parameter("encoder.0.feed_forward.expand.bias")
    at_step(trainer, 2, lambda: weight.register_hook(lambda gradient: gradient * math.inf))
    place = "the gradient of the weight encoder.0.feed_forward.expand.bias (layer 1 of the encoder) "
    assert diverge(trainer).place.startswith(place)


def test_a_bad_loss_of_finite_values_is_named(make_trainer: MakeTrainer) -> None:
    inner = make_trainer().objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        return LossSums(sums.loss * math.inf, sums.nll, sums.tokens)

    assert diverge(make_trainer(objective=objective)).place == "the loss (inf)"


def test_the_replay_has_the_batches_and_the_dropout_of_the_step(make_trainer: MakeTrainer) -> None:
    """A value that is bad in one batch only, under one draw of dropout only, is found all the same."""
    seen: list[tuple[tuple[int, ...], float]] = []
    inner = make_trainer().objective

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        seen.append((batch.indices, float(sums.nll)))
        bad = len(seen) == 8 or (len(seen) > 8 and seen[-1] == seen[7])
        return LossSums(sums.loss * math.nan, sums.nll, sums.tokens) if bad else sums

    error = diverge(make_trainer(objective=objective, dropout=0.3, accumulate=3))
    assert (error.step, error.place) == (3, "the loss (nan)")
    assert seen[9:] == seen[6:8]


def test_the_replay_has_the_dropout_of_replicas_too(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is read by a thread of its own, with random numbers of its own."""
    monkeypatch.setattr("regard.training.replicas.FEWEST_TOKENS", 4)
    seen: list[tuple[tuple[int, ...], float]] = []
    inner, bad = make_trainer().objective, False

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        sums = inner(model, batch)
        seen.append((batch.indices, float(sums.nll)))
        return LossSums(sums.loss * math.nan, sums.nll, sums.tokens) if bad else sums

    def spoil() -> None:
        nonlocal bad
        bad = True
        seen.clear()

    trainer = make_trainer(objective=objective, dropout=0.3, replicas=2)
    at_step(trainer, 3, spoil)
    assert diverge(trainer).place == "the loss (nan)"
    assert len(seen) == 3
    assert seen[2] in seen[:2]


def test_what_does_not_come_again_is_said(make_trainer: MakeTrainer) -> None:
    inner, calls = make_trainer().objective, 0

    def objective(model: nn.Module, batch: Batch) -> LossSums:
        nonlocal calls
        calls += 1
        sums = inner(model, batch)
        return LossSums(sums.loss * (math.nan if calls == 3 else 1), sums.nll, sums.tokens)

    error = diverge(make_trainer(objective=objective))
    assert (error.step, error.place) == (3, "the loss")
    assert "computed once more, all was finite" in error.what


def feed(losses: Iterable[float], **settings: Any) -> tuple[int, int] | None:
    """When the losses count as exploded, and since when."""
    watch = LossWatch(GuardSettings.model_validate(settings))
    try:
        see(watch, losses)
    except DivergenceError as error:
        return error.step, error.since
    return None


def see(watch: LossWatch, losses: Iterable[float], start: int = 1) -> None:
    for step, loss in enumerate(losses, start):
        watch.see(step, loss)


RANDOM = np.random.default_rng(5)


def falling(start: float, end: float, steps: int, noise: float) -> list[float]:
    """A loss that falls quickly at first, with noise."""
    curve = end + (start - end) * np.exp(-np.arange(steps) / (steps / 6))
    return (curve + RANDOM.normal(0, noise, steps)).tolist()


@pytest.mark.parametrize(
    "losses",
    [
        falling(9.2, 2.8, 3000, 0.3),
        falling(4.2, 1.2, 2000, 0.05),
        falling(0.7, 0.01, 1500, 0.4),
        falling(2.3, 0.0, 800, 0.2),
        [2.0] * 500,
    ],
    ids=["translation", "characters", "two labels", "ten labels", "nothing learned"],
)
def test_a_healthy_loss_is_left_alone(losses: list[float]) -> None:
    assert feed(losses) is None
    spikes = [loss + 50 * (step % 37 == 0) + 1e6 * (step == 700) for step, loss in enumerate(losses)]
    assert feed(spikes) is None, "spikes are noise"
    burst = [loss + 4 * (400 <= step < 445) for step, loss in enumerate(losses)]
    assert feed(burst) is None, "45 bad steps that pass are noise"
    start = [20 * math.exp(-step / 5) + RANDOM.exponential(3) * (step < 60) for step in range(len(losses))]
    assert feed([loss + more for loss, more in zip(losses, start, strict=True)]) is None, "a wild start is noise"


@pytest.mark.parametrize("after", [7.0, 30.0])
def test_a_loss_that_stays_high_has_exploded(after: float) -> None:
    """Also where it only falls back to what it was in the beginning: seven nats are a unigram's."""
    good = falling(9.2, 3.0, 1000, 0.3)
    found = feed([*good, *[after] * 300])
    assert found is not None
    step, since = found
    assert 1050 <= step <= 1053
    assert 990 <= since <= 1001


def test_five_losses_in_a_row_far_above_the_first_have_exploded_at_once() -> None:
    """Above four times the first one, or 40 nats; also in the first steps, before there is a median."""
    assert feed([9.0, 8.0] + [1e6] * 4 + [8.0, 1e6] * 40) is None
    assert feed([9.0, 8.0] + [41.0] * 5) == (7, 2)
    assert feed([9.0, 8.0, 9.5, 12.0, 30.0] + [41.0] * 5) == (10, 3), "from the last one that was no worse than a guess"
    assert feed([9.0, 8.0] + [39.0] * 50) is None
    assert feed([30.0, 29.0] + [119.0] * 50) is None
    assert feed([30.0, 29.0] + [121.0] * 5) == (7, 2)
    good = falling(9.2, 3.0, 1000, 0.3)
    found = feed([*good, *[1e30] * 300])
    assert found is not None
    assert found == (1005, 1000)
    assert feed([9.0] + [1e6] * 90, rise=None) is None


def test_a_slow_rise_is_dated_to_where_it_began() -> None:
    good = falling(9.0, 3.0, 1000, 0.1)
    found = feed([*good, *[3.0 + 0.01 * k for k in range(1000)]])
    assert found is not None
    step, since = found
    assert 1250 < step < 1300
    assert 1080 < since < 1140, "when it had risen by about half of what it may"


def test_what_it_takes_depends_on_what_was_learned() -> None:
    """From 9 to 3: more than 6 nats. From 2.3 to 2.1: more than 3.1. Half a nat never, unless asked for."""
    assert feed([9.0] * 100 + [3.0] * 200 + [5.9] * 200) is None
    assert feed([9.0] * 100 + [3.0] * 200 + [6.1] * 200) is not None
    assert feed([2.3] * 100 + [2.1] * 200 + [3.0] * 200) is None
    assert feed([2.3] * 100 + [2.1] * 200 + [3.2] * 200) is not None
    assert feed([2.3] * 100 + [2.1] * 200 + [2.7] * 200, rise=0.5) is not None
    assert feed([2.3] * 100 + [2.1] * 200 + [1e9] * 200, rise=None) is None


def test_the_watch_goes_on_where_it_was() -> None:
    losses = [*falling(9.0, 3.0, 500, 0.3), *[8.0] * 300]
    whole = feed(losses)
    assert whole is not None
    watch = LossWatch(GuardSettings())
    see(watch, losses[:530])
    other = LossWatch(GuardSettings())
    other.load_state(watch.state())
    with pytest.raises(DivergenceError) as caught:
        see(other, losses[530:], start=531)
    assert (caught.value.step, caught.value.since) == whole
    watch = LossWatch(GuardSettings())
    see(watch, [9.0, 50.0, 50.0, 50.0])
    other = LossWatch(GuardSettings())
    other.load_state(watch.state())
    with pytest.raises(DivergenceError) as caught:
        see(other, [50.0, 50.0], start=5)
    assert caught.value.step == 6


def test_a_run_whose_loss_explodes_is_stopped(make_trainer: MakeTrainer, batches: Batches) -> None:
    """Finite all the way; the step that is not taken leaves the weights as they were."""
    trainer = make_trainer(steps=200, guard={"window": 10, "rise": 0.5})

    def spoil() -> None:
        with torch.no_grad():
            trainer.model.get_parameter("decoder.0.feed_forward_residual.norm.weight").mul_(50)

    at_step(trainer, 41, spoil)
    error = diverge(trainer)
    assert error.place == "the loss"
    assert 45 <= error.step <= 48
    assert 38 <= error.since <= 41
    assert "half of the last 10 steps" in error.what
    assert trainer.progress.step == error.step - 1
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trainer.checkpoint().model.values())


def test_going_back_changes_one_thing_at_a_time() -> None:
    first = Recovery().next(40, "lower-rate", half_precision=True)
    assert first == Recovery(attempts=1, rate=0.5, full_precision=False, step=40)
    assert first.next(80, "lower-rate", half_precision=True) == Recovery(attempts=2, rate=0.25, step=80)
    whole = Recovery().next(40, "full-precision", half_precision=True)
    assert whole == Recovery(attempts=1, rate=1.0, full_precision=True, step=40)
    assert whole.next(40, "full-precision", half_precision=True) == Recovery(2, 0.5, full_precision=True, step=40)
    assert Recovery().next(40, "full-precision", half_precision=False) == Recovery(attempts=1, rate=0.5, step=40)
    assert (str(first), str(whole)) == ("at 0.5 of the rate", "in float32")
    assert str(whole.next(40, "lower-rate", half_precision=True)) == "in float32 and at 0.5 of the rate"


def test_the_rate_is_multiplied_and_float32_wins(make_trainer: MakeTrainer, batches: Batches) -> None:
    window = [next(iter(batches.epoch(0)))]
    plain, lower = make_trainer(), make_trainer()
    lower.recover(Recovery(2, 0.25))
    one, other = plain.step(window), lower.step(window)
    assert other.rate == one.rate / 4
    for precision in ("bfloat16", "float16"):
        exact, half = make_trainer(), make_trainer(precision=precision)
        half.recover(Recovery(1, full_precision=True))
        assert half.step(window).loss == exact.step(window).loss


def test_nothing_that_is_not_finite_is_saved(make_trainer: MakeTrainer, folder: Any) -> None:
    trainer = make_trainer(steps=3)
    trainer.train()
    save_checkpoint(folder, 3, trainer.checkpoint())
    checkpoint = trainer.checkpoint()
    for tensors in (checkpoint.model, checkpoint.optimizer):
        name = next(
            name for name in tensors if name.endswith("encoder.0.feed_forward.expand.weight") and tensors[name].dim()
        )
        kept = tensors[name].clone()
        tensors[name][0, 0] = math.nan
        with pytest.raises(DivergenceError, match=rf"step 4: {name} holds nan after this step; nothing was saved"):
            save_checkpoint(folder, 4, checkpoint)
        tensors[name].copy_(kept)
    found = load_latest(folder)
    assert found is not None
    assert [path.name for path in folder.iterdir()] == [found[0].name] == ["step-3"]
