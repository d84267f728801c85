"""Steps of static shapes give what steps of growing ones give.

There need be no GPU: without graphs the same steps are carried out one by one, over the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from regard.model import attention
from regard.model.transformer import EncoderDecoder
from regard.search import static
from regard.search.engine import Translation
from regard.search.executors import GraphExecutor, TorchExecutor
from regard.search.requests import Request
from regard.search.settings import SamplingSettings
from regard.text.tokenizer import TokenizerPair
from search.static_models import MODELS, Both, assert_alike, build, run, sources

every = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for few tokens, so that a short search outgrows several buckets."""
    monkeypatch.setattr(static, "LEAST", 4)


@every
@pytest.mark.parametrize(("forced", "fused"), [((), False), ((7, 8, 9), True)])
def test_every_step_is_that_of_a_cache_that_grows(
    name: str, forced: tuple[int, ...], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beams widen, change places, narrow; sources leave, come back several times, and outputs outgrow their room."""
    if fused:
        monkeypatch.setattr(attention, "FEW_SCORES", 0)
    both = Both(build(name), sources(5, 2, 9), forced)
    both.step()
    both.reorder([0, 0, 0, 1, 1, 1, 2, 2, 2])
    both.step(2)
    assert both.shape == (4, 4, 16, 16)
    both.reorder([2, 0, 0, 3, 5, 4, 8, 7, 7])
    both.step(3)
    both.reorder([7, 6, 2, 1], [2, 0])
    both.step(8)
    both.reorder([1, 1, 0, 0, 2, 3], [0, 0, 1])
    both.step(4)
    assert both.shape.capacity == 32
    both.reorder([5], [2])
    both.step(2)
    assert both.shape == (1, 1, 16, 32)


@given(
    name=st.sampled_from(sorted(MODELS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    forced=st.integers(0, 2),
    data=st.data(),
)
@examples(max_examples=15)
def test_any_course_of_a_search(name: str, lengths: list[int], forced: int, data: st.DataObject) -> None:
    both = Both(build(name), sources(*lengths), tuple(range(5, 5 + forced)))
    left, width = len(lengths), 1
    for _ in range(data.draw(st.integers(1, 5))):
        both.step(data.draw(st.integers(0, 3)))
        stay = data.draw(st.none() | st.lists(st.integers(0, left - 1), min_size=1, max_size=6))
        kept, wider = range(left) if stay is None else stay, data.draw(st.integers(1, 5))
        rows = [n * width + data.draw(st.integers(0, width - 1)) for n in kept for _ in range(wider)]
        both.reorder(rows, stay)
        left, width = len(kept), wider
    both.step()


def test_a_source_of_nothing_adds_nothing() -> None:
    """Beside others, and where a bucket has places for more sources than there are."""
    both = Both(build("sinusoidal"), [[5, 6, 7], [], [8]])
    both.step(3)
    both.reorder([1, 1], [1])
    both.step(2)


def test_what_is_not_finite_stays_in_its_search() -> None:
    both = Both(build("rotary"), sources(3, 3))
    both.step(2)
    bucket = both.static._bucket
    assert bucket is not None
    with torch.inference_mode():
        for tensor in bucket.cache.held[:4]:
            tensor.fill_(float("nan"))
    assert bool(both.static.step(torch.tensor([4, 5])).isnan().all())
    executor = both.executor
    del both
    again = executor.begin(sources(3, 3), 0, ())
    again.step(torch.tensor([4, 5]))
    assert bool(again.step(torch.tensor([4, 5])).isfinite().all())
    assert again._bucket is bucket


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_more_positions_than_the_model_has_are_refused(name: str) -> None:
    """Room is made for as many as there are, and no more."""
    both = Both(build(name, max_length=6), sources(2))
    both.step(6)
    assert both.shape.capacity == 6
    with pytest.raises(ValueError, match="7 positions are more than the model's max_length of 6"):
        both.static.step(torch.tensor([5]))


def test_distances_have_no_end() -> None:
    Both(build("alibi", max_length=6), sources(2)).step(9)


def test_half_precision_is_the_models() -> None:
    model = deepcopy(build("rotary")).to(torch.bfloat16)
    lines, tokens_R = sources(4, 2), torch.tensor([5, 6])
    with torch.inference_mode():
        decoders = TorchExecutor(model).begin(lines, 0, ()), GraphExecutor(model).begin(lines, 0, ())
        for _ in range(6):
            expected_RV, found_RV = (decoder.step(tokens_R) for decoder in decoders)
            assert found_RV.dtype == torch.bfloat16
            torch.testing.assert_close(found_RV, expected_RV, atol=0.1, rtol=0)


# What a search finds.

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5, "nbest": 5},
    "groups": {"beam": 6, "groups": 3, "nbest": 4},
    "rules": {"beam": 3, "no_repeat": 2, "min_tokens": 3},
    "drawn": {"sampling": SamplingSettings(n=3, seed=1, temperature=0.7)},
    "small batches": {"beam": 4, "batch_tokens": 200},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_searching_finds_the_same(
    way: str, build_model: Callable[..., EncoderDecoder], tokenizers: TokenizerPair
) -> None:
    for positions in ("sinusoidal", "rotary") if way == "beam" else ("sinusoidal",):
        model = build_model(positions=positions)
        expected = run(TorchExecutor(model), tokenizers, **WAYS[way])
        assert len({translation.best.ids for translation in expected}) > 3
        assert_alike(run(GraphExecutor(model), tokenizers, **WAYS[way]), expected)


def test_wishes_are_kept(build_model: Callable[..., EncoderDecoder], tokenizers: TokenizerPair) -> None:
    """Beams that differ in width from source to source, and grow as they go on."""
    model = build_model()
    texts = [Request("the dog", must=["park"]), Request("a ball", prefix="tea "), "men of the park"]
    expected = run(TorchExecutor(model), tokenizers, texts=texts, beam=2)
    assert_alike(run(GraphExecutor(model), tokenizers, texts=texts, beam=2), expected)


def test_threads_share_one(build_model: Callable[..., EncoderDecoder], tokenizers: TokenizerPair) -> None:
    model = build_model()
    executor, options = GraphExecutor(model), {"beam": 3, "batch_tokens": 150}
    expected = run(TorchExecutor(model), tokenizers, **options)
    assert_alike(run(executor, tokenizers, workers=2, **options), expected)
    meeting = Barrier(2)

    def search(_: int) -> list[Translation]:
        meeting.wait()
        return run(executor, tokenizers, **options)

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(search, range(2)):
            assert_alike(found, expected)
