"""Section 5.3: Adam and the learning-rate schedule."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.errors import UserError
from regard.training.optimizers import OptimizerSettings, adam
from regard.training.schedules import ScheduleSettings, learning_rate
from regard.training.trainer import TrainingSettings

PAPER = ScheduleSettings(kind="paper", warmup_steps=4000)


def test_adam_has_the_papers_constants() -> None:
    optimizer = adam(nn.Linear(2, 2), OptimizerSettings())
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
    learned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(parameter.numel() for parameter in learned) == [2, 4]


def test_the_default_schedule_is_the_papers() -> None:
    assert TrainingSettings().schedule == PAPER
    assert TrainingSettings().label_smoothing == 0.1


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 1.746928e-7), (1000, 1.746928e-4), (4000, 6.987712e-4), (16000, 3.493856e-4), (10**5, 1.397542e-4)],
)
def test_equation_3_for_the_base_model(step: int, rate: float) -> None:
    """512^-0.5 min(step^-0.5, step 4000^-1.5), computed with a pocket calculator."""
    assert learning_rate(PAPER, step, 100_000, 512) == pytest.approx(rate, rel=1e-6)


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 10**5), d_model=st.integers(1, 4096))
def test_equation_3_is_its_two_branches(step: int, warmup: int, d_model: int) -> None:
    rate = learning_rate(ScheduleSettings(kind="paper", warmup_steps=warmup), step, 1, d_model)
    branch = step * warmup**-1.5 if step < warmup else step**-0.5
    assert rate == pytest.approx(d_model**-0.5 * branch, rel=1e-9)


def test_the_curve_equals_torchs_own_scheduler_step_by_step() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: 128**-0.5 * min((done + 1) ** -0.5, (done + 1) * 50**-1.5)
    )
    for step in range(1, 200):
        settings = ScheduleSettings(kind="paper", warmup_steps=50)
        assert learning_rate(settings, step, 200, 128) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_inverse_sqrt_is_the_papers_shape_at_a_chosen_peak() -> None:
    peak = 512**-0.5 * 4000**-0.5
    chosen = ScheduleSettings(kind="inverse-sqrt", peak_rate=peak, warmup_steps=4000)
    for step in (1, 17, 3999, 4000, 4001, 90_000):
        assert learning_rate(chosen, step, 9, 7) == pytest.approx(learning_rate(PAPER, step, 9, 512), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "middle", "end"),
    [
        ("inverse-sqrt", math.sqrt(100 / 550), math.sqrt(100 / 999)),
        ("cosine", 0.5, math.sin(math.pi / 1800) ** 2),
        ("linear", 0.5, 1 / 900),
        ("constant", 1, 1),
    ],
)
def test_schedules_rise_to_the_peak_and_fall_their_own_way(kind: str, middle: float, end: float) -> None:
    """Those that fall to zero would be there after the last of 999 steps: it is no step without a rate."""
    settings = ScheduleSettings.model_validate({"kind": kind, "peak_rate": 0.2, "warmup_steps": 100})
    rate = {step: learning_rate(settings, step, 999, 64) for step in range(1, 1000)}
    assert max(rate, key=lambda step: rate[step]) == 100
    for step in (1, 50, 99):
        assert rate[step] == pytest.approx(0.2 * step / 100)
    assert (rate[100], rate[550], rate[999]) == pytest.approx((0.2, 0.2 * middle, 0.2 * end), abs=1e-12)


@given(
    kind=st.sampled_from(["inverse-sqrt", "cosine", "linear", "constant"]),
    warmup=st.integers(1, 500),
    steps=st.integers(1, 300),
    step=st.integers(1, 600),
)
def test_rates_stay_between_zero_and_the_peak_for_any_lengths(kind: str, warmup: int, steps: int, step: int) -> None:
    """And are above zero until the last step."""
    settings = ScheduleSettings.model_validate({"kind": kind, "peak_rate": 0.2, "warmup_steps": warmup})
    rate = learning_rate(settings, step, steps, 8)
    assert 0 <= rate <= 0.2
    assert rate > 0 or step > steps


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_last_rate_is_what_is_fallen_to(kind: str) -> None:
    settings = ScheduleSettings.model_validate({"kind": kind, "peak_rate": 0.2, "warmup_steps": 100, "last": 0.1})
    rates = [learning_rate(settings, step, 999, 64) for step in (100, 550, 999, 1000, 5000)]
    assert rates[:2] == pytest.approx([0.2, 0.2 * (0.1 + 0.9 / 2)])
    assert 0.02 < rates[2] < 0.02 + 0.18 / 800
    assert rates[3:] == pytest.approx([0.02, 0.02])


def test_a_schedule_and_its_peak_must_fit() -> None:
    with pytest.raises(UserError, match="the paper's schedule has no peak_rate"):
        ScheduleSettings.parse({"kind": "paper", "peak_rate": 0.1}, "r")
    with pytest.raises(UserError, match="the schedule cosine needs a peak_rate"):
        ScheduleSettings.parse({"kind": "cosine"}, "r")
