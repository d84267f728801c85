"""What an output must begin with, say and not say: by definition, and by looking at every sequence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import UserError
from regard.search.beam import beam_search
from regard.search.constraints import Must
from regard.search.engine import Translation, translate
from regard.search.growth import Growing, choose_step_by_step
from regard.search.processors import Ban, Processor
from regard.search.requests import Demand, Request, Wishes
from regard.search.sampling import Sampling
from regard.search.selection import Banks, Standing
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.spelling import Spelling, phrase, spelling
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

PAD, BEGIN, END, A, B = range(5)
LIMIT = 6
NEVER = float("-inf")

ways = st.lists(st.lists(st.sampled_from([A, B]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2)
demands = st.lists(ways.map(tuple), min_size=0, max_size=2).map(tuple).map(Demand)


class Table:
    """Logits for each prefix of each source, the same each time."""

    def __init__(self, seed: int, sources: int) -> None:
        self.seed = seed
        self.rows: list[tuple[int, tuple[int, ...]]] = [(source, ()) for source in range(sources)]

    def logits(self, source: int, ids: tuple[int, ...]) -> Tensor:
        number = sum((token - 2) * 4**place for place, token in enumerate(ids)) * 8 + source
        return torch.randn(5, generator=torch.Generator().manual_seed(self.seed * 10**6 + number)) * 2

    def step(self, tokens_R: Tensor) -> Tensor:
        self.rows = [(source, (*ids, token)) for (source, ids), token in zip(self.rows, tokens_R.tolist(), strict=True)]
        return torch.stack([self.logits(source, ids[1:]) for source, ids in self.rows])

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.rows = [self.rows[row] for row in rows_R.tolist()]

    def best(self, source: int, allowed: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...] | None:
        """The most probable output that ends within the limit and is allowed."""
        totals = {}
        for length in range(LIMIT):
            for ids in filter(allowed, product((A, B), repeat=length)):
                steps = [self.logits(source, ids[:place]).log_softmax(0) for place in range(length + 1)]
                totals[ids] = float(sum(step[token] for step, token in zip(steps, (*ids, END), strict=True)))
        return max(totals, key=totals.__getitem__, default=None)


def holds(ids: tuple[int, ...], demand: Demand) -> bool:
    text = "".join(map(str, ids))
    return all(any("".join(map(str, way)) in text for way in ways) for ways in demand.wishes)


def processors(given_demands: list[Demand], at_end: bool = False) -> list[Processor]:
    return [Ban((PAD, BEGIN)), Must(given_demands, [LIMIT] * len(given_demands), END, at_end)]


@given(seed=st.integers(0, 1000), given_demands=st.lists(demands, min_size=3, max_size=3))
def test_a_wide_beam_finds_the_best_output_that_says_what_it_must(seed, given_demands):
    given_demands = [each if each.missing(()) < LIMIT else Demand() for each in given_demands]
    found = beam_search(
        Table(seed, 3),
        [LIMIT] * 3,
        SearchSettings(beam=2**LIMIT, alpha=0.0),
        begin=BEGIN,
        end=END,
        processors=processors(given_demands),
        selection=Banks(given_demands),
    )
    for source, (hypotheses, demand) in enumerate(zip(found, given_demands, strict=True)):
        assert hypotheses[0].finished
        assert hypotheses[0].ids == Table(seed, 3).best(source, lambda ids, demand=demand: holds(ids, demand))


@given(
    seed=st.integers(0, 1000),
    demand=demands,
    beam=st.sampled_from([1, 2, 5]),
    banks=st.booleans(),
)
def test_whatever_the_beam_it_is_said(seed, demand, beam, banks):
    if demand.missing(()) >= LIMIT:
        return
    (found,) = beam_search(
        Table(seed, 1),
        [LIMIT],
        SearchSettings(beam=beam, nbest=beam),
        begin=BEGIN,
        end=END,
        processors=processors([demand], at_end=not banks),
        selection=Banks([demand]) if banks else None,
    )
    assert all(holds(hypothesis.ids, demand) for hypothesis in found)


@given(seed=st.integers(0, 1000), demand=demands)
def test_it_is_said_where_outputs_are_drawn(seed, demand):
    if demand.missing(()) >= LIMIT:
        return
    texts = [Growing(LIMIT)]
    steps = choose_step_by_step(
        Table(seed, 1),
        torch.tensor([[BEGIN]]),
        texts,
        Sampling(SamplingSettings()),
        end=END,
        processors=processors([demand], at_end=True),
    )
    for _ in steps:
        pass
    assert holds(tuple(texts[0].ids), demand)


@given(demand=demands, said=st.lists(st.sampled_from([A, B]), max_size=6).map(tuple))
def test_what_is_missing_is_enough_and_each_step_brings_it_nearer(demand, said):
    outlook = demand.outlook(said)
    assert (outlook.otherwise == 0) == holds(said, demand)
    assert all(outlook(token) == demand.missing((*said, token)) for token in outlook.following)
    while demand.missing(said):
        outlook = demand.outlook(said)
        token = min(outlook.following, key=outlook)
        assert demand.missing((*said, token)) < demand.missing(said)
        said = (*said, token)
    assert holds(said, demand)


def test_a_match_that_fails_goes_on_with_the_shorter_one_in_it() -> None:
    """After a a the word a a b needs only b: the first a is given up, and not both."""
    demand = Demand((((A, A, B),),))
    assert [demand.missing(said) for said in ((), (A,), (A, A), (A, A, A), (A, B), (A, A, B))] == [3, 2, 1, 1, 3, 0]


def test_a_word_that_goes_on_is_another() -> None:
    demand = Demand((((A,),),), ends=frozenset({A}), inner=frozenset({B}))
    assert [demand.missing(said) for said in ((A,), (A, B), (A, A), (A, B, A))] == [0, 1, 0, 0]
    assert (demand.outlook((A,))(B), demand.outlook((A,))(END)) == (1, 0)
    limit = 3
    must = Must([demand], [limit], END)
    scores = must(torch.zeros(1, 5), torch.tensor([[BEGIN, A]]), torch.tensor([0]))
    assert scores[0].tolist() == [0.0, 0.0, 0.0, 0.0, NEVER]  # after b no room is left for another a and the end


def test_where_a_model_would_end_it_says_what_is_missing() -> None:
    demand = Demand((((A, B),),))
    scores = torch.tensor([[0.0, 0.0, 3.0, 1.0, 2.0], [0.0, 0.0, 1.0, 2.0, 3.0]])
    tokens_RT, sources_R = torch.tensor([[BEGIN, B], [BEGIN, B]]), torch.tensor([0, 0])
    found = Must([demand], [9], END, at_end=True)(scores.clone(), tokens_RT, sources_R)
    assert found.tolist() == [[NEVER, NEVER, NEVER, 1.0, NEVER], [0.0, 0.0, NEVER, 2.0, 3.0]]
    waiting = Must([demand], [9], END)(scores.clone(), tokens_RT, sources_R)
    assert waiting[0].tolist() == [0.0, 0.0, NEVER, 1.0, 2.0]


def test_banks_take_turns_for_the_places() -> None:
    """Post and Vilar's allocation: the best of what misses no token, one, two; then the second of each."""
    demand = Demand((((A, B),),))
    standing = Standing([0], np.array([6]), np.array([1]), np.array([[BEGIN, A], [BEGIN, B]]))
    tokens_NK = np.array([[A, B, END, A, B, END]])
    assert [demand.missing((said, int(token))) for said in (A, B) for token in (A, B, END)] == [1, 0, 2, 1, 2, 2]
    scores_NK = np.array([[-1.0, -9.0, -3.0, -2.0, -4.0, NEVER]])
    assert Banks([demand]).order(standing, scores_NK, tokens_NK).tolist() == [[1, 0, 2, 3, 4, 5]]
    assert Banks([demand]).further(standing) == [[A, B], [A]]


