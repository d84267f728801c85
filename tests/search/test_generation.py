"""Texts that go on from prompts: the same whatever stands beside them, by every way of searching."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import UserError
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder
from regard.pipelines import TextGenerator
from regard.search.beam import length_penalty
from regard.search.decoder import CachedText
from regard.search.settings import GenerationSettings
from regard.search.stops import StopReader
from regard.text.tokenizer import Tokenizer, TokenizerSettings

TOKENIZER = Tokenizer.learn(["the dog runs", "two men talk loudly", "café 你好"] * 3, TokenizerSettings(size=290))
PROMPTS = ["the", "two men talk loudly and the dog runs", "", "café 你", "the dog"]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 5},
    "drawn from few": {"seed": 5, "temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0, "repetition_penalty": 1.5, "no_repeat": 2},
    "several drawn": {"seed": 5, "n": 3},
    "beam": {"beam": 3},
    "several of a beam": {"beam": 4, "n": 4, "alpha": 0.0, "stop": ("e", "o", "a")},
    "penalised beam": {"beam": 3, "n": 2, "alpha": -1.0, "repetition_penalty": 1.5, "no_repeat": 2, "min_tokens": 3},
    "contrastive": {"contrastive": 0.6},
    "penalised contrast": {"contrastive": 0.6, "repetition_penalty": 1.3},
    "stop": {"seed": 3, "stop": ("e", "o", "a")},
    "endless": {"seed": 2, "endless": True, "sinks": 2, "recent": 6},
}
"""All ways of searching that a user can ask for. What is added here has to keep what is said of each `mode` below."""
every_mode = pytest.mark.parametrize("mode", MODES)


def generator(positions: str = "rotary", **changes: Any) -> TextGenerator:
    torch.manual_seed(0)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "decoder_layers": 2, "max_length": 64, "positions": positions}
    model = CausalDecoder(ModelSettings.model_validate(values | changes), TOKENIZER.size)
    for parameter in model.parameters():  # far from uniform, so that choices are clear
        parameter.data *= 3
    return TextGenerator(model, TOKENIZER)


COMPANY = [
    *(("rotary", mode) for mode in MODES),
    *(
        (name, mode)
        for name in sorted(POSITIONS)
        if name != "rotary"
        for mode in ("greedy", "beam", "contrastive", "endless")
    ),
]


@pytest.mark.parametrize(("positions", "mode"), COMPANY)
def test_a_prompt_gives_the_same_alone_and_beside_others(positions: str, mode: str) -> None:
    """Alone, in one left-padded batch, and in small ones in the other order by several workers."""
    model, options = generator(positions), {"max_tokens": 8} | MODES[mode]
    alone = [model.results(prompt, **options)[0] for prompt in PROMPTS]
    assert len({result.best.text for result in alone}) > 1
    together = model.results(PROMPTS, **options)
    model.workers = 2
    again = model.results(PROMPTS[::-1], batch_tokens=60, **options)[::-1]
    for results in (together, again):
        for one, other in zip(results, alone, strict=True):
            assert one.prompt == other.prompt
            for each, expected in zip(one.continuations, other.continuations, strict=True):
                assert (each.text, each.ids, each.stopped) == (expected.text, expected.ids, expected.stopped)
                assert each.log_probability == pytest.approx(expected.log_probability, abs=3e-4)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "endless"])
def test_log_probabilities_are_those_of_whole_passes_and_the_best_come_first(mode: str) -> None:
    model, options = generator(), {"max_tokens": 12} | MODES[mode]
    for prompt, result in zip(PROMPTS, model.results(PROMPTS, **options), strict=True):
        assert len(result.continuations) == options.get("n", 1)
        begin = [*TOKENIZER.frames.begin, *TOKENIZER.encode([prompt])[0]]
        for each in result.continuations:
            said = [*each.ids, *[TOKENIZER.eos] * (each.stopped == "end")]
            with torch.no_grad():
                table_TV = model.model.logits(model.model.decode(torch.tensor([[*begin, *said]])))[0].log_softmax(-1)
            places = range(len(begin) - 1, len(begin) + len(said) - 1)
            expected = sum(float(table_TV[place, token]) for place, token in zip(places, said, strict=True))
            assert each.log_probability == pytest.approx(expected, abs=1e-3)
            assert len(each.ids) <= 12
            assert (each.stopped == "length") <= (len(each.ids) == 12)
        if "beam" in options and "repetition_penalty" not in options:
            alpha = options.get("alpha", 0.6)
            ranks = [
                (each.finished, each.log_probability / length_penalty(len(each.ids) + (each.stopped == "end"), alpha))
                for each in result.continuations
            ]
            assert ranks == sorted(ranks, reverse=True)
            assert len({each.ids for each in result.continuations}) == len(ranks)


@pytest.mark.parametrize("mode", ["greedy", "drawn", "contrastive", "endless"])
def test_pieces_shown_as_they_come_are_the_text(mode: str) -> None:
    model, options = generator(), {"max_tokens": 20} | MODES[mode]
    for prompt in PROMPTS:
        pieces = list(model.stream(prompt, **options))
        assert "".join(pieces) == model.generate(prompt, **options)[0]


def test_seeds_give_the_same_text_and_other_seeds_another() -> None:
    model = generator()
    one, again, other = (model.generate("the dog", seed=seed, max_tokens=20)[0] for seed in (1, 1, 2))
    assert one == again != other
    several = model.generate("the dog", seed=1, n=3, max_tokens=20)
    assert several[0] == one
    assert len(set(several)) == 3


def greedy(model: CausalDecoder, ids: list[int], count: int) -> list[int]:
    """The most probable continuation, one whole pass for each token."""
    for _ in range(count):
        logits = model.logits(model.decode(torch.tensor([ids]))[0, -1])
        logits[list(TOKENIZER.forbidden)] = -torch.inf
        ids = [*ids, int(logits.argmax())]
        if ids[-1] == TOKENIZER.eos:
            break
    return ids


@pytest.mark.parametrize("positions", sorted(POSITIONS))
def test_greedy_text_is_the_argmax_of_whole_passes(positions: str) -> None:
    model = generator(positions)
    (result,) = model.results("the dog", temperature=0, max_tokens=15)
    (prompt,) = TOKENIZER.encode(["the dog"])
    with torch.no_grad():
        expected = greedy(model.model, [*TOKENIZER.frames.begin, *prompt], 15)
    assert list(result.best.ids) == [i for i in expected[len(prompt) + 1 :] if i != TOKENIZER.eos]


def test_contrastive_search_is_its_formula() -> None:
    """Su et al. 2022, equation 5, by whole passes over each candidate."""
    model, weight, k = generator(), 0.6, 4
    (result,) = model.results("the dog", contrastive=weight, candidates=k, max_tokens=8)
    ids = [*TOKENIZER.frames.begin, *TOKENIZER.encode(["the dog"])[0]]
    taken: list[int] = []
    with torch.no_grad():
        while len(taken) < 8:
            hidden_TD = model.model.decode(torch.tensor([ids]))[0]
            scores_V = model.model.logits(hidden_TD[-1])
            scores_V[list(TOKENIZER.forbidden)] = -torch.inf
            probabilities, candidates = scores_V.softmax(-1).topk(k)
            values = []
            for probability, token in zip(probabilities.tolist(), candidates.tolist(), strict=True):
                state = model.model.decode(torch.tensor([[*ids, token]]))[0, -1]
                likeness = functional.cosine_similarity(state[None], hidden_TD).max().item()
                values.append((1 - weight) * probability - weight * likeness)
            token = int(candidates[values.index(max(values))])
            if token == TOKENIZER.eos:
                break
            taken.append(token)
            ids.append(token)
    assert list(result.best.ids) == taken


def test_stop_strings_end_the_text_before_them_across_tokens() -> None:
    model = generator()
    whole = model.generate("the dog", temperature=0, max_tokens=30)[0]
    for start in range(1, len(whole) - 3, 4):
        stop = whole[start : start + 3]
        (result,) = model.results("the dog", temperature=0, max_tokens=30, stop=(stop,))
        assert result.best.text == whole[: whole.index(stop)]
        assert result.best.stopped == "stop"
        pieces = list(model.stream("the dog", temperature=0, max_tokens=30, stop=(stop,)))
        assert "".join(pieces) == result.best.text


def test_a_single_stop_string_stands_for_itself() -> None:
    assert GenerationSettings.parse({"stop": "ab"}, "options").stop == ("ab",)
    assert GenerationSettings.parse({"stop": ["ab", "c"]}, "options").stop == ("ab", "c")


def test_a_reader_shows_neither_half_characters_nor_what_may_become_a_stop() -> None:
    reader, shown = StopReader(TOKENIZER, [], ("abcd",)), []
    for byte in "é abcabc abcd never".encode():
        (token,) = (i for i in range(4, 260) if TOKENIZER.pieces([i])[0] == _spelled(byte))
        shown.append(reader.push(token))
    assert "".join([*shown, reader.finish()]) == "é abcabc "
    assert shown[:2] == ["", "é"]
    assert reader.stopped


def _spelled(byte: int) -> str:
    return "▁" if byte == 32 else bytes([byte]).decode("utf-8", "backslashreplace")


class Constant(CausalDecoder):
    """Gives the same logits at each position, and counts the rows that it is asked for."""

    rows: list[int]
    answer_V: Tensor

    def logits(self, hidden_RTD: Tensor) -> Tensor:
        self.rows.append(hidden_RTD.numel() // hidden_RTD.shape[-1])
        return self.answer_V.expand(*hidden_RTD.shape[:-1], -1)


def constant(token: int) -> TextGenerator:
    model = generator()
    model.model.__class__ = Constant
    assert isinstance(model.model, Constant)
    model.model.rows, model.model.answer_V = [], torch.zeros(TOKENIZER.size)
    model.model.answer_V[TOKENIZER.eos] = -torch.inf
    model.model.answer_V[token] = 50.0
    return model


FREE = {"no_repeat": 0, "repetition_penalty": 1.0, "min_tokens": 0, "stop": ()}
"""No rule that says more than the model."""


@every_mode
def test_without_an_end_the_limit_ends_a_text_and_it_is_marked(mode: str) -> None:
    letter = TOKENIZER.encode(["a"])[0][-1]
    (result,) = constant(letter).results("the", **(MODES[mode] | FREE), max_tokens=5)
    assert (result.best.ids, result.best.stopped, result.best.finished) == ((letter,) * 5, "length", False)


@every_mode
def test_an_end_at_once_is_an_empty_text(mode: str) -> None:
    (result,) = constant(TOKENIZER.eos).results("the", **(MODES[mode] | FREE), max_tokens=5)
    assert (result.best.text, result.best.ids, result.best.stopped) == ("", (), "end")
    assert result.best.log_probability == pytest.approx(0, abs=1e-5)


@every_mode
@pytest.mark.parametrize("name", ["pad", "bos", "unk"])
def test_control_tokens_are_never_written(mode: str, name: str) -> None:
    (result,) = constant(getattr(TOKENIZER, name)).results("the", max_tokens=5, **MODES[mode])
    for each in result.continuations:
        assert not set(each.ids) & {TOKENIZER.pad, TOKENIZER.bos, TOKENIZER.unk}


def test_the_scores_of_a_beam_that_were_computed_by_hand() -> None:
    a, b = (TOKENIZER.encode([letter])[0][-1] for letter in "ab")
    model = constant(a)
    assert isinstance(model.model, Constant)
    model.model.answer_V = torch.full((TOKENIZER.size,), -torch.inf)
    model.model.answer_V[[a, b, TOKENIZER.eos]] = torch.tensor([0.6, 0.3, 0.1]).log()
    (result,) = model.results("the", beam=50, n=5, alpha=0.0, max_tokens=50)
    assert [each.ids for each in result.continuations] == [(), (a,), (a, a), (b,), (a, a, a)]
    scores = [-2.3026, -2.8134, -3.3242, -3.5066, -3.8351]
    assert [each.log_probability for each in result.continuations] == pytest.approx(scores, abs=1e-4)
    model.model.answer_V[[a, b, TOKENIZER.eos]] = torch.tensor([2 / 3, 1 / 3, 0.0]).log()
    for options in ({"temperature": 0}, {"beam": 3}):
        (endless,) = model.results("the", max_tokens=5, **options)
        assert (endless.best.ids, endless.best.stopped) == ((a,) * 5, "length")
        assert endless.best.log_probability == pytest.approx(-2.027, abs=1e-3)


def test_each_prompt_has_chances_of_its_own() -> None:
    """Two prompts after which all is equally probable are not continued alike."""
    model = constant(TOKENIZER.eos)
    assert isinstance(model.model, Constant)
    model.model.answer_V[:] = 0.0
    one, other = model.results(["the dog", "two men"], seed=1, min_tokens=8, max_tokens=8)
    assert one.best.ids != other.best.ids


@pytest.mark.parametrize("options", [{"temperature": 0}, {"beam": 2}])
def test_where_no_token_is_allowed_the_text_is_blocked(options: dict[str, Any]) -> None:
    (result,) = generator(max_length=1000).results("the", no_repeat=1, min_tokens=500, max_tokens=500, **options)
    assert result.best.stopped == "blocked"
    assert not result.best.finished
    written = {*TOKENIZER.encode(["the"])[0], *result.best.ids}
    assert len(result.best.ids) == len(set(result.best.ids)) < 500
    assert written == {*range(TOKENIZER.size)} - {*TOKENIZER.forbidden, TOKENIZER.eos}


def test_a_text_that_is_done_costs_nothing() -> None:
    letter = TOKENIZER.encode(["a"])[0][-1]
    model = constant(letter)
    list(model.results(["the"] * 3, max_tokens=4, temperature=0, stop=("aa",)))
    assert isinstance(model.model, Constant)
    assert model.model.rows == [3, 3]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_what_is_longer_than_the_model_is_refused_or_cut_with_a_sentence(
    positions: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, long = generator(positions), "the dog runs " * 40
    refused, cut = model.results([long, "the dog"], temperature=0, max_tokens=100, min_tokens=90)
    assert (refused.best.text, refused.best.stopped) == ("", "refused")
    assert cut.best.stopped == "length"
    assert len(cut.best.ids) + 1 + len(TOKENIZER.encode(["the dog"])[0]) == 64
    assert "line 1" in caplog.messages[0]
    assert "the model's length is 64" in caplog.messages[0]
    assert "the model's length of 64 was used up" in caplog.messages[1]
    with pytest.raises(UserError, match="shorten it, or ask for endless text"):
        list(model.stream(long))


@pytest.mark.parametrize("positions", sorted(POSITIONS))
def test_endless_text_goes_far_beyond_the_model_in_constant_memory(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lengths = generator(positions, max_length=16), []
    step = CachedText.step

    def watched(self: CachedText, tokens_R: Tensor) -> Tensor:
        found = step(self, tokens_R)
        lengths.append(self._cache.length)
        return found

    monkeypatch.setattr(CachedText, "step", watched)
    options = {"seed": 1, "endless": True, "sinks": 2, "recent": 10, "min_tokens": 70}
    results = model.results(["the dog runs and the two men", "a"], max_tokens=70, **options)
    assert [len(result.best.ids) for result in results] == [70, 70]
    assert max(lengths) == 12
    assert lengths[-40:] == [12] * 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 2, "temperature": 0.5}, "temperature is an option of drawing"),
        ({"n": 2, "temperature": 0}, "all texts would be the same"),
        ({"beam": 2, "contrastive": 0.5}, "two ways of searching"),
        ({"stop": ("",)}, "an empty text stands everywhere"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"endless": True, "sinks": 4, "recent": 100}, "more than the model's length"),
    ],
)
def test_options_that_cannot_be_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generator("learned").generate("the", **options)
