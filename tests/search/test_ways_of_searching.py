"""Every way of searching beside every other: diverse beams, coverage, ensembles, minimum Bayes risk, and all rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import UserError
from regard.model.attention import watching
from regard.pipelines import Translator
from regard.search.bayes import expected_utilities
from regard.search.beam import beam_search, length_penalty
from regard.search.coverage import coverage
from regard.search.engine import Translation, translate
from regard.search.ensemble import Ensemble
from regard.search.executors import TorchExecutor
from regard.search.processors import Ban
from regard.search.requests import Request
from regard.search.selection import Diverse, MostProbable
from regard.search.settings import SamplingSettings, SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

TEXTS = ["the dog runs", "men talk about tea", "a", "two men in a park", "the weather"]
NEVER = float("-inf")
PAD, BEGIN, END, A, B, C = range(6)


def run(model, tokenizers: TokenizerPair, texts: Sequence[str | Request] = TEXTS, **options) -> list[Translation]:
    given = {name: options.pop(name) for name in ("sampling", "utility", "readers", "workers") if name in options}
    settings = SearchSettings.parse({"extra_tokens": 8, **options}, "test")
    return list(translate(model, tokenizers, texts, settings, **given))


class Table:
    """Logits for each prefix, the same each time."""

    def __init__(self, seed: int, sources: int = 1) -> None:
        self.seed = seed
        self.rows: list[tuple[int, ...]] = [()] * sources

    def log_probabilities(self, ids: tuple[int, ...]) -> Tensor:
        number = sum((token - 2) * 4**place for place, token in enumerate(ids))
        scores = torch.randn(6, generator=torch.Generator().manual_seed(self.seed * 10**6 + number)) * 2
        return scores.log_softmax(0)

    def step(self, tokens_R: Tensor) -> Tensor:
        self.rows = [(*ids, token) for ids, token in zip(self.rows, tokens_R.tolist(), strict=True)]
        return torch.stack([self.log_probabilities(ids[1:]) for ids in self.rows])

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.rows = [self.rows[row] for row in rows_R.tolist()]


def plain_diverse(table: Table, limit: int, beam: int, groups: int, strength: float) -> list[set[tuple[int, ...]]]:
    """Diverse beam search as its paper writes it: what each group finds."""
    growing: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(groups)]
    ended: list[list[tuple[int, ...]]] = [[] for _ in range(groups)]
    for _ in range(limit):
        chosen: list[int] = []
        for group in range(groups):
            candidates = [
                (score + float(table.log_probabilities(ids)[token]), ids, token)
                for score, ids in growing[group]
                for token in (END, A, B, C)
            ]
            candidates.sort(key=lambda each: -(each[0] - strength * chosen.count(each[2])))
            taken = candidates[: beam // groups - len(ended[group])]
            chosen += [token for _, _, token in taken]
            ended[group] += [ids for _, ids, token in taken if token == END]
            growing[group] = [(score, (*ids, token)) for score, ids, token in taken if token != END]
    return [{*ended[group], *(ids for _, ids in growing[group])} for group in range(groups)]


@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(2, 2), (4, 2), (6, 2), (6, 3), (3, 3)]),
    strength=st.sampled_from([0.0, 0.5, 3.0, 50.0]),
)
def test_diverse_beam_search_is_that_of_its_paper(seed, shape, strength):
    beam, groups = shape
    width = beam // groups
    found = beam_search(
        Table(seed, groups),
        [4] * groups,
        SearchSettings(beam=width, nbest=width, alpha=-5.0),  # which never lets a search stop early
        begin=BEGIN,
        end=END,
        processors=[Ban((PAD, BEGIN))],
        selection=Diverse(groups, strength, MostProbable()),
    )
    expected = plain_diverse(Table(seed), 4, beam, groups, strength)
    for hypotheses, outputs in zip(found, expected, strict=True):
        assert {each.ids for each in hypotheses} <= outputs
        assert {each.ids for each in hypotheses if each.finished} == {ids for ids in outputs if len(ids) < 4} or (
            len(hypotheses) == width
        )


def test_groups_say_other_things_than_a_beam(build_model, tokenizers):
    model = build_model()

    def alike(translations: list[Translation]) -> float:
        pairs = [(one, other) for each in translations for one, other in pairwise(each.candidates)]
        return sum(len(set(one.ids) & set(other.ids)) / len({*one.ids, *other.ids, 0}) for one, other in pairs)

    beam = run(model, tokenizers, beam=4, nbest=4)
    groups = run(model, tokenizers, beam=4, nbest=4, groups=4, diversity=5.0)
    assert alike(groups) < alike(beam)
    for translation, other in zip(run(model, tokenizers, beam=4, nbest=4, groups=4, diversity=0.0), beam, strict=True):
        assert len(translation.candidates) == 1  # all groups are the same greedy search
        assert translation.best.log_probability <= other.best.log_probability + 1e-4


def test_each_group_makes_room_for_what_must_come(build_model, tokenizers):
    """With nothing against saying the same, groups are beams of their share, all alike."""
    model = build_model()
    requests = [Request(text, must=["tea", ("dog", "ball")]) for text in TEXTS[:6]]
    whole = run(model, tokenizers, requests, beam=2, nbest=2)
    groups = {"beam": 4, "nbest": 4, "groups": 2}
    alike = run(model, tokenizers, requests, **groups, diversity=0.0)
    assert [[each.text for each in one.candidates] for one in alike] == [
        [each.text for each in one.candidates] for one in whole
    ]
    diverse = run(model, tokenizers, requests, **groups, diversity=3.0)
    assert sum(len(each.candidates) for each in diverse) > sum(len(each.candidates) for each in whole)
    for candidate in chain.from_iterable(each.candidates for each in diverse):
        assert "tea" in candidate.text
        assert "dog" in candidate.text or "ball" in candidate.text


def test_groups_divide_the_beam():
    with pytest.raises(UserError, match="groups = 3 does not divide beam = 4"):
        SearchSettings.parse({"groups": 3}, "options")


def test_the_best_few_have_different_texts(build_model, tokenizers):
    """A model whose vocabulary writes most texts in several ways."""
    model = build_model()
    target = tokenizers.target
    with torch.no_grad():
        for piece in ("t", "h", "e", "the", " ", " the"):
            model.output[target.encode([piece])[0][-1]] *= 4
    for translation in run(model, tokenizers, beam=8, nbest=8, extra_tokens=3):
        texts = [candidate.text for candidate in translation.candidates]
        assert len(set(texts)) == len(texts)


def test_of_two_ways_to_write_a_text_the_better_one_stays():
    """Tokens A and B spell the same."""

    def alike(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(A if token == B else token for token in ids)

    everything: dict[tuple[int, ...], float] = {}
    for ids in (ids for length in range(3) for ids in product((A, B, C), repeat=length)):
        steps = [Table(5).log_probabilities(ids[:place])[token] for place, token in enumerate((*ids, END))]
        everything[alike(ids)] = max(float(sum(steps)), everything.get(alike(ids), NEVER))
    expected = sorted(everything.values(), reverse=True)[:5]
    (found,) = beam_search(
        Table(5),
        [3],
        SearchSettings(beam=100, nbest=5, alpha=0.0),
        begin=BEGIN,
        end=END,
        processors=[Ban((PAD, BEGIN))],
        alike=alike,
    )
    assert [each.log_probability for each in found] == pytest.approx(expected, abs=1e-5)


def test_the_coverage_penalty_by_hand():
    attention_BTS = torch.tensor([[[0.5, 0.3, 0.2], [0.9, 0.05, 0.05], [0.0, 0.0, 1.0]]])
    said, text = torch.tensor([[True, True, False]]), torch.tensor([[True, True, False]])
    assert coverage(attention_BTS, said, text) == pytest.approx([math.log(1.0) + math.log(0.35)])


def test_coverage_ranks_by_equation_14(build_model, tokenizers):
    model = build_model()
    plain = run(model, tokenizers, beam=4, nbest=4)
    for weight in (0.3, 2.0):
        found = run(model, tokenizers, beam=4, nbest=4, coverage=weight)
        for text, translation, before in zip(TEXTS, found, plain, strict=True):
            (source,) = tokenizers.source.encode([text])
            expected = {}
            for each in before.candidates:
                watched = []
                with torch.no_grad(), watching(watched.append):
                    source_BS = torch.tensor([[*source, tokenizers.source.eos]])
                    model(source_BS, None, torch.tensor([[*tokenizers.target_begin, *each.ids]]))
                p_TS = watched[-1].weights_BHTS[0].mean(dim=0)[: len(each.ids) + each.finished, : len(source)]
                penalty = float(p_TS.sum(dim=0).clamp(max=1).log().sum())
                tokens = len(each.ids) + each.finished
                expected[each.text] = each.log_probability / length_penalty(tokens, 0.6) + weight * penalty
            got = {each.text: each.score for each in translation.candidates}
            assert {text: got[text] for text in expected} == pytest.approx(expected, abs=1e-3)
            ranks = [(each.finished, each.score) for each in translation.candidates]
            assert ranks == sorted(ranks, reverse=True)


@torch.inference_mode()
def test_an_ensemble_is_the_mean_of_probabilities(build_model, tokenizers):
    models = [build_model(seed) for seed in (0, 1, 2)]
    ensemble = Ensemble([TorchExecutor(model) for model in models])
    sources = [[7, 8, 9, tokenizers.source.eos], [30, 31, tokenizers.source.eos]]
    together = ensemble.begin(sources, tokenizers.source.pad, ())
    each = [TorchExecutor(model).begin(sources, tokenizers.source.pad, ()) for model in models]
    for tokens_R in (torch.tensor([1, 1]), torch.tensor([40, 50])):
        expected_RV = torch.stack([decoder.step(tokens_R).softmax(dim=1) for decoder in each]).mean(dim=0)
        torch.testing.assert_close(together.step(tokens_R).exp(), expected_RV)
    rows_R = torch.tensor([1, 1])
    for decoder in (together, *each):
        decoder.reorder(rows_R, torch.tensor([1, 1]))
    expected_RV = torch.stack([decoder.step(rows_R).softmax(dim=1) for decoder in each]).mean(dim=0)
    torch.testing.assert_close(together.step(rows_R).exp(), expected_RV)


def test_a_model_beside_itself_translates_as_alone(build_model, tokenizers):
    model = build_model()
    alone = run(TorchExecutor(model), tokenizers, beam=4, nbest=4)
    assert_alike(run(Ensemble([TorchExecutor(model)] * 2), tokenizers, beam=4, nbest=4), alone)


def test_translators_with_one_vocabulary_translate_together(build_model, tokenizers):
    models = [build_model(seed) for seed in (0, 1)]
    first, second = (Translator(model, tokenizers) for model in models)
    alone = first.hypotheses(TEXTS, extra_tokens=8, retry=False)
    together = first.together(second).use("torch")
    expected = run(Ensemble(list(map(TorchExecutor, models))), tokenizers)
    assert_alike(together.hypotheses(TEXTS, extra_tokens=8, retry=False), expected)
    assert [each.best.ids for each in alone] != [each.best.ids for each in expected]
    assert "the mean of 2 models" in together.explain()
    together.hypotheses(TEXTS, extra_tokens=8, coverage=0.2)
    with pytest.raises(UserError, match="an ensemble searches and does not score"):
        together.score("a", "b")
    other = Tokenizer.learn(["another vocabulary"] * 3, TokenizerSettings(size=265))
    with pytest.raises(UserError, match="model 2 of the ensemble has another vocabulary"):
        first.together(Translator(models[1], TokenizerPair(other, other)))


def test_expected_utilities_by_hand():
    def utility(one: str, other: str) -> float:
        return float(one[0] == other[0]) + 0.5 * (one == other)

    assert expected_utilities(["ab", "ac", "b"], [1.0, 2.0, 1.0], utility) == pytest.approx([0.875, 1.0, 0.375])


def test_minimum_bayes_risk_takes_what_is_most_like_the_rest(build_model, tokenizers):
    """Duplicates count as often as they were drawn, and what a beam found by its probability."""
    model = build_model()

    def utility(one: str, other: str) -> float:
        return len(set(one) & set(other)) / (1 + len(set(one) | set(other)))

    sampling = SamplingSettings(n=12, seed=4, temperature=0.4)
    drawn = run(model, tokenizers, sampling=sampling)
    chosen = run(model, tokenizers, sampling=sampling, utility=utility, beam=4, nbest=4)
    moved = 0
    for every, best in zip(drawn, chosen, strict=True):
        assert len(every.candidates) == 12
        texts = [each.text for each in every.candidates]
        expected = {text: sum(utility(text, other) for other in texts) for text in texts}
        values = [expected[each.text] for each in best.candidates]
        assert values == pytest.approx(sorted(expected.values(), reverse=True)[: len(values)])
        moved += best.best.text != texts[0]
    assert moved
    beam = run(model, tokenizers, beam=4, nbest=4)
    for every, best in zip(beam, run(model, tokenizers, utility=utility), strict=True):
        expected = {
            one.text: sum(math.exp(other.log_probability) * utility(one.text, other.text) for other in every.candidates)
            for one in every.candidates
        }
        assert expected[best.best.text] == pytest.approx(max(expected.values()))
        assert len(best.candidates) == 1


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_a_translator_takes_the_least_risk(build_model, tokenizers, metric):
    translator = Translator(build_model(), tokenizers).use("torch")
    how = {"sampling": SamplingSettings(n=5, seed=1), "mbr": metric}
    one, again = (translator.translate(TEXTS, extra_tokens=8, **how) for _ in range(2))
    assert one == again
    every = translator.hypotheses(TEXTS, extra_tokens=8, sampling=SamplingSettings(n=5, seed=1))
    assert all(text in [each.text for each in found.candidates] for text, found in zip(one, every, strict=True))


def test_lengths_follow_the_source(build_model, tokenizers):
    model = build_model()
    for sampling in (None, SamplingSettings(seed=1, n=3)):
        found = run(model, tokenizers, sampling=sampling, min_ratio=1.5, max_ratio=1.5, beam=4, nbest=4)
        for text, translation in zip(TEXTS, found, strict=True):
            source = len(tokenizers.source.encode([text])[0])
            lengths = {len(each.ids) for each in translation.candidates}
            assert lengths == {min(math.ceil(1.5 * source), source + 7)} or max(lengths) <= source + 8
            assert min(lengths) >= min(math.ceil(1.5 * source), source + 8)


def test_ratios_are_those_that_were_written():
    """1.1 * 10 is 11, although floats say a little more."""
    settings = SearchSettings(max_ratio=1.1, min_ratio=1.1)
    assert [settings.least(tokens) for tokens in (1, 9, 10, 11)] == [2, 10, 11, 13]
    assert [settings.most(tokens) for tokens in (1, 9, 10, 11)] == [3, 11, 12, 14]
    assert SearchSettings(extra_tokens=3, max_ratio=2.0, min_tokens=5).most(10) == 13
    assert SearchSettings(min_tokens=5, min_ratio=0.2).least(10) == 5


def assert_alike(found: Sequence[Translation], expected: Sequence[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [each.text for each in one.candidates] == [each.text for each in other.candidates]
        for name in ("score", "log_probability", "finished"):
            assert [getattr(each, name) for each in one.candidates] == pytest.approx(
                [getattr(each, name) for each in other.candidates], abs=1e-3
            )
