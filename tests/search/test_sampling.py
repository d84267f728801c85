"""What is drawn from, and the draw: by value, and beside the warpers of transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.search import sampling
from regard.search.processors import NOTHING, MinimumLength, NoRepeat, RepetitionPenalty
from regard.search.sampling import Sampling, draw
from regard.search.settings import GenerationSettings

LOGITS = torch.tensor([[1.0, 3.0, 2.0]])
ROWS = torch.zeros(1, dtype=torch.int64)


def chosen(chance: float, **options: Any) -> int:
    (token,) = Sampling(GenerationSettings(**options))(LOGITS.clone(), [chance]).tolist()
    return int(token)


@pytest.mark.parametrize("value", [0.0, 1e-6, 1e-30])
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
def test_no_temperature_and_next_to_none_take_the_most_probable(value: float, chance: float) -> None:
    assert chosen(chance, temperature=value) == 1


def test_great_heat_makes_all_alike() -> None:
    assert [chosen((2 * i + 1) / 6, temperature=1e6) for i in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"epsilon": 1.0},
    ],
)
def test_impossible_values_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        GenerationSettings.parse(options, "options")


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 0}, {0, 1, 2}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 100}, {0, 1, 2}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.6}, {1}),  # the most probable has 0.665
        ({"top_p": 0.7}, {1, 2}),
        ({"top_p": 1.0}, {0, 1, 2}),
        ({"min_p": 0.2}, {1, 2}),  # shares of the largest: 0.135, 1, 0.368
        ({"min_p": 1.0}, {1}),
        ({"epsilon": 0.2}, {1, 2}),  # probabilities: 0.090, 0.665, 0.245
        ({"epsilon": 0.9}, {1}),
    ],
)
def test_what_is_drawn_from(options: dict[str, float], allowed: set[int]) -> None:
    assert {chosen(i / 200, **options) for i in range(200)} == allowed


def test_draws_follow_the_probabilities_and_never_the_impossible() -> None:
    scores = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log()
    tokens = [int(draw(scores, torch.tensor([(i + 0.5) / 1000], dtype=torch.float64))) for i in range(1000)]
    assert [tokens.count(token) for token in range(4)] == [500, 0, 250, 250]
    last = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert int(draw(torch.tensor([[0.0, float("-inf")]]), last)) == 0


def random_logits() -> Tensor:
    return torch.randn(5, 40, generator=torch.Generator().manual_seed(3)) * 4


@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [
        ("top_k", "TopKLogitsWarper", 7),
        ("top_p", "TopPLogitsWarper", 0.8),
        ("top_p", "TopPLogitsWarper", 0.3),
        ("min_p", "MinPLogitsWarper", 0.1),
        ("epsilon", "EpsilonLogitsWarper", 0.03),
    ],
)
def test_the_same_tokens_stay_as_in_transformers(ours: str, theirs: str, value: float) -> None:
    transformers = pytest.importorskip("transformers")
    expected = getattr(transformers.generation.logits_process, theirs)(value)(None, random_logits())
    assert torch.equal(getattr(sampling, ours)(random_logits(), value), expected)


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_top_p_of_a_large_vocabulary_is_that_of_transformers(spread: float, share: float) -> None:
    """Whether a few tokens have the probability together or it takes thousands."""
    transformers = pytest.importorskip("transformers")
    scores = torch.randn(2, 6000, generator=torch.Generator().manual_seed(1)).double() * spread
    expected = transformers.TopPLogitsWarper(share)(None, scores.clone())
    assert torch.equal(sampling.top_p(scores.clone(), share), expected)


def test_temperature_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    expected = transformers.generation.logits_process.TemperatureLogitsWarper(0.7)(None, random_logits())
    torch.testing.assert_close(sampling.temperature(random_logits(), 0.7).softmax(1), expected.softmax(1))


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    transformers = pytest.importorskip("transformers")
    tokens = torch.randint(0, 40, (5, 9), generator=torch.Generator().manual_seed(1))
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(tokens, random_logits())
    assert torch.equal(RepetitionPenalty(penalty)(random_logits(), tokens, ROWS.expand(5)), expected)
    padded = torch.cat((torch.full((5, 3), NOTHING), tokens), dim=1)
    assert torch.equal(RepetitionPenalty(penalty)(random_logits(), padded, ROWS.expand(5)), expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_run_of_tokens_occurs_twice_as_in_transformers(size: int) -> None:
    transformers = pytest.importorskip("transformers")
    tokens = torch.randint(0, 3, (5, 9), generator=torch.Generator().manual_seed(1))
    expected = transformers.NoRepeatNGramLogitsProcessor(size)(tokens, random_logits())
    assert torch.equal(NoRepeat(size)(random_logits(), tokens, ROWS.expand(5)), expected)


def test_the_end_waits_for_the_shortest_length() -> None:
    scores = [MinimumLength(2, tokens=2, prompt=3)(LOGITS.clone(), torch.zeros(1, n).long(), ROWS) for n in (3, 4, 5)]
    assert [row[0, 2].item() for row in scores] == [-math.inf, -math.inf, 2.0]
