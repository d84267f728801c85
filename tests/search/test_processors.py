"""What may come next, by value; beside those of transformers: `test_sampling.py`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.search.processors import NEVER, NOTHING, Ban, MinimumLength, NoRepeat, RepetitionPenalty


def row(*ids: int) -> Tensor:
    return torch.tensor([ids])


SOURCE = torch.zeros(1, dtype=torch.int64)


def test_banned_tokens_are_impossible_and_the_others_stay() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = Ban((0, 2))(scores, torch.zeros(2, 1).long(), torch.arange(2))
    assert found.tolist() == [[NEVER, 2.0, NEVER], [NEVER, 5.0, NEVER]]
    assert Ban(())(torch.ones(1, 3), row(0), SOURCE).tolist() == [[1.0, 1.0, 1.0]]


def test_a_penalty_makes_both_signs_less_probable_once() -> None:
    scores = torch.tensor([[3.0, -3.0, 3.0, -3.0, 0.0]])
    assert RepetitionPenalty(1.5)(scores, row(0, 1, 1, 0, 4), SOURCE).tolist() == [[2.0, -4.5, 3.0, -3.0, 0.0]]


def test_what_fills_a_row_up_has_not_occurred() -> None:
    """The last id is what the filling would be as an index from the end."""
    scores = torch.tensor([[3.0, 3.0, 3.0]])
    assert RepetitionPenalty(1.5)(scores, row(NOTHING, NOTHING, 1), SOURCE).tolist() == [[3.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("size", "tokens", "forbidden"),
    [
        (1, (0, 2), {0, 2}),
        (1, (NOTHING, 0), {0}),
        (2, (0, 1, 2, 0), {1}),
        (2, (0, 1, 0, 2, 0), {1, 2}),
        (2, (0, 0), {0}),
        (2, (0,), set()),
        (3, (0, 1, 2, 0, 1), {2}),
        (3, (0, 1), set()),
        (2, (NOTHING, NOTHING, 1), set()),
        (2, (NOTHING, 0, 1, 0), {1}),
    ],
)
def test_what_would_repeat_a_run_is_impossible(size: int, tokens: tuple[int, ...], forbidden: set[int]) -> None:
    scores = NoRepeat(size)(torch.zeros(1, 4), row(*tokens), SOURCE)
    assert {token for token in range(4) if scores[0, token] == NEVER} == forbidden


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 4))
def test_no_repeat_is_its_definition(tokens: list[int], size: int) -> None:
    scores = NoRepeat(size)(torch.zeros(1, 3), row(*tokens), SOURCE)
    runs = [tokens[start : start + size] for start in range(len(tokens) - size + 1)]
    for token in range(3):
        ends_twice = len(tokens) + 1 >= size and [*tokens, token][-size:] in runs
        assert (scores[0, token] == NEVER) == ends_twice


@pytest.mark.parametrize(("columns", "possible"), [(4, False), (5, False), (6, True)])
def test_the_end_waits_counting_from_behind_the_prompt(columns: int, possible: bool) -> None:
    scores = MinimumLength(2, tokens=2, prompt=4)(torch.zeros(1, 3), torch.zeros(1, columns).long(), SOURCE)
    assert scores[0, :2].tolist() == [0.0, 0.0]
    assert bool(scores[0, 2] == 0.0) == possible


def test_each_source_may_have_a_least_length_of_its_own() -> None:
    sources_R = torch.tensor([0, 1, 1, 2])
    found = MinimumLength(end=1, tokens=[0, 3, 2], prompt=1)(torch.zeros(4, 2), torch.zeros(4, 3).long(), sources_R)
    assert found[:, 1].tolist() == [0.0, NEVER, NEVER, 0.0]
