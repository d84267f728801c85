"""Muon: against the published algorithm said plainly, and against torch's own; which weights it is for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.model.adapters import AdapterSettings, apply
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder
from regard.training.optimizers import OPTIMIZERS, Muon, OptimizerSettings, muon, orthogonal
from regard.training.trainer import Listening, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]
MUON = OptimizerSettings(kind="muon")


def settings(**values: object) -> ModelSettings:
    small = {"d_model": 16, "d_ff": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return ModelSettings.parse({**small, **values}, "test")


def published(matrix: Tensor) -> Tensor:
    """Five steps of a X + b (X X^T) X + c (X X^T)^2 X, in float64."""
    x = matrix.double() / matrix.double().norm()
    if len(x) > len(x.T):
        return published(matrix.T).T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
    return x


def through(value: float) -> float:
    """A singular value after five steps."""
    return reduce(lambda s, _: 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5, range(5), value)


def test_one_matrix_by_hand() -> None:
    """Of a diagonal matrix each singular value goes through the polynomial by itself: 3/5 and 4/5 at first."""
    assert (through(3 / 5), through(4 / 5)) == pytest.approx((0.7229, 1.1192), abs=1e-4)
    found = orthogonal(torch.diag(torch.tensor([3.0, 4.0]))[None])
    expected = torch.diag(torch.tensor([through(3 / 5), through(4 / 5)]))
    torch.testing.assert_close(found[0].float(), expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (1, 7)])
def test_matrices_become_orthogonal(shape: tuple[int, int]) -> None:
    """About U V^T, each of several matrices by itself; what is nothing stays nothing."""
    torch.manual_seed(0)
    matrices = torch.randn(3, *shape)
    matrices[1] *= 1e-4
    matrices[2] = 0
    found = orthogonal(matrices)
    for before, after in zip(matrices[:2], found[:2], strict=True):
        torch.testing.assert_close(after.double(), published(before), atol=0.05, rtol=0)
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        large = s > 0.05 * s.norm()
        values = torch.diagonal(u.T @ after.float() @ v.T)[large]
        assert bool(((values > 0.6) & (values < 1.3)).all())
    assert not found[2].any()


def random_gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)


def test_it_is_torchs_muon() -> None:
    """Two matrices of one shape, one of another; rates that change; weight decay; a weight without gradient once."""
    ours, theirs = (nn.Sequential(nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    matrices: dict[nn.Parameter, list[slice]] = {
        layer.weight: [slice(None)] for layer in ours if isinstance(layer, nn.Linear)
    }
    own = Muon(matrices, None, OptimizerSettings(kind="muon", weight_decay=0.3, muon_rate=2))
    other = torch.optim.Muon(
        [weight for weight in theirs.parameters() if weight.ndim == 2],
        weight_decay=0.3,
        momentum=0.95,
        nesterov=True,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(1, 15):
        for model, optimizer, factor in ((ours, own, 1), (theirs, other, 2)):
            random_gradients(model, step)
            if step == 7:
                next(model.parameters()).grad = None
            for group in optimizer.param_groups:
                group["lr"] = factor * 0.01 / step
            optimizer.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=2e-3, rtol=0)
    assert torch.equal(ours[0].bias, theirs[0].bias)


def names_of(model: nn.Module, weights: list[nn.Parameter]) -> set[str]:
    return {name for name, weight in model.named_parameters() if any(weight is each for each in weights)}


def test_the_matrices_of_layers_are_muons_and_all_else_is_adams() -> None:
    model = EncoderDecoder(settings(tie="none"), 30, 40)
    first, *others = muon(model, MUON).param_groups
    attention = ["encoder.0.self_attention", "decoder.0.self_attention", "decoder.0.memory_attention"]
    expected = {f"{place}.{map}.weight" for place in attention for map in ("in_projection", "out_projection")}
    expected |= {
        f"{side}.0.feed_forward.{map}.weight" for side in ("encoder", "decoder") for map in ("expand", "contract")
    }
    assert names_of(model, first["params"]) == expected
    rest = [weight for group in others for weight in group["params"]]
    assert names_of(model, rest) == {name for name, _ in model.named_parameters()} - expected
    assert {"output", "source_embedding.weight", "target_embedding.weight"} <= names_of(model, rest)
    encoder = BidirectionalEncoder(settings(), 30, HeadSettings(kind="text", labels=("a", "b")))
    assert not any("head" in name for name in names_of(encoder, muon(encoder, MUON).param_groups[0]["params"]))


@pytest.mark.parametrize("weight_name", ["self_attention.in_projection", "feed_forward.expand"])
def test_maps_below_each_other_in_one_weight_are_matrices_of_their_own(weight_name: str) -> None:
    """Queries, keys and values (fewer of these two); the gate above what it gates."""
    model = CausalDecoder(settings(feed_forward="swiglu", kv_heads=1), 30)
    widths = {"self_attention.in_projection": [16, 8, 8], "feed_forward.expand": [24, 24]}[weight_name]
    weight: Any = model.get_parameter(f"decoder.0.{weight_name}.weight")
    assert len(weight) == sum(widths)
    optimizer = muon(model, MUON)
    random_gradients(model, 0)
    gradient, before = weight.grad.clone(), weight.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    change = before - weight.detach()
    for part, own in zip(change.split(widths), gradient.split(widths), strict=True):
        expected = 0.01 * 0.2 * math.sqrt(max(part.shape)) * published(own)
        torch.testing.assert_close(part.double(), expected, atol=0.1 * expected.abs().max().item(), rtol=0)
    whole = 0.01 * 0.2 * math.sqrt(max(weight.shape)) * published(gradient)
    assert (change - whole).abs().max() > 0.2 * whole.abs().max()


def test_a_change_is_about_as_large_as_adams_and_scales_with_its_rate() -> None:
    changes = {}
    for values in ({"kind": "adamw"}, {"kind": "muon"}, {"kind": "muon", "muon_rate": 3}):
        torch.manual_seed(0)
        model = CausalDecoder(settings(d_model=64, d_ff=128), 30)
        optimizer = OPTIMIZERS[values["kind"]](model, OptimizerSettings.parse(values, "test"))
        weight = model.get_parameter("decoder.0.feed_forward.expand.weight")
        before = weight.detach().clone()
        for step in range(30):
            random_gradients(model, step)
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
            optimizer.step()
            last, before = (weight.detach() - before).square().mean().sqrt().item(), weight.detach().clone()
        changes[str(values)] = last
    adam, plain, fast = changes.values()
    assert 0.5 < plain / adam < 2
    assert fast == pytest.approx(3 * plain, rel=0.02)


def test_adapters_are_matrices_too() -> None:
    model = CausalDecoder(settings(), 30)
    apply(model, AdapterSettings(rank=2))
    optimizer = muon(model, MUON)
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert names_of(model, optimizer.param_groups[0]["params"]) == learning
    assert len(optimizer.param_groups) == 1
    a, b = (
        model.get_parameter(f"decoder.0.self_attention.in_projection.parametrizations.weight.0.blocks.query.{each}")
        for each in "ab"
    )
    a.grad, b.grad = torch.zeros_like(a), torch.randn_like(b)
    before = a.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert torch.equal(a, before)  # as long as B is zero it has no gradient
    torch.testing.assert_close(-b.double(), 0.1 * 0.2 * 4 * published(b.grad), atol=0.005, rtol=0)


def test_a_model_without_such_matrices_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.optimizer\.kind: muon .* none learn here"):
        muon(nn.Linear(3, 3), MUON)
    with pytest.raises(UserError, match=r"kind: input should be 'adamw' or 'muon' \(got 'lion'\)"):
        OptimizerSettings.parse({"kind": "lion"}, "r")
    with pytest.raises(UserError, match=r"muon_rate means nothing to the optimizer adamw"):
        OptimizerSettings.parse({"muon_rate": 2}, "r")


def test_the_schedule_sets_both_rates_and_a_model_learns(make_trainer: MakeTrainer) -> None:
    class Reports(Listening):
        def __init__(self) -> None:
            self.nll: list[float] = []

        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            assert {group["lr"] for group in trainer.optimizer.param_groups} == {report.rate}
            self.nll.append(report.nll)

    reports = Reports()
    trainer = make_trainer([reports], steps=60, optimizer={"kind": "muon"})
    trainer.train()
    assert reports.nll[-1] < reports.nll[0] - 2
    state = trainer.checkpoint().optimizer
    assert "momentum.encoder.0.feed_forward.expand.weight" in state
    assert "exp_avg.encoder.0.feed_forward.expand.bias" in state
    assert not any(name.startswith("exp_avg.") and name.endswith("projection.weight") for name in state)


def test_the_scaled_gradients_of_float16_are_scaled_back_for_both(make_trainer: MakeTrainer) -> None:
    norms = {}
    for precision in ("float32", "float16"):
        trainer = make_trainer(steps=1, precision=precision, optimizer={"kind": "muon"})
        trainer.train()
        assert trainer.progress.skipped == 0
        means = trainer.checkpoint().optimizer
        norms[precision] = [
            math.sqrt(sum(float(mean.square().sum()) for name, mean in means.items() if name.startswith(kind)))
            for kind in ("momentum.", "exp_avg.")
        ]
    assert norms["float16"] == pytest.approx(norms["float32"], rel=0.02)
    assert min(norms["float32"]) > 0


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw")])
def test_the_optimizer_of_a_run_that_goes_on_stays(make_trainer: MakeTrainer, before: str, after: str) -> None:
    first, second = (make_trainer(steps=1, optimizer={"kind": kind}) for kind in (before, after))
    first.train()
    with pytest.raises(UserError, match=rf"^here: learns by {before}; training\.optimizer\.kind cannot change"):
        second.resume(first.checkpoint(), "here")


def test_checkpoints_of_older_releases_are_adams(make_trainer: MakeTrainer) -> None:
    first, second = make_trainer(steps=1), make_trainer(steps=2)
    first.train()
    checkpoint = first.checkpoint()
    del checkpoint.state["optimizer"]
    second.resume(checkpoint, "here")
    assert second.progress.step == 1
