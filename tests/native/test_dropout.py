"""Compiled dropout: which values stay is SplitMix64's word, written here once more with Python's integers."""

from __future__ import annotations

import pytest
import torch

from native.built import libraries
from regard.model import dropout as model
from regard.native import dropout as native


def splitmix64(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_generator_here_is_the_published_one():
    """The first words of the reference implementation for seed 1234567 (Vigna, prng.di.unimi.it/splitmix64.c)."""
    assert [splitmix64(1234567, index) for index in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 31, 32, 33, 1000])
@pytest.mark.parametrize("seed", [0, 1234567, 2**64 - 1])
def test_which_values_stay(loaded, count, seed):
    x = torch.arange(1.0, count + 1)
    dropped = 20_000
    scale = 2**16 / (2**16 - dropped)
    bits = [splitmix64(seed, i // 4) >> 16 * (i % 4) & 0xFFFF for i in range(count)]
    kept = [value * scale if word >= dropped else 0.0 for value, word in zip(x.tolist(), bits, strict=True)]
    torch.testing.assert_close(native.drop(x, seed, dropped), torch.tensor(kept))


def test_what_is_not_finite_is_never_dropped_from_sight(loaded):
    """The guard of training names the step and the place where it arose, not the first where chance lets it through."""
    for bad in (float("nan"), float("inf")):
        assert not native.drop(torch.full((1003,), bad), 5, 60_000).isfinite().any()


def test_threads_and_other_cpus_drop_the_same(loaded, monkeypatch: pytest.MonkeyPatch):
    x = torch.ones(7, 1003)
    one = native.drop(x, 99, 30_000)
    monkeypatch.setattr(native, "PART", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert torch.equal(native.drop(x, 99, 30_000), one)
    monkeypatch.setattr(native, "library", lambda: next(iter(libraries().values())))
    assert torch.equal(native.drop(x, 99, 30_000), one)


def test_the_way_back_drops_the_same_values(loaded):
    torch.manual_seed(3)
    x = torch.randn(12, 40, requires_grad=True)
    y = model.dropout(x.transpose(0, 1), 0.3, training=True)
    assert 0 < (y == 0).sum() < y.numel()
    above = torch.randn(12, 40).transpose(0, 1)
    (gradient,) = torch.autograd.grad(y, x, above)
    scale = 2**16 / (2**16 - round(0.3 * 2**16))
    torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, above * scale).transpose(0, 1))


def test_shares_and_neighbours(loaded):
    """So many are dropped as was asked for, and of two neighbours both as often as chance would have it."""
    dropped = 19_661
    gone = native.drop(torch.ones(2**21), 5, dropped) == 0
    share = dropped / 2**16
    assert gone.float().mean().item() == pytest.approx(share, abs=0.002)
    for distance in (1, 2, 3, 4, 32):
        both = (gone[:-distance] & gone[distance:]).float().mean().item()
        assert both == pytest.approx(share**2, abs=0.002)


def test_a_draw_is_another_each_time_and_is_repeated_with_the_seed():
    x = torch.ones(500)
    torch.manual_seed(0)
    first, second = (model.dropout(x, 0.5, training=True) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(model.dropout(x, 0.5, training=True), first)