TEXTS = ["the dog runs", "men talk about tea", "a"]


@pytest.fixture(scope="module")
def chatty(build_model):
    """A model that likes words, so that something is there to be forbidden."""
    model = build_model()
    with torch.no_grad():
        model.output[4:260] *= 0.2
    return model


def run(
    model, tokenizers: TokenizerPair, texts, sampling: SamplingSettings | None = None, **options
) -> list[Translation]:
    settings = SearchSettings.parse({"extra_tokens": 8, **options}, "test")
    return list(translate(model, tokenizers, texts, settings, sampling=sampling))


WAYS = {
    "greedy": (None, {"beam": 1}),
    "beam": (None, {"beam": 4, "nbest": 4}),
    "diverse": (None, {"beam": 4, "nbest": 4, "groups": 2}),
    "drawn": (SamplingSettings(seed=1, n=4), {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_outputs_begin_as_they_are_told(chatty, tokenizers, way):
    sampling, options = WAYS[way]
    for prefix in ("the", "the qu", "a small ", "der Hund lä", "τ"):
        requests = [Request(text, prefix=prefix) for text in TEXTS]
        for translation in run(chatty, tokenizers, requests, sampling, **options):
            assert all(candidate.text.startswith(prefix) for candidate in translation.candidates)


@pytest.mark.parametrize("way", WAYS)
def test_outputs_never_hold_what_is_forbidden(chatty, tokenizers, way):
    """Not as other tokens either: the most probable words are forbidden until few are left."""
    sampling, options = WAYS[way]
    forbidden: list[str] = []
    for _ in range(4):
        found = run(chatty, tokenizers, TEXTS, sampling, forbid=tuple(forbidden), **options)
        requests = [Request(text, forbid=tuple(forbidden)) for text in TEXTS]
        assert run(chatty, tokenizers, requests, sampling, **options) == found
        texts = [candidate.text for translation in found for candidate in translation.candidates]
        words = [word for text in texts for word in text.split()]
        assert not set(forbidden) & set(words)
        forbidden.append(max(filter(str.isalpha, words), key=len))


@pytest.mark.parametrize("way", WAYS)
def test_outputs_say_what_they_must(chatty, tokenizers, way):
    sampling, options = WAYS[way]
    requests = [Request(text, must=("the lazy dog", ("park", "ball"))) for text in TEXTS]
    for translation in run(chatty, tokenizers, requests, sampling, **options):
        for candidate in translation.candidates:
            words = candidate.text.split()
            assert "the lazy dog" in candidate.text
            assert {"park", "ball"} & set(words)


def test_a_beam_says_it_where_it_fits_best_and_greedy_search_at_last(chatty, tokenizers):
    request = Request("a small dog runs in the park", must=("weather",))
    (beam,) = run(chatty, tokenizers, [request], beam=4)
    (greedy,) = run(chatty, tokenizers, [request], beam=1)
    assert beam.best.log_probability > greedy.best.log_probability


def test_wishes_of_others_change_nothing(chatty, tokenizers):
    requests = [Request(TEXTS[0], must=("tea",)), TEXTS[1], Request(TEXTS[2], prefix="dog", forbid="park"), TEXTS[0]]
    together = run(chatty, tokenizers, requests, beam=4, nbest=4)
    for request, translation in zip(requests, together, strict=True):
        (alone,) = run(chatty, tokenizers, [request], beam=4, nbest=4)
        assert [each.ids for each in translation.candidates] == [each.ids for each in alone.candidates]
    plain = run(chatty, tokenizers, TEXTS, beam=4, nbest=4)
    assert [each.ids for each in together[1].candidates] == [each.ids for each in plain[1].candidates]


def test_a_phrase_is_whole_words(tokenizers):
    target = tokenizers.target
    found = phrase("the", target)

    def forbidden(text: str) -> list[str]:
        (ids,) = target.encode([text])
        completing = found.completing(spelling(target).text(ids))
        return [target.pieces([token])[0] for token in completing]

    assert "▁the" in forbidden("over")
    assert "he" in forbidden("over t")
    assert "he" not in forbidden("over at")  # athe is another word


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@given(text=st.text("ab é狗.", max_size=8), word=st.text("abé", min_size=1, max_size=3))
def test_a_token_completes_a_phrase_when_the_text_then_holds_it(kind, text, word):
    tokenizer = learned(kind)
    spelled = spelling(tokenizer)
    (ids,) = tokenizer.encode([text])
    completing = set(phrase(word, tokenizer).completing(spelled.text(ids)))
    for token in range(5, tokenizer.size):
        before, after = tokenizer.decode([ids, [*ids, token]])
        if "\ufffd" not in after and word not in before.replace(".", " ").replace("狗", " ").split():
            now = word in after.replace(".", " ").replace("狗", " ").split()
            assert (token in completing) == now


LEARNED: dict[str, Tokenizer] = {}


def learned(kind: str) -> Tokenizer:
    if kind not in LEARNED:
        LEARNED[kind] = Tokenizer.learn(["ab abé ba 狗 aé. bab ab"] * 3, TokenizerSettings(size=275, kind=kind))
    return LEARNED[kind]


def test_spelling_by_decoding_is_that_of_the_bytes(tokenizers, monkeypatch):
    own = Spelling(tokenizers.target).bytes_V
    monkeypatch.setattr("regard.search.spelling.LearnedTokenizer", type(None))
    other = Spelling(tokenizers.target).bytes_V
    control = set(tokenizers.target.forbidden) | {tokenizers.target.eos}
    differing = [token for token in range(len(own)) if own[token] != other[token] and token not in control]
    assert differing == []


def test_prefixes_and_words_in_the_tokens_of_a_vocabulary(tokenizers):
    target = tokenizers.target
    wishes = Wishes.of(Request("x", prefix="the lazy do", must=["dog", ("park", "ball")]), target)
    assert target.decode([[*wishes.beginning.ids]]) == ["the lazy"]
    assert wishes.beginning.rest == b" do"
    assert [[target.decode([list(way)])[0] for way in ways] for ways in wishes.demand.wishes] == [
        ["dog"],
        ["park", "ball"],
    ]
    assert Wishes.of(Request("x"), target) == Wishes()


@pytest.mark.parametrize("wishes", [{"must": ("",)}, {"must": ((),)}, {"forbid": " "}, {"must": (("a", ""),)}])
def test_empty_phrases_are_refused(wishes):
    with pytest.raises(UserError, match="at least one character"):
        Request("a", **wishes)
    if "forbid" in wishes:
        with pytest.raises(UserError, match="at least one character"):
            SearchSettings.parse(wishes, "test")
