"""Many inputs at once: batch-mates change nothing, the cache changes nothing, one bad input costs that input only."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import JobError
from regard.model.transformer import EncoderDecoder
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.engine import WINDOW, Translation, translate
from regard.search.executors import pad
from regard.search.settings import SearchSettings
from regard.text.tokenizer import TokenizerPair

SENTENCES = [
    " ".join(["the", "dog", "in", "a", "park", "and", "tea", "of", "men", "the", "ball"] * 2)[: 3 * length]
    for length in range(1, 21)
]

Build = Callable[..., EncoderDecoder]


def run(model: EncoderDecoder, tokenizers: TokenizerPair, texts: list[str], **options: float) -> list[Translation]:
    settings = SearchSettings.parse({"extra_tokens": 8, **options}, "test")
    return list(translate(model, tokenizers, texts, settings))


def assert_same(found: Translation, expected: Translation) -> None:
    assert [candidate.ids for candidate in found.candidates] == [candidate.ids for candidate in expected.candidates]
    assert [candidate.text for candidate in found.candidates] == [candidate.text for candidate in expected.candidates]
    for name in ("score", "log_probability", "finished"):
        assert [getattr(candidate, name) for candidate in found.candidates] == pytest.approx(
            [getattr(candidate, name) for candidate in expected.candidates], abs=1e-4
        )


@pytest.mark.parametrize(
    ("beam", "choice"), [(1, {}), (4, {}), (4, {"norm_placement": "pre"}), (1, {"positions": "learned"})]
)
def test_batch_mates_change_nothing(build_model: Build, tokenizers: TokenizerPair, beam: int, choice: dict[str, str]):
    model = build_model(**choice)
    alone = [run(model, tokenizers, [text], beam=beam, nbest=beam)[0] for text in SENTENCES]
    assert len({translation.best.ids for translation in alone}) > 3  # the model has something to say
    assert {candidate.finished for translation in alone for candidate in translation.candidates} >= {True}
    for batch_tokens in (7 * beam * 21, 100 * beam, 10**6):
        together = run(model, tokenizers, SENTENCES, beam=beam, nbest=beam, batch_tokens=batch_tokens)
        for found, expected in zip(together, alone, strict=True):
            assert_same(found, expected)
    order = random.Random(0).sample(range(20), 20)
    shuffled = run(model, tokenizers, [SENTENCES[place] for place in order], beam=beam, nbest=beam)
    for place, found in zip(order, shuffled, strict=True):
        assert_same(found, alone[place])


class Uncached:
    """The same decoder, computing everything anew at each step."""

    def __init__(self, model: EncoderDecoder, source_BS: Tensor, keys_BS: Tensor) -> None:
        self.model = model
        self.memory = model.encode(source_BS, keys_BS)
        self.tokens_RT = torch.empty(len(source_BS), 0, dtype=torch.int64)

    def step(self, tokens_R: Tensor) -> Tensor:
        self.tokens_RT = torch.cat((self.tokens_RT, tokens_R[:, None]), dim=1)
        return self.model.logits(self.model.decode(self.tokens_RT, self.memory))[:, -1]

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.tokens_RT = self.tokens_RT[rows_R]
        if sources_N is not None:
            self.memory = self.memory.select(sources_N)


@examples(max_examples=25)
@given(
    seed=st.integers(0, 5),
    beam=st.integers(1, 5),
    choice=st.sampled_from([{}, {"norm_placement": "pre"}, {"positions": "learned"}]),
    sources=st.lists(st.lists(st.integers(4, 299), min_size=0, max_size=9), min_size=1, max_size=4),
)
def test_the_cache_changes_nothing(build_model, tokenizers, seed, beam, choice, sources):
    model = build_model(seed, **choice)
    target = tokenizers.target
    inputs = pad([[*source, target.eos] for source in sources], target.pad)
    settings = SearchSettings(beam=beam, nbest=beam)
    limits = [len(source) + 6 for source in sources]
    with torch.inference_mode():
        cached, uncached = (
            beam_search(kind(model, *inputs), limits, settings, begin=target.bos, end=target.eos)
            for kind in (CachedDecoder, Uncached)
        )
    for found, expected in zip(cached, uncached, strict=True):
        assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
        assert [hypothesis.log_probability for hypothesis in found] == pytest.approx(
            [hypothesis.log_probability for hypothesis in expected], abs=1e-4
        )


def test_a_second_longer_request_on_the_same_model(build_model: Build, tokenizers: TokenizerPair):
    model = build_model(norm_placement="pre")
    expected = run(build_model(norm_placement="pre"), tokenizers, SENTENCES[15:], beam=4)
    run(model, tokenizers, SENTENCES[:2], beam=4)
    for found, fresh in zip(run(model, tokenizers, SENTENCES[15:], beam=4), expected, strict=True):
        assert_same(found, fresh)


def test_threads_share_a_model_each_with_its_own_options(build_model: Build, tokenizers: TokenizerPair):
    model = build_model()
    jobs = [(SENTENCES[n % 20 :: 3], {"beam": 1 + n % 4, "extra_tokens": 3 + n % 5}) for n in range(12)]
    expected = [run(model, tokenizers, texts, **options) for texts, options in jobs]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: run(model, tokenizers, job[0], **job[1]), jobs))
    for translations, alone in zip(found, expected, strict=True):
        for one, other in zip(translations, alone, strict=True):
            assert_same(one, other)


def test_lines_without_text_stay_empty_and_ask_no_model(build_model: Build, tokenizers: TokenizerPair):
    model = build_model()
    del model.encoder
    translations = run(model, tokenizers, ["", "  ", "\t", "\u3000"])
    assert [translation.best.text for translation in translations] == [""] * 4
    assert all(translation.best.finished and translation.best.ids == () for translation in translations)


def test_a_line_beyond_the_model_is_shortened_with_a_warning(build_model, tokenizers, caplog):
    model = build_model(max_length=12)
    texts = ["a dog", SENTENCES[-1], "two men"]
    with caplog.at_level(logging.WARNING, "regard"):
        found = run(model, tokenizers, texts, extra_tokens=50)
    length = len(tokenizers.source.encode([SENTENCES[-1]])[0])
    (record,) = caplog.records
    assert f"input, line 2: has {length} tokens, of which the model can read 11;" in record.getMessage()
    assert [translation.shortened for translation in found] == [False, True, False]
    for place in (0, 2):
        assert_same(found[place], run(model, tokenizers, [texts[place]], extra_tokens=50)[0])
    beginning = tokenizers.source.decode([tokenizers.source.encode([SENTENCES[-1]])[0][:11]])
    assert found[1].best.ids == run(model, tokenizers, beginning, extra_tokens=50)[0].best.ids
    assert all(len(candidate.ids) <= 12 for translation in found for candidate in translation.candidates)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("source", "target"), [(12, 40), (15, 12)])
def test_a_source_has_a_bound_of_its_own(build_model, tokenizers, caplog, positions, source, target):
    model = build_model(positions=positions, max_length=target, source_max_length=source)
    ids = tokenizers.source.encode([SENTENCES[-1]])[0]
    assert len(ids) > source
    with caplog.at_level(logging.WARNING, "regard"):
        (found,) = run(model, tokenizers, [SENTENCES[-1]], extra_tokens=50)
    assert f"of which the model can read {source - 1};" in caplog.text
    (beginning,) = tokenizers.source.decode([ids[: source - 1]])
    assert_same(found, run(model, tokenizers, [beginning], extra_tokens=50)[0])
    assert all(len(candidate.ids) <= target for candidate in found.candidates)


def test_half_a_surrogate_pair_costs_that_text_only(build_model, tokenizers, caplog):
    model = build_model()
    with caplog.at_level(logging.WARNING, "regard"):
        found = run(model, tokenizers, ["a dog", "", "the \ud83d fox", "two men"])
    assert [record.getMessage() for record in caplog.records] == [
        "input, line 3: holds half of a surrogate pair, which is no character; read as U+FFFD"
    ]
    for place, text in ((0, "a dog"), (2, "the \ufffd fox"), (3, "two men")):
        assert_same(found[place], run(model, tokenizers, [text])[0])


def test_control_tokens_never_come_out(build_model: Build, tokenizers: TokenizerPair):
    model = build_model()
    target = tokenizers.target
    with torch.no_grad():
        for control in (target.pad, target.bos, target.unk):
            model.output[control] = model.output[target.eos] * 2
    for beam in (1, 4):
        for translation in run(model, tokenizers, SENTENCES, beam=beam, nbest=beam):
            for candidate in translation.candidates:
                assert not {target.pad, target.bos, target.unk, target.eos} & set(candidate.ids)


def test_damaged_weights_are_an_error_and_not_junk(build_model: Build, tokenizers: TokenizerPair):
    model = build_model()
    with torch.no_grad():
        model.output[17] = float("nan")
    with pytest.raises(JobError, match="NaN"):
        run(model, tokenizers, ["a dog"])


def test_a_model_in_training_mode_is_refused(build_model: Build, tokenizers: TokenizerPair):
    with pytest.raises(ValueError, match="evaluation mode"):
        run(build_model().train(), tokenizers, ["a dog"])


def test_order_holds_beyond_a_window(build_model: Build, tokenizers: TokenizerPair):
    model = build_model()
    few = SENTENCES[:3]
    alone = {text: run(model, tokenizers, [text], beam=1, extra_tokens=1)[0].best.ids for text in few}
    texts = [few[n % 3] if n % 7 else "" for n in range(WINDOW + 10)]

    def arriving() -> Iterator[str]:
        yield from texts

    settings = SearchSettings(beam=1, extra_tokens=1)
    found = [translation.best.ids for translation in translate(model, tokenizers, arriving(), settings)]
    assert found == [alone[text] if text else () for text in texts]
