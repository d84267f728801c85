"""The searches beside those of Hugging Face transformers, both driving the same small GPT-2 of theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.search.beam import beam_search
from regard.search.growth import Growing, choose_step_by_step
from regard.search.inputs import fill_left
from regard.search.processors import NOTHING, MinimumLength, NoRepeat, Processor, RepetitionPenalty
from regard.search.sampling import Sampling
from regard.search.settings import GenerationSettings, SearchSettings

transformers = pytest.importorskip("transformers")

VOCABULARY, END, LIMIT = 23, 0, 12
PROMPTS = [[5, 7, 9, 5, 7], [11], [3, 4, 5]]


class Theirs:
    """Their model behind the interface of our searches, without a cache."""

    def __init__(self, model: Any, prompts_RT: Tensor) -> None:
        self.model, self.tokens_RT = model, prompts_RT[:, :-1]

    def step(self, tokens_R: Tensor) -> Tensor:
        self.tokens_RT = torch.cat((self.tokens_RT, tokens_R[:, None]), dim=1)
        real_RT = self.tokens_RT != NOTHING
        positions_RT = (real_RT.cumsum(dim=1) - 1).clamp(min=0)
        ids_RT = self.tokens_RT.clamp(min=0)
        return self.model(ids_RT, attention_mask=real_RT.long(), position_ids=positions_RT).logits[:, -1]

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.tokens_RT = self.tokens_RT[rows_R]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, initializer_range=0.5, bos_token_id=END, eos_token_id=END)
    return transformers.GPT2LMHeadModel(config).eval()


def their_text(model: Any, prompt: list[int], **options: Any) -> tuple[int, ...]:
    more = {"max_new_tokens": LIMIT, "eos_token_id": END, "pad_token_id": END, "do_sample": False}
    ids = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **more, **options)
    text = ids[0, len(prompt) :].tolist()
    return tuple(text[: text.index(END)] if END in text else text)


RULES: list[tuple[dict[str, Any], list[Processor]]] = [
    ({}, []),
    ({"repetition_penalty": 1.4}, [RepetitionPenalty(1.4)]),
    ({"no_repeat_ngram_size": 2}, [NoRepeat(2)]),
    ({"min_new_tokens": 6}, [MinimumLength(END, 6, 5)]),
    (
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
        [RepetitionPenalty(0.8), NoRepeat(3), MinimumLength(END, 4, 5)],
    ),
]


@pytest.mark.parametrize(("options", "processors"), RULES)
def test_greedy_text_is_theirs(model: Any, options: dict[str, Any], processors: list[Processor]) -> None:
    prompts_RT = fill_left(PROMPTS)
    texts = [Growing(LIMIT) for _ in PROMPTS]
    with torch.inference_mode():
        decoder = Theirs(model, prompts_RT)
    greedy = Sampling(GenerationSettings(temperature=0))
    for _ in choose_step_by_step(decoder, prompts_RT, texts, greedy, end=END, processors=processors):
        pass
    expected = [their_text(model, prompt, **options) for prompt in PROMPTS]
    assert len(set(expected)) == len(PROMPTS)
    assert [tuple(text.ids) for text in texts] == expected


@pytest.mark.parametrize(("options", "processors"), RULES)
def test_beam_search_finds_theirs(model: Any, options: dict[str, Any], processors: list[Processor]) -> None:
    """Without a length penalty, for which there are two formulas; their search goes on until it cannot do better."""
    prompts_RT = fill_left(PROMPTS)
    found = beam_search(
        Theirs(model, prompts_RT),
        [LIMIT] * len(PROMPTS),
        SearchSettings(beam=5, alpha=0.0),
        begin=prompts_RT,
        end=END,
        processors=processors,
    )
    for prompt, (best,) in zip(PROMPTS, found, strict=True):
        theirs = their_text(model, prompt, num_beams=5, length_penalty=0.0, early_stopping="never", **options)
        assert best.ids == theirs
