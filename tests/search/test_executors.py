"""What carries a model out changes the speed of a search and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from regard.data.shortlist import Shortlist
from regard.errors import JobError, UserError
from regard.model.transformer import EncoderDecoder
from regard.native import library
from regard.search import executors
from regard.search.engine import Translation, translate
from regard.search.executors import Executor, NativeExecutor, TorchExecutor, fastest
from regard.search.settings import SamplingSettings, SearchSettings
from regard.text.tokenizer import TokenizerPair

WORDS = ["the", "dog", "in", "a", "park", "and", "tea", "of", "men", "ball"]
SENTENCES = [" ".join((WORDS[n:] + WORDS[:n])[: 1 + (7 * n) % 9]) for n in range(10)] * 4

Build = Callable[..., EncoderDecoder]

native = pytest.mark.skipif(library.library() is None, reason="the compiled decoder was not built here")


def run(
    model: EncoderDecoder | Executor, tokenizers: TokenizerPair, texts: Sequence[str], **options
) -> list[Translation]:
    search = {name: value for name, value in options.items() if name not in ("sampling", "workers")}
    settings = SearchSettings.parse({"extra_tokens": 8, **search}, "test")
    sampling, workers = options.get("sampling"), options.get("workers", 1)
    return list(translate(model, tokenizers, texts, settings, sampling=sampling, workers=workers))


def assert_alike(found: list[Translation], expected: list[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [candidate.ids for candidate in one.candidates] == [candidate.ids for candidate in other.candidates]
        for name in ("score", "log_probability", "finished"):
            assert [getattr(candidate, name) for candidate in one.candidates] == pytest.approx(
                [getattr(candidate, name) for candidate in other.candidates], abs=1e-4
            )


@native
@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 4, "nbest": 4},
        {"beam": 3, "no_repeat": 2, "min_tokens": 3},
        {"beam": 4, "no_repeat": 1, "nbest": 4, "min_ratio": 1.0},
    ],
)
def test_translations_are_the_same(build_model: Build, tokenizers: TokenizerPair, options: dict[str, int]):
    model = build_model(norm_placement="pre")
    expected = run(TorchExecutor(model), tokenizers, SENTENCES, **options)
    assert len({translation.best.ids for translation in expected}) > 3
    assert_alike(run(NativeExecutor(model, "float32"), tokenizers, SENTENCES, **options), expected)


@native
def test_drawn_translations_are_the_same(build_model: Build, tokenizers: TokenizerPair):
    model, sampling = build_model(), SamplingSettings(seed=3, temperature=0.7)
    expected = run(model, tokenizers, SENTENCES, sampling=sampling)
    assert_alike(run(NativeExecutor(model, "float32"), tokenizers, SENTENCES, sampling=sampling), expected)


@native
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_neither_batches_nor_threads_change_a_bit(build_model: Build, tokenizers: TokenizerPair, precision):
    """Scores too: sources take the places of others at any time, and each is computed by itself."""
    executor = NativeExecutor(build_model(), precision)
    alone = [run(executor, tokenizers, [text], beam=4, nbest=4)[0] for text in SENTENCES]
    for options in ({"batch_tokens": 1}, {"batch_tokens": 200}, {"batch_tokens": 10**6}, {"workers": 3}):
        assert run(executor, tokenizers, SENTENCES, beam=4, nbest=4, **options) == alone


@native
def test_places_are_filled_again(build_model: Build, tokenizers: TokenizerPair):
    """While texts wait, no place stays free for long."""

    class Counting(executors.Joining):
        def join(self, sources):
            super().join(sources)
            running.append(self.sources)

    class Watched(NativeExecutor):
        def begin(self, sources, padding, forced):
            return Counting(self.packed, forced, None)

    running: list[int] = []
    texts = SENTENCES * 5
    longest = 2 + max(map(len, tokenizers.source.encode(texts)))
    run(Watched(build_model(), "float32"), tokenizers, texts, beam=2, batch_tokens=2 * 16 * longest)
    assert running[0] == 16 * longest // (longest - 1)
    assert running[:-1] == sorted(running[:-1])  # all places are filled, and shorter texts leave room for more
    assert len(running) > 10


@pytest.mark.parametrize("options", [{"beam": 3}, {"beam": 1, "sampling": SamplingSettings(seed=1)}])
def test_pytorch_gives_the_same_bits_where_it_must(build_model: Build, tokenizers: TokenizerPair, options):
    executor, _ = fastest(build_model(d_model=48, heads=3), "torch", invariant=True)
    alone = [run(executor, tokenizers, [text], **options)[0] for text in SENTENCES]
    assert run(executor, tokenizers, SENTENCES, **options) == alone
    assert run(executor, tokenizers, SENTENCES[::-1], **options) == alone[::-1]
    in_batches, _ = fastest(executor.model, "torch")
    assert run(in_batches, tokenizers, SENTENCES, **options) != alone  # else there would be nothing to show


@native
@pytest.mark.parametrize("workers", [1, 2])
def test_a_shortlist_says_what_may_come(build_model: Build, tokenizers: TokenizerPair, workers: int):
    """With all tokens in it nothing changes; with few, those come and no others."""
    model, size = build_model(), tokenizers.target.size
    everything = Shortlist(size, np.arange(size, dtype=np.int32), np.zeros(size + 1, dtype=np.int64), EMPTY)
    expected = run(NativeExecutor(model, "float32"), tokenizers, SENTENCES, beam=3)
    assert run(NativeExecutor(model, "float32", everything), tokenizers, SENTENCES, beam=3, workers=workers) == expected
    some = np.array(sorted({tokenizers.target_end, *range(40, size, 7)}), dtype=np.int32)
    few = Shortlist(size, some, np.zeros(size + 1, dtype=np.int64), EMPTY)
    found = run(NativeExecutor(model, "float32", few), tokenizers, SENTENCES, beam=3, workers=workers)
    said = {token for translation in found for token in translation.best.ids}
    assert said <= set(some.tolist())
    assert len(said) > 3


EMPTY = np.empty(0, dtype=np.int32)


@native
def test_damaged_weights_are_an_error(build_model: Build):
    model = build_model()
    with torch.no_grad():
        model.output[17] = float("nan")
    with pytest.raises(JobError, match="NaN"):
        fastest(model)


@native
def test_a_model_in_training_mode_is_refused(build_model: Build):
    with pytest.raises(ValueError, match="evaluation mode"):
        NativeExecutor(build_model().train(), "float32")


@native
def test_the_fastest_is_chosen_and_says_why(build_model: Build, monkeypatch: pytest.MonkeyPatch):
    model = build_model()
    for fast, precision in ((True, "int8"), (False, "float32")):
        monkeypatch.setattr(executors, "fast_bytes", lambda fast=fast: fast)
        executor, why = fastest(model)
        assert isinstance(executor, NativeExecutor)
        assert executor.packed.precision == precision
        assert executor.about.endswith(precision)
        assert "fastest" in why
    executor, why = fastest(model, precision="float32")
    assert (executor.about.endswith("float32"), why) == (True, "as asked")
    executor, why = fastest(build_model(spans=("window",), window=4))
    assert isinstance(executor, TorchExecutor)
    assert why == "the compiled decoder does not serve: the model's self-attention does not reach everything"
    assert executor.about == "PyTorch on cpu, float32"
    assert isinstance(fastest(model, "torch")[0], TorchExecutor)


def test_what_is_not_possible_is_refused(build_model: Build):
    model = build_model(spans=("window",), window=4)
    with pytest.raises(UserError, match="executor = native is not possible"):
        fastest(model, "native")
    with pytest.raises(UserError, match="int8 needs the compiled decoder; "):
        fastest(model, precision="int8")
    with pytest.raises(UserError, match="executor = torch excludes it"):
        fastest(build_model(), "torch", "int8")


def test_without_the_library_pytorch_serves(build_model: Build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_NATIVE", "0")
    library.library.cache_clear()
    try:
        executor, why = fastest(build_model())
    finally:
        monkeypatch.undo()
        library.library.cache_clear()
    assert isinstance(executor, TorchExecutor)
    assert "installed without a C++ compiler" in why
