"""Steps of static shapes give what steps of growing ones give, and nothing in them needs the host.

There need be no GPU: without graphs the same steps are carried out one by one, over the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Barrier
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.model import attention
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search import static
from regard.search.capture import WARM_UP, Step
from regard.search.engine import Translation, translate
from regard.search.executors import GraphExecutor, TorchExecutor
from regard.search.requests import Request
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.static import Bucket, Pool, Shape
from regard.text.tokenizer import TokenizerPair

CLOSE = {"atol": 2e-5, "rtol": 1e-5}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"positions": name} for name in POSITIONS},
    "shared heads, normalised": {"kv_heads": 1, "qk_norm": True, "positions": "rotary", "d_key": 6, "d_value": 10},
    "windows": {"spans": ["window", "full"], "window": 3, "positions": "rotary", "window_rotary": {"base": 50.0}},
    "blocks": {"spans": ["blocks"], "window": 1, "block": 4, "global_tokens": 1, "positions": "alibi"},
    "soft caps": {"attention_softcap": 2.0, "output_softcap": 3.0, "output_bias": True, "norm_placement": "both"},
}
every = pytest.mark.parametrize("name", MODELS)
VOCABULARY = 40


@cache
def build(name: str, **changes: Any) -> EncoderDecoder:
    tiny = {"d_model": 16, "d_ff": 24, "heads": 4, "encoder_layers": 1, "decoder_layers": 2, "norm_placement": "pre"}
    torch.manual_seed(0)
    model = EncoderDecoder(ModelSettings.model_validate(tiny | MODELS[name] | changes), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains of 1 and biases of 0 would hide a mistake
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for few tokens, so that a short search outgrows several buckets."""
    monkeypatch.setattr(static, "LEAST", 4)


def sources(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


class Both:
    """A plain decoder and a static one that are told the same, and must say the same."""

    def __init__(self, model: EncoderDecoder, lines: list[list[int]], forced: tuple[int, ...] = ()) -> None:
        self.executor = GraphExecutor(model)
        self.plain = TorchExecutor(model).begin(lines, 0, forced)
        self.static = self.executor.begin(lines, 0, forced)
        self.rows, self.steps = len(lines), 0

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.steps)
            tokens_R = torch.randint(3, VOCABULARY, (self.rows,), generator=generator)
            with torch.inference_mode():
                expected_RV = self.plain.step(tokens_R)
            found_RV = self.static.step(tokens_R)
            assert found_RV.shape == expected_RV.shape == (self.rows, VOCABULARY)
            torch.testing.assert_close(found_RV, expected_RV, **CLOSE)
            self.steps += 1

    def reorder(self, rows: list[int], sources: list[int] | None = None) -> None:
        rows_R, sources_N = torch.tensor(rows), None if sources is None else torch.tensor(sources)
        self.plain.reorder(rows_R, sources_N)
        self.static.reorder(rows_R, sources_N)
        self.rows = len(rows)

    @property
    def shape(self) -> Shape:
        assert self.static._bucket is not None
        return self.static._bucket.shape


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
    model = build("rotary").to(torch.bfloat16)
    build.cache_clear()
    lines, tokens_R = sources(4, 2), torch.tensor([5, 6])
    with torch.inference_mode():
        decoders = TorchExecutor(model).begin(lines, 0, ()), GraphExecutor(model).begin(lines, 0, ())
        for _ in range(6):
            expected_RV, found_RV = (decoder.step(tokens_R) for decoder in decoders)
            assert found_RV.dtype == torch.bfloat16
            torch.testing.assert_close(found_RV, expected_RV, atol=0.1, rtol=0)


# What a search finds.

WORDS = ["the", "dog", "in", "a", "park", "and", "tea", "of", "men", "ball"]
TEXTS = [" ".join((WORDS[n:] + WORDS[:n])[: 1 + (7 * n) % 9]) for n in range(10)]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5, "nbest": 5},
    "groups": {"beam": 6, "groups": 3, "nbest": 4},
    "rules": {"beam": 3, "no_repeat": 2, "min_tokens": 3},
    "drawn": {"sampling": SamplingSettings(n=3, seed=1, temperature=0.7)},
    "small batches": {"beam": 4, "batch_tokens": 200},
}


