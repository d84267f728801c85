"""Buckets: who has them, what of them can be captured, how it is, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.errors import UserError
from regard.experiments.recurrent import RecurrentEncoderDecoder, RecurrentSettings
from regard.model.transformer import EncoderDecoder
from regard.search import capture, executors, static
from regard.search.capture import WARM_UP, Step
from regard.search.executors import GraphExecutor, TorchExecutor, fastest
from regard.search.static import Bucket, Pool, Shape
from regard.text.tokenizer import TokenizerPair
from search.static_models import MODELS, VOCABULARY, Both, assert_alike, build, run, sources

every = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for few tokens, so that a short search outgrows several buckets."""
    monkeypatch.setattr(static, "LEAST", 4)


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
        for each in tree_leaves((args, kwargs)):
            assert not isinstance(each, Tensor) or each.device.type == "meta", f"{func} reads from {each.device}"
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number goes to the host"
        return func(*args, **(kwargs or {}))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_step_stays_on_its_device(name: str, dtype: torch.dtype) -> None:
    """The device without memory stands for a GPU: it has no numbers that the host could wait for."""
    model = deepcopy(build(name)).to("meta", dtype)

    def watched(step: Step) -> Step:
        with OnDeviceOnly():
            logits_RV = step()
        assert logits_RV.shape == (8, VOCABULARY)
        assert logits_RV.device.type == "meta"
        return step

    with torch.inference_mode():
        Bucket(model, Shape(2, 4, 8, 16), watched)


def test_the_check_sees_what_it_is_to_see() -> None:
    with OnDeviceOnly():
        x = torch.empty(2, device="meta")
        with pytest.raises(AssertionError, match="reads from cpu"):
            torch.arange(2).to("meta")
        with pytest.raises(AssertionError, match="a number goes to the host"):
            bool(x.any())


@pytest.mark.parametrize("name", ["t5", "windows", "shared heads, normalised"])
def test_a_step_has_no_branch_that_depends_on_numbers(name: str) -> None:
    """What was traced once computes all later steps."""

    def traced(step: Step) -> Step:
        with torch.no_grad():
            return make_fx(step)()

    executor = GraphExecutor(build(name), traced)
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
        before = list(streams)
        streams.append(name)
        try:
            yield
        finally:
            streams[:] = before

    @contextmanager
    def capturing(graph: Any, stream: Any = None, capture_error_mode: str = "") -> Iterator[None]:
        said.append(f"capture, {capture_error_mode}")
        streams.append(stream.name)
        yield
        streams.pop()  # not where the step fails, as with torch
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
    said.clear()

    def failing() -> Tensor:
        if step() is output and len(said) > WARM_UP + 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return output

    with pytest.raises(RuntimeError, match="not permitted"):
        capture.capture_on(torch.device("cuda:1"))(failing)
    assert said == [*expected, "caller waits for side"]
    assert streams == ["caller"]
    assert capture.capture_on(torch.device("cpu"))(step) is step


# When it is.


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a CPU had graphs."""
    monkeypatch.setattr(executors, "has_graphs", lambda device: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**30))


WINDOWS = {"spans": ("window",), "window": 4}
"""What the compiled decoder does not know."""


@pytest.mark.usefixtures("graphs")
def test_graphs_are_chosen_where_there_are_some(build_model: Callable[..., EncoderDecoder]) -> None:
    model = build_model(**WINDOWS)
    executor, why = fastest(model)
    assert isinstance(executor, GraphExecutor)
    assert executor.about == "PyTorch on cpu, float32, steps captured as CUDA graphs"
    assert why == "the compiled decoder does not serve: the model's self-attention does not reach everything"
    assert executor.pool.room == 2**18
    assert (executor.joins, executor.alone, executor.settings) == (False, False, model.settings)
    chosen, why = fastest(build_model(), "graphs")
    assert isinstance(chosen, GraphExecutor)
    assert why == "as asked"
    for options in ({"choice": "torch"}, {"invariant": True}, {"lasting": False}):
        assert isinstance(fastest(model, **options)[0], TorchExecutor)
    assert fastest(model, invariant=True)[0].alone


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("fault", ["cannot be captured", "something else"])
def test_graphs_are_tried_out_first(
    fault: str, build_model: Callable[..., EncoderDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(**WINDOWS)

    def failing(step: Step) -> Step:
        if fault == "something else":
            return lambda: step() * 1.2
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(executors, "capture_on", lambda device: failing)
    executor, why = fastest(model)
    assert isinstance(executor, TorchExecutor)
    assert "CUDA graphs do not either: " in why
    assert why.endswith("when stream is capturing" if fault == "cannot be captured" else fault)
    with pytest.raises(UserError, match=f"executor = graphs is not possible: .*{fault}"):
        fastest(model, "graphs")


def test_what_is_not_possible_is_refused(
    build_model: Callable[..., EncoderDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="graphs is not possible: the model is not on a GPU with CUDA graphs; leave"):
        fastest(build_model(), "graphs")
    with pytest.raises(UserError, match="int8 needs the compiled decoder; executor = graphs excludes it"):
        fastest(build_model(), "graphs", "int8")
    with pytest.raises(UserError, match="does not give the same bits in any company"):
        fastest(build_model(), "graphs", invariant=True)
    monkeypatch.setattr(executors, "has_graphs", lambda device: True)
    with pytest.raises(UserError, match=r"the model computes in torch\.float64"):
        fastest(build_model().double(), "graphs")
    recurrent = RecurrentEncoderDecoder(RecurrentSettings(d_model=4, hidden=4), 9, 9).eval()
    with pytest.raises(UserError, match="graphs is not possible: it is no encoder-decoder"):
        fastest(recurrent, "graphs")


def test_a_step_that_cannot_be_captured_later_costs_speed_only(caplog: pytest.LogCaptureFixture) -> None:
    """Some shapes can, another cannot."""
    tries = []

    def sometimes(step: Step) -> Step:
        tries.append(step)
        if len(tries) == 2:
            raise RuntimeError("no")
        return step

    both = Both(build("rotary"), sources(3, 2))
    both.static = GraphExecutor(build("rotary"), sometimes).begin(sources(3, 2), 0, ())
    both.step(20)
    assert both.shape.capacity == 32
    assert [record.getMessage() for record in caplog.records] == [
        "a step cannot be captured as a CUDA graph, and goes more slowly: no"
    ]
