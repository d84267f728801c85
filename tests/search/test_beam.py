"""Beam search driven by stubs whose probabilities are known, and compared with looking at every sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import JobError
from regard.search.beam import Hypothesis, beam_search, length_penalty
from regard.search.processors import Ban
from regard.search.ranking import largest
from regard.search.settings import SearchSettings

PAD, BEGIN, END, A, B = range(5)
NEVER = float("-inf")


class Stub:
    """A decoder made of a function from (source, tokens so far) to logits; keeps the sources of each call."""

    def __init__(self, logits: Callable[[int, tuple[int, ...]], Sequence[float]], sources: int = 1) -> None:
        self.logits = logits
        self.rows: list[tuple[int, tuple[int, ...]]] = [(source, ()) for source in range(sources)]
        self.calls: list[list[int]] = []

    def step(self, tokens_R: Tensor) -> Tensor:
        assert len(tokens_R) == len(self.rows)
        self.rows = [(source, (*ids, token)) for (source, ids), token in zip(self.rows, tokens_R.tolist(), strict=True)]
        self.calls.append([source for source, _ in self.rows])
        assert all(ids[0] == BEGIN for _, ids in self.rows)
        return torch.tensor([self.logits(source, ids[1:]) for source, ids in self.rows])

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        before = list(dict.fromkeys(source for source, _ in self.rows))
        self.rows = [self.rows[row] for row in rows_R.tolist()]
        after = list(dict.fromkeys(source for source, _ in self.rows))
        assert after == (before if sources_N is None else [before[place] for place in sources_N.tolist()])
        counts = {source: [other for other, _ in self.rows].count(source) for source in after}
        assert len(set(counts.values())) == 1, "each source must have the same number of rows"


def constant(**probabilities: float) -> Callable[[int, tuple[int, ...]], list[float]]:
    by_id = [probabilities.get(name, 0.0) for name in ("pad", "begin", "end", "a", "b")]
    logits = [math.log(value) if value else NEVER for value in by_id]
    return lambda source, ids: logits


def search(decoder: Stub, limits: Sequence[int], **options: float) -> list[list[Hypothesis]]:
    settings = SearchSettings.parse({"alpha": 0.0, **options}, "test")
    return beam_search(decoder, limits, settings, begin=BEGIN, end=END, processors=[Ban((PAD, BEGIN))])


def spelled(hypotheses: list[Hypothesis]) -> list[str]:
    return ["".join(" ^$ab"[token] for token in hypothesis.ids) for hypothesis in hypotheses]


def test_constant_probabilities_give_the_scores_computed_by_hand():
    (found,) = search(Stub(constant(a=0.6, b=0.3, end=0.1)), [50], beam=50, nbest=5)
    assert spelled(found) == ["", "a", "aa", "b", "aaa"]
    assert [hypothesis.log_probability for hypothesis in found] == pytest.approx(
        [-2.3026, -2.8134, -3.3242, -3.5066, -3.8351], abs=1e-4
    )
    assert all(hypothesis.finished and hypothesis.score == hypothesis.log_probability for hypothesis in found)


@pytest.mark.parametrize("beam", [1, 3])
def test_an_end_that_never_comes(beam):
    def logits(source: int, ids: tuple[int, ...]) -> list[float]:
        if source == 1 and len(ids) == 2:
            return [NEVER, NEVER, 0.0, NEVER, NEVER]
        return constant(a=2 / 3, b=1 / 3)(source, ids)

    endless, ends = search(Stub(logits, sources=2), [5, 5], beam=beam)
    assert spelled(endless) == ["aaaaa"]
    assert not endless[0].finished
    assert endless[0].score == pytest.approx(5 * math.log(2 / 3), abs=1e-6)
    assert spelled(ends) == ["aa"]
    assert ends[0].finished


@pytest.mark.parametrize("beam", [1, 4])
def test_an_empty_output_is_an_answer(beam):
    (found,) = search(Stub(constant(end=1.0)), [9], beam=beam)
    assert found == [Hypothesis(ids=(), log_probability=0.0, score=0.0, finished=True)]


@pytest.mark.parametrize("beam", [1, 4])
def test_control_tokens_are_never_given_and_keep_their_probability(beam):
    (found,) = search(Stub(constant(pad=0.4, begin=0.3, a=0.2, end=0.1)), [4], beam=beam, nbest=beam)
    assert all(set(hypothesis.ids) <= {A} for hypothesis in found)
    probability = {len(hypothesis.ids): hypothesis.log_probability for hypothesis in found}
    if beam == 1:
        assert probability[4] == pytest.approx(4 * math.log(0.2), abs=1e-5)
    else:
        assert probability[2] == pytest.approx(math.log(0.2 * 0.2 * 0.1), abs=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
def test_nothing_allowed_returns_what_stands(beam):
    def logits(source: int, ids: tuple[int, ...]) -> list[float]:
        return [NEVER, NEVER, NEVER, 0.0, NEVER] if len(ids) < 2 else [0.0, NEVER, NEVER, NEVER, NEVER]

    (found,) = search(Stub(logits), [9], beam=beam)
    assert found == [Hypothesis(ids=(A, A), log_probability=0.0, score=0.0, finished=False)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("beam", [1, 2])
def test_scores_that_are_no_numbers_are_an_error(value, beam):
    with pytest.raises(JobError, match="NaN or infinite"):
        search(Stub(lambda source, ids: [0.0, 0.0, 0.0, value, 0.0]), [5], beam=beam)


def ends_after(steps: dict[int, int], names: Sequence[int]) -> Callable[[int, tuple[int, ...]], list[float]]:
    """Source `n` of the call is the sentence `names[n]`, which ends after `steps` of that name."""

    def logits(source: int, ids: tuple[int, ...]) -> list[float]:
        end = 9.0 if len(ids) == steps[names[source]] else NEVER
        return [0.0, 0.0, end, 1.0 + len(ids) % 2, 1.5]

    return logits


@pytest.mark.parametrize("beam", [1, 4])
def test_batch_mates_change_nothing_and_the_finished_cost_nothing(beam):
    steps = {0: 2, 1: 50}
    results, calls = {}, {}
    for names in ([0], [1], [0, 1], [1, 0]):
        stub = Stub(ends_after(steps, names), sources=len(names))
        found = search(stub, [60] * len(names), beam=beam, alpha=0.6)
        for place, name in enumerate(names):
            results.setdefault(name, []).append(found[place])
            calls.setdefault(name, []).append(sum(place in sources for sources in stub.calls))
    for name, alternatives in results.items():
        assert all(found == alternatives[0] for found in alternatives)
        assert len(alternatives[0][0].ids) == steps[name]
    assert all(count == counts[0] for counts in calls.values() for count in counts)
    assert beam > 1 or calls == {0: [3, 3, 3], 1: [51, 51, 51]}


def test_sources_have_limits_of_their_own():
    found = search(Stub(constant(a=0.7, b=0.3), sources=3), [1, 4, 2], beam=2)
    assert [spelled(hypotheses) for hypotheses in found] == [["a"], ["aaaa"], ["aa"]]


class Table:
    """Random logits for every prefix, the same each time; and the best sequences by looking at all of them."""

    def __init__(self, seed: int, scale: float, limit: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.limit = limit
        self.logits = {
            (source, ids): (torch.randn(5, generator=generator) * scale).tolist()
            for source in range(3)
            for length in range(limit)
            for ids in product((A, B), repeat=length)
        }

    def __call__(self, source: int, ids: tuple[int, ...]) -> list[float]:
        return self.logits.get((source, ids), [0.0] * 5)  # an empty place may hold anything

    def exhaustive(self, source: int, alpha: float) -> list[tuple[float, tuple[int, ...], bool]]:
        """All sequences with scores: the ended ones first, best first."""
        everything = []
        for length in range(self.limit + 1):
            for ids in product((A, B), repeat=length):
                total = sum(self._log_probability(source, ids[:place], ids[place]) for place in range(length))
                if length == self.limit:
                    everything.append((total / length_penalty(length, alpha), ids, False))
                else:
                    total += self._log_probability(source, ids, END)
                    everything.append((total / length_penalty(length + 1, alpha), ids, True))
        return sorted(everything, key=lambda entry: (entry[2], entry[0]), reverse=True)

    def _log_probability(self, source: int, ids: tuple[int, ...], token: int) -> float:
        return float(torch.tensor(self(source, ids)).log_softmax(0)[token])


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.3, 1.0, 4.0]),
    alpha=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 3.0]),
    nbest=st.integers(1, 6),
)
def test_a_wide_beam_finds_what_looking_at_everything_finds(seed, scale, alpha, nbest):
    table = Table(seed, scale, limit=4)
    found = search(Stub(table, sources=3), [4, 4, 4], beam=4**4, alpha=alpha, nbest=nbest)
    for source, hypotheses in enumerate(found):
        expected = table.exhaustive(source, alpha)[:nbest]
        assert [(hypothesis.ids, hypothesis.finished) for hypothesis in hypotheses] == [
            (ids, finished) for _, ids, finished in expected
        ]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _, _ in expected])


def plain_beam(table: Table, source: int, limit: int, beam: int, alpha: float) -> list[tuple[int, ...]]:
    """The same search without tensors, batches or early stopping."""
    growing: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[bool, float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        candidates = [
            (score + float(torch.tensor(table(source, ids)).log_softmax(0)[token]), ids, token)
            for score, ids in growing
            for token in (END, A, B)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        candidates = candidates[: beam - len(ended)]
        ended += [(True, s / length_penalty(length, alpha), ids) for s, ids, token in candidates if token == END]
        growing = [(score, (*ids, token)) for score, ids, token in candidates if token != END]
    ended += [(False, score / length_penalty(limit, alpha), ids) for score, ids in growing]
    return [ids for _, _, ids in sorted(ended, key=lambda entry: entry[:2], reverse=True)]


@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 3.0]),
    beam=st.integers(1, 6),
    limits=st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_stopping_early_loses_nothing(seed, alpha, beam, limits):
    table = Table(seed, scale=2.0, limit=5)
    found = search(Stub(table, sources=3), limits, beam=beam, alpha=alpha)
    for source, limit in enumerate(limits):
        assert found[source][0].ids == plain_beam(table, source, limit, beam, alpha)[0]


def test_the_bound_stops_the_search_early():
    stub = Stub(constant(a=0.2, b=0.1, end=0.7))
    (found,) = search(stub, [50], beam=4)
    assert spelled(found) == [""]
    assert stub.calls == [[0]]


def test_a_long_output_that_the_length_penalty_prefers_is_not_lost():
    """The short one is ahead when it ends; only the penalty of the whole length shows that the long one wins."""

    def logits(source: int, ids: tuple[int, ...]) -> list[float]:
        if ids == ():
            return [NEVER, NEVER, math.log(0.55), math.log(0.45), NEVER]
        return [NEVER, NEVER, 0.0 if len(ids) == 20 else NEVER, NEVER if len(ids) == 20 else 0.0, NEVER]

    for alpha, expected in ((0.0, 0), (1.0, 20)):
        (found,) = search(Stub(logits), [40], beam=2, alpha=alpha)
        assert len(found[0].ids) == expected


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_equal_probabilities_go_to_the_lower_ids(beam):
    def level(source: int, ids: tuple[int, ...]) -> list[float]:
        return [NEVER, NEVER, 0.0, NEVER, NEVER] if len(ids) == 2 else [NEVER, NEVER, NEVER, 0.0, 0.0]

    (found,) = search(Stub(level), [3], beam=beam, nbest=beam)
    assert spelled(found) == [["aa"], ["aa", "ab"], ["aa", "ab", "ba", "bb"]][[1, 2, 5].index(beam)]


@given(st.lists(st.integers(-3, 3), min_size=12, max_size=12), st.integers(1, 6))
def test_largest_takes_the_first_of_equal_values(values, count):
    values_RV = torch.tensor(values, dtype=torch.float32).view(2, 6)
    top_RC, places_RC = largest(values_RV, count)
    for row in range(2):
        expected = sorted(range(6), key=lambda place: (-float(values_RV[row, place]), place))[:count]
        assert places_RC[row].tolist() == expected
        assert top_RC[row].tolist() == [float(values_RV[row, place]) for place in expected]


def test_processors_see_the_tokens_and_the_source_of_each_row():
    class OnlySecondSourceMayUseB:
        def __call__(self, log_probabilities_RV: Tensor, tokens_RT: Tensor, sources_R: Tensor) -> Tensor:
            assert len(tokens_RT) == len(sources_R) == len(log_probabilities_RV)
            log_probabilities_RV[sources_R == 0, B] = NEVER
            log_probabilities_RV[(tokens_RT == B).any(dim=1), A] = NEVER
            return log_probabilities_RV

    found = beam_search(
        Stub(constant(a=0.5, b=0.3, end=0.2), sources=2),
        [4, 4],
        SearchSettings(beam=30, nbest=20),
        begin=BEGIN,
        end=END,
        processors=[OnlySecondSourceMayUseB()],
    )
    assert set("".join(spelled(found[0]))) == {"a"}
    assert "b" in "".join(spelled(found[1]))
    assert not any("ba" in text for text in spelled(found[1]))