def run(executor: TorchExecutor | GraphExecutor, tokenizers: TokenizerPair, **options: Any) -> list[Translation]:
    sampling, workers = options.pop("sampling", None), options.pop("workers", 1)
    texts = options.pop("texts", TEXTS)
    settings = SearchSettings.parse({"extra_tokens": 12, **options}, "test")
    return list(translate(executor, tokenizers, texts, settings, sampling=sampling, workers=workers))


def assert_alike(found: list[Translation], expected: list[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [each.ids for each in one.candidates] == [each.ids for each in other.candidates]
        scores = [[each.score for each in some.candidates] for some in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


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


# Buckets, and who has them.


def test_a_bucket_belongs_to_one_search_at_a_time_and_is_used_again() -> None:
    executor = GraphExecutor(build("sinusoidal"))
    tokens_R = torch.tensor([5, 6])

    def begun() -> static.StaticDecoder:
        decoder = executor.begin(sources(3, 2), 0, ())
        decoder.step(tokens_R)
        decoder.step(tokens_R)
        return decoder

    first, second = begun(), begun()
    one, other = first._bucket, second._bucket
    assert one is not other
    assert one is not None
    assert other is not None
    assert one.shape == other.shape
    del second
    assert begun()._bucket is other
    for _ in range(3):
        first.step(tokens_R)
    assert first._bucket is not one  # it has outgrown it
    assert begun()._bucket is one


def test_few_buckets_wait_and_those_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "KEPT", 2)
    model, made = build("sinusoidal"), []

    def counting(step: Step) -> Step:
        made.append(step)
        return step

    pool = Pool(model, counting, room=10**9)
    small, middle, large = (Shape(1, width, 4, 4) for width in (1, 2, 4))
    for shape in (small, middle, large, small):
        pool.give_back(pool.lend(shape))
    assert len(made) == 4  # the small one was given up for the large one
    pool.give_back(pool.lend(large))
    pool.give_back(pool.lend(small))
    assert len(made) == 4
    bucket = pool.lend(large)
    pool = Pool(model, counting, room=bucket.bytes - 1)
    pool.give_back(pool.lend(large))
    pool.give_back(pool.lend(large))
    assert len(made) == 6  # too large to be kept


def test_waiting_buckets_give_way_where_memory_is_short() -> None:
    model, tries = build("sinusoidal"), []

    def short(step: Step) -> Step:
        tries.append(step)
        if len(tries) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step

    pool = Pool(model, short, room=10**9)
    small, large = Shape(1, 1, 4, 4), Shape(1, 4, 4, 4)
    pool.give_back(pool.lend(small))
    assert pool.lend(large).shape == large
    pool.lend(small)
    assert len(tries) == 4


def test_sizes_are_powers_of_two_and_outputs_about_as_long_as_sources() -> None:
    pool = Pool(build("rotary"), lambda step: step, room=0)
    assert pool.shape(5, 3, 9, 2) == (8, 4, 16, 16)
    assert pool.shape(1, 1, 2, 5) == (1, 1, 4, 8)
    assert pool.shape(8, 4, 16, 17) == (8, 4, 16, 32)
    shape = Shape(8, 4, 16, 16)
    assert shape.suits(8, 4, 16)
    assert shape.suits(3, 3, 1)
    for misfit in ((9, 1, 1), (1, 5, 1), (8, 4, 17), (8, 1, 1), (2, 4, 1)):
        assert not shape.suits(*misfit)


# What can be captured.


class OnDeviceOnly(TorchDispatchMode):
    """Fails where a kernel reads a tensor of another device than `meta`, or brings a number to the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for each in torch.utils._pytree.tree_leaves((args, kwargs)):
            assert not isinstance(each, Tensor) or each.device.type == "meta", f"{func} reads from {each.device}"
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number goes to the host"
        return func(*args, **(kwargs or {}))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_step_stays_on_its_device(name: str, dtype: torch.dtype) -> None:
    """The device without memory stands for a GPU: it has no numbers that the host could wait for."""
    model = build(name).to("meta", dtype)
    build.cache_clear()

    def capture(step: Step) -> Step:
        with OnDeviceOnly():
            logits_RV = step()
        assert logits_RV.shape == (8, VOCABULARY)
        assert logits_RV.device.type == "meta"
        return step

    with torch.inference_mode():
        Bucket(model, Shape(2, 4, 8, 16), capture)


def test_the_check_sees_what_it_is_to_see() -> None:
    with OnDeviceOnly():
        x = torch.empty(2, device="meta")
        with pytest.raises(AssertionError, match="reads from cpu"):
            torch.arange(2).to("meta")
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            bool(x.any())


@every
def test_a_step_has_no_branch_that_depends_on_numbers(name: str) -> None:
    """What was traced once computes all later steps."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def capture(step: Step) -> Step:
        with torch.no_grad():
            return make_fx(step)()

    executor = GraphExecutor(build(name), capture)
    both = Both(build(name), sources(5, 2, 9))
    both.static = executor.begin(sources(5, 2, 9), 0, ())
    both.step()
    both.reorder([0, 0, 1, 1, 2, 2])
    both.step(3)
    both.reorder([1, 0, 3, 3, 5, 4])
    both.step(14)


class Recorded:
    """Captures as a GPU does: the tensors of a step must stay where they are, or the replay reads what is gone."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Step) -> Step:
        self.captured += 1
        for _ in range(WARM_UP + 1):
            logits_RV = step()
        tensors = [cell.cell_contents for cell in step.__closure__ or ()]
        addresses = self._addresses(tensors)

        def replay() -> Tensor:
            assert self._addresses(tensors) == addresses
            self.replayed += 1
            return logits_RV.copy_(step())

        return replay

    @staticmethod
    def _addresses(tensors: list[Any]) -> list[int]:
        caches = [each for each in tensors if isinstance(each, static.StaticCache)]
        held = [tensor for each in caches for tensor in (*each.held, each.count_1, *each.layers[0].memory)]
        return [each.data_ptr() for each in (*held, *(each for each in tensors if isinstance(each, Tensor)))]


def test_one_capture_serves_all_steps_of_a_shape(
    build_model: Callable[..., EncoderDecoder], tokenizers: TokenizerPair
) -> None:
    """Warming up leaves nothing behind, and logits that were handed out are not overwritten by the next step."""
    model, recorded = build_model(), Recorded()
    executor = GraphExecutor(model, recorded)
    expected = run(TorchExecutor(model), tokenizers, beam=3)
    assert_alike(run(executor, tokenizers, beam=3), expected)
    captured, replayed = recorded.captured, recorded.replayed
    assert 0 < captured < 12
    assert_alike(run(executor, tokenizers, beam=3), expected)
    assert (recorded.captured, recorded.replayed) == (captured, 2 * replayed)
    decoder = executor.begin(sources(3), 0, ())
    handed_out = [decoder.step(torch.tensor([token])) for token in (5, 6, 7)]
    kept = [each.clone() for each in handed_out]
    decoder.step(torch.tensor([8]))
    assert all(torch.equal(one, other) for one, other in zip(handed_out, kept, strict=True))


# How it is captured.


def test_a_step_is_warmed_up_and_captured_on_one_stream_and_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of calls, against stand-ins with the signatures of torch's own."""
    from unittest.mock import create_autospec

    from regard.search import capture

    said: list[str] = []
    streams: list[str] = ["caller"]

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            said.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            said.append("replay")

    @contextmanager
    def entered(name: str) -> Iterator[None]:
        streams.append(name)
        yield
        streams.pop()

    @contextmanager
    def capturing(graph: Any, stream: Any = None, capture_error_mode: str = "") -> Iterator[None]:
        said.append(f"capture, {capture_error_mode}")
        with entered(stream.name):
            yield
        said.append("captured")

    monkeypatch.setattr(capture, "_side_stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(streams[-1]))
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered("caller"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: entered(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", create_autospec(torch.cuda.graph, side_effect=capturing))
    output = torch.zeros(1)

    def step() -> Tensor:
        said.append(f"step on {streams[-1]}")
        return output

    replay = capture.capture_on(torch.device("cuda:1"))(step)
    expected = ["side waits for caller", *["step on side"] * WARM_UP, "capture, thread_local", "step on side"]
    assert said == [*expected, "captured", "caller waits for side"]
    said.clear()
    assert replay() is output
    assert replay() is output
    assert said == ["replay", "replay"]
    assert capture.capture_on(torch.device("cpu"))(step) is step
