"""A decoder under the searches: against looking at every sequence, read in chunks, and row by row what it costs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import JobError
from regard.model.positions import POSITIONS
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder
from regard.search import decoder
from regard.search.beam import beam_search, length_penalty
from regard.search.decoder import CachedText
from regard.search.growth import Growing, choose_step_by_step, contrast_step_by_step
from regard.search.inputs import fill_left
from regard.search.processors import Ban
from regard.search.sampling import Sampling
from regard.search.settings import GenerationSettings, SearchSettings

END, WORDS = 0, (1, 2, 3)
PROMPTS = [[1], [2, 3, 1, 1, 2], [3, 3]]
GREEDY = Sampling(GenerationSettings(temperature=0))


def build(vocabulary: int = 4, **changes: Any) -> CausalDecoder:
    torch.manual_seed(1)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "decoder_layers": 2, "max_length": 32, "positions": "rotary"}
    model = CausalDecoder(ModelSettings.model_validate(values | changes), vocabulary).eval()
    for parameter in model.parameters():
        parameter.data *= 2
    return model


def log_probability(model: CausalDecoder, prompt: list[int], ids: tuple[int, ...]) -> float:
    """By one whole pass, without a cache."""
    tokens = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        scores_TV = model.logits(model.decode(tokens))[0].log_softmax(dim=-1)
    return sum(float(scores_TV[len(prompt) - 1 + place, token]) for place, token in enumerate(ids))


@pytest.mark.parametrize("positions", sorted(POSITIONS))
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_wide_beam_is_looking_at_every_sequence(positions: str, alpha: float) -> None:
    model, limits = build(positions=positions), [4, 3, 4]
    prompts_RT = fill_left(PROMPTS)
    settings = SearchSettings(beam=4**4, alpha=alpha, nbest=5)
    found = beam_search(CachedText(model, prompts_RT), limits, settings, begin=prompts_RT, end=END)
    for prompt, limit, hypotheses in zip(PROMPTS, limits, found, strict=True):
        every = [
            (log_probability(model, prompt, (*words, END)) / length_penalty(length + 1, alpha), words)
            for length in range(limit)
            for words in product(WORDS, repeat=length)
        ]
        best = sorted(every, reverse=True)[:5]
        assert [hypothesis.ids for hypothesis in hypotheses] == [words for _, words in best]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in best], abs=1e-4)
        assert all(hypothesis.finished for hypothesis in hypotheses)


@pytest.mark.parametrize("spans", [("full",), ("window", "full")])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_the_chunks_of_a_prompt_do_not_matter(
    spans: tuple[str, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole chunks of a short prompt beside a long one are filling only."""
    model = build(30, spans=spans, window=3 if "window" in spans else None)
    prompts = [[5], [7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7]]
    with torch.inference_mode():
        expected_RV = torch.cat([model.logits(model.decode(torch.tensor([prompt]))[:, -1]) for prompt in prompts])
        monkeypatch.setattr(decoder, "CHUNK", chunk)
        prompts_RT = fill_left(prompts)
        found_RV = CachedText(model, prompts_RT).step(prompts_RT[:, -1])
    torch.testing.assert_close(found_RV, expected_RV, rtol=0, atol=1e-4)


@pytest.mark.parametrize("contrast", [False, True])
def test_texts_are_given_their_own_log_probability(contrast: bool) -> None:
    model, prompts_RT = build(12), fill_left(PROMPTS)
    texts = [Growing(6) for _ in PROMPTS]
    grow(model, prompts_RT, texts, contrast)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        ids = (*text.ids, END) if text.stopped == "end" else tuple(text.ids)
        assert text.log_probability == pytest.approx(log_probability(model, prompt, ids), abs=1e-4)


class Directions:
    """All tokens are equally probable; the state of each is a direction of its own, and that of filling is 3's."""

    def __init__(self, prompts_RT: Tensor) -> None:
        self.tokens_RT = prompts_RT[:, :-1]

    @property
    def states_RTD(self) -> Tensor:
        return torch.eye(4)[torch.where(self.tokens_RT < 0, 3, self.tokens_RT)]

    def step(self, tokens_R: Tensor) -> Tensor:
        self.tokens_RT = torch.cat((self.tokens_RT, tokens_R[:, None]), dim=1)
        return torch.zeros(len(tokens_R), 4)

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.tokens_RT = self.tokens_RT[rows_R]


def test_contrastive_search_takes_what_was_not_yet_there_and_filling_was_not() -> None:
    prompts_RT = fill_left([[1, 2], [2, 1, 3]])
    texts = [Growing(1), Growing(2)]
    ban = Ban((END,))
    for _ in contrast_step_by_step(Directions(prompts_RT), prompts_RT, texts, 0.5, 4, end=END, processors=[ban]):
        pass
    assert [text.ids for text in texts] == [[3], [1, 1]]


def grow(model: CausalDecoder, prompts_RT: Tensor, texts: list[Growing], contrast: bool) -> list[int]:
    """Let texts grow; how many rows each pass through the model had."""
    rows: list[int] = []

    class Counted(CachedText):
        def step(self, tokens_R: Tensor) -> Tensor:
            rows.append(len(tokens_R))
            return super().step(tokens_R)

    with torch.inference_mode():
        text = Counted(model, prompts_RT, keep_states=contrast)
    if contrast:
        steps = contrast_step_by_step(text, prompts_RT, texts, 0.5, 3, end=END)
    else:
        steps = choose_step_by_step(text, prompts_RT, texts, GREEDY, end=END, processors=[Ban((END,))])
    for _ in steps:
        pass
    return rows


def test_a_row_that_is_done_leaves() -> None:
    texts = [Growing(limit) for limit in (2, 5, 3)]
    assert grow(build(12), fill_left(PROMPTS), texts, contrast=False) == [3, 3, 2, 1, 1]
    assert [len(text.ids) for text in texts] == [2, 5, 3]


def test_so_it_does_from_beam_search() -> None:
    model, rows = build(12), []
    step = CachedText.step

    class Counted(CachedText):
        def step(self, tokens_R: Tensor) -> Tensor:
            rows.append(len(tokens_R))
            return step(self, tokens_R)

    prompts_RT = fill_left(PROMPTS)
    never = [Ban((END,))]
    beam_search(
        Counted(model, prompts_RT), [2, 4, 3], SearchSettings(beam=2), begin=prompts_RT, end=END, processors=never
    )
    assert rows == [3, 6, 4, 2]


@pytest.mark.parametrize("contrast", [False, True])
def test_damaged_weights_are_a_failed_job(contrast: bool) -> None:
    model = build(12)
    model.output.data[3] = float("nan")
    with pytest.raises(JobError, match="NaN"):
        grow(model, fill_left(PROMPTS), [Growing(3) for _ in PROMPTS], contrast)


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.eval"):
        CachedText(build().train(), fill_left(PROMPTS))
